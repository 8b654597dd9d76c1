"""What a TensorRT module can do, asked of the module itself: version numbers and enum values lie.

Every probe was checked against the bindings of 8.6 to 11.4 (tests/backends/test_bindings.py
runs them against the real bindings).
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from overflow_fixer.errors import BackendError
from overflow_fixer.records import Typing


@dataclass(frozen=True)
class Capabilities:
    """The answers, by what they are needed for.

    weak: layers can be pinned under a precision flag. weak_is_deprecated: pinning warns, and strong
    typing is the default. strong: a network takes its types from the model. metadata: layers name
    their ONNX node. progress: the builder reports phases. parser_flags: InstanceNormalization can be made native.
    axes_inputs: the parser does not overlook the axes that reductions have as an input from opset 18 on (before 10, which
    came with OnnxParser.get_layer_output_tensor, ReduceMean and its like reduce over everything there:
    NVIDIA/TensorRT#3467, and seen with 8.6.0). error_nodes: the parser's errors name their node. normalization_layers:
    there is a layer for normalisations; native_instance_norm: the parser makes one of InstanceNormalization, unasked,
    as it does from 10 on.
    """

    version: str
    weak: bool
    weak_is_deprecated: bool
    strong: bool
    explicit_batch: bool
    named_io: bool
    metadata: bool
    progress: bool
    parser_flags: bool
    optimization_level: bool
    axes_inputs: bool
    error_nodes: bool
    normalization_layers: bool
    native_instance_norm: bool

    @property
    def default_typing(self) -> Typing:
        return "weak" if self.weak and not self.weak_is_deprecated else "strong"


def is_installed() -> bool:
    """Whether there is a tensorrt module: not a mere folder of that name, which imports as an empty one."""
    found = importlib.util.find_spec("tensorrt")
    return found is not None and found.origin is not None


def import_tensorrt() -> Any:
    """The tensorrt module. Raises BackendError with one paragraph where it is missing or broken."""
    try:
        if not is_installed():
            raise ImportError("no module of that name is installed")
        return importlib.import_module("tensorrt")
    except Exception as error:  # a wheel without its libraries raises ImportError, OSError or worse
        raise BackendError(
            f"TensorRT cannot be imported: {' '.join(str(error).split())}. Expected TensorRT 8.5 or newer with its "
            "libraries (pip install overflow-fixer[tensorrt], or the one that came with your container). Or build "
            "the typed model with --backend onnx."
        ) from error


def probe(trt: Any) -> Capabilities:
    """Ask the module. Raises BackendError for one without named inputs and outputs (8.4 and older)."""
    flags = trt.BuilderFlag.__members__
    creation = trt.NetworkDefinitionCreationFlag.__members__
    is_10 = hasattr(trt.OnnxParser, "get_layer_output_tensor")
    found = Capabilities(
        version=str(trt.__version__),
        weak="FP16" in flags and "OBEY_PRECISION_CONSTRAINTS" in flags and hasattr(trt.ILayer, "precision"),
        weak_is_deprecated="E8M0" in trt.DataType.__members__,
        strong="STRONGLY_TYPED" in creation,
        explicit_batch="EXPLICIT_BATCH" in creation and hasattr(trt.Builder, "max_batch_size"),
        named_io=hasattr(trt.ICudaEngine, "num_io_tensors"),
        metadata=hasattr(trt.ILayer, "metadata"),
        progress=hasattr(trt, "IProgressMonitor"),
        parser_flags=hasattr(trt, "OnnxParserFlag"),
        optimization_level=hasattr(trt.IBuilderConfig, "builder_optimization_level"),
        axes_inputs=is_10,
        error_nodes=hasattr(trt.ParserError, "node_operator"),
        normalization_layers=hasattr(trt, "INormalizationLayer"),
        native_instance_norm=is_10,
    )
    if not found.named_io:
        raise BackendError(
            f"TensorRT {found.version} has no named inputs and outputs. Expected 8.5 or newer. Upgrade TensorRT, or "
            "build the typed model with --backend onnx."
        )
    return found


def choose_typing(found: Capabilities, asked: Literal["auto", "weak", "strong"]) -> Typing:
    """The typing mode to build with. Raises BackendError for one that this TensorRT does not have."""
    if asked == "auto":
        return found.default_typing
    if not (found.weak if asked == "weak" else found.strong):
        has = " and ".join(mode for mode, can in (("weak", found.weak), ("strong", found.strong)) if can)
        raise BackendError(
            f"TensorRT {found.version} has no {asked} typing. Expected --typing {has} or auto. Weak typing is gone "
            "from 11; strong typing came with 10."
        )
    return asked

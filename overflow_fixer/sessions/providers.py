"""ONNX Runtime's providers that a session can run on: their options, and whether they load here."""

from __future__ import annotations

import ctypes
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from overflow_fixer.model_file.subgraphs import all_nodes

Provider = Literal["cpu", "cuda", "tensorrt"]

EXECUTION_PROVIDERS: dict[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
"""What ONNX Runtime calls each."""
PLUGIN_DOMAIN = "trt.plugins"
"""Where ONNX Runtime looks for TensorRT's plug-ins."""

_TITLES: dict[Provider, str] = {"cpu": "CPU", "cuda": "CUDA", "tensorrt": "TensorRT"}
_CUDA_OPTIONS = {
    "use_tf32": "0",
    "cudnn_conv_algo_search": "DEFAULT",  # by any other search, what has no plan without TF32 is computed with it
    "arena_extend_strategy": "kSameAsRequested",
    "enable_cuda_graph": "0",
}
_WARNING, _FATAL = 2, 4
_CUDA_FAILURE = re.compile(r"\b(?:CUDA|CUDNN|CUBLAS)\w* failure -?\d+: [^;\n]*\w")


@dataclass(frozen=True)
class ChosenProvider:
    """What sessions are to run on, and in a sentence why that is not what was asked for (None: it is)."""

    provider: Provider
    lack: str | None = None


def choose_provider(asked: Provider) -> ChosenProvider:
    """The provider asked for, if a small model really runs on it here, else the CPU and the reason.

    Touches the GPU unless the CPU is asked for; a process that does must not fork afterwards.
    """
    lack = None if asked == "cpu" else find_lack(asked)
    if lack is None:
        return ChosenProvider(asked)
    return ChosenProvider("cpu", f"The CPU is used and not {_TITLES[asked]}: {lack} (docs/scan-gpu.md).")


def find_lack(provider: Provider) -> str | None:
    """Why no session runs on a provider here, in words that do not end a sentence; None if one does."""
    if EXECUTION_PROVIDERS[provider] not in onnxruntime.get_available_providers():
        return (
            f"the installed onnxruntime {onnxruntime.__version__} comes without the {_TITLES[provider]} provider, "
            "which is in onnxruntime-gpu"
        )
    preload_libraries()
    with quiet_onnxruntime():
        failure = _try(provider)
    return None if failure is None else f"its provider does not load: {failure}"


@cache
def preload_libraries() -> None:
    """Load the CUDA libraries of the nvidia-* packages, where this ONNX Runtime (1.21 or newer) knows how."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None:
        with redirect_stdout(io.StringIO()):  # it prints what it does not find, which may not be needed
            preload()


def list_providers(provider: Provider, op_types: Iterable[str] = ()) -> list[Any]:
    """What to give ONNX Runtime as a session's providers: the one named, and what takes the nodes it cannot.

    CUDA computes in true FP32, with the convolutions that cuDNN falls back to. TensorRT is to take
    none of `op_types`: those of all nodes that are no plug-ins, so that CUDA computes them one by one.
    """
    cpu = EXECUTION_PROVIDERS["cpu"]
    if provider == "cpu":
        return [cpu]
    on_cuda = [(EXECUTION_PROVIDERS["cuda"], dict(_CUDA_OPTIONS)), cpu]
    if provider == "cuda":
        return on_cuda
    options = {"trt_op_types_to_exclude": ",".join(sorted(set(op_types)))}
    return [(EXECUTION_PROVIDERS["tensorrt"], options), *on_cuda]


def find_ordinary_ops(graph: onnx.GraphProto) -> set[str]:
    """The operators of a graph and its bodies that are no plug-ins of TensorRT."""
    return {node.op_type for node in all_nodes(graph) if node.domain != PLUGIN_DOMAIN}


def has_plugins(graph: onnx.GraphProto) -> bool:
    """Whether a node of a graph or its bodies is a plug-in of TensorRT."""
    return any(node.domain == PLUGIN_DOMAIN for node in all_nodes(graph))


def _try(provider: Provider) -> str | None:
    """Run a small model; the reason why that fails, None if it does not."""
    model = _make_trial()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    providers = list_providers(provider, find_ordinary_ops(model.graph))
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=providers, enable_fallback=0
        )
        if EXECUTION_PROVIDERS[provider] in session.get_providers():
            session.run(None, {"x": np.ones((1, 1, 4, 4), np.float32)})
            return None
    except Exception as error:  # onnxruntime raises many unrelated types
        return _find_unloadable(provider) or _shorten(error)
    return _find_unloadable(provider) or "ONNX Runtime opens a session without it and does not say why"


def _make_trial() -> onnx.ModelProto:
    """A model that needs cuDNN and the reductions of a scan."""
    kernel = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 3, 3], [1.0] * 9)
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), helper.make_node("ReduceMax", ["t"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 1])
    graph = helper.make_graph(nodes, "trial", [x], [y], [kernel])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _find_unloadable(provider: Provider) -> str | None:
    """Which library the system's loader misses. Only after ONNX Runtime tried: a provider that it has not
    prepared must not be loaded by others.
    """
    if os.name != "posix":
        return None
    library = Path(onnxruntime.__file__).parent / "capi" / f"libonnxruntime_providers_{provider}.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return None


def _shorten(error: Exception) -> str:
    """CUDA's own words out of ONNX Runtime's, else the first line of these."""
    text = str(error).strip() or type(error).__name__
    found = _CUDA_FAILURE.search(text)
    return found[0] if found else text.splitlines()[0].rstrip(".")


@contextmanager
def quiet_onnxruntime() -> Iterator[None]:
    """Without what ONNX Runtime logs of its own accord; its default afterwards, for it does not tell its level."""
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)

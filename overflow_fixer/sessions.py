"""ONNX Runtime sessions: the one place that opens and runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from overflow_fixer.errors import ModelError
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.records import Array, Batch

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
_ELEM_TYPES = {
    "float": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "double": onnx.TensorProto.DOUBLE,
    "bool": onnx.TensorProto.BOOL,
    "string": onnx.TensorProto.STRING,
    **{
        f"{sign}int{bits}": getattr(onnx.TensorProto, f"{sign.upper()}INT{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def open_session(
    model: onnx.ModelProto | Path, folder: Path, *, optimize: bool = False, by_priority: bool = False
) -> Any:
    """Open a CPU session of a model in memory or in a file; external data is looked up in `folder`.

    optimize: ONNX Runtime's default graph optimisation; off, each node is computed as it stands.
    by_priority: run each node as soon as it can be, so that a probe behind its producer frees it.
    Raises ModelError with ONNX Runtime's own words when it refuses the model.
    """
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    if by_priority:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if isinstance(model, onnx.ModelProto):
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder))
    source = str(model) if isinstance(model, Path) else _serialize(model)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many unrelated types
        raise ModelError(
            f"ONNX Runtime {onnxruntime.__version__} refuses the model: {_first_line(error)}. Expected a model "
            "that it can run on the CPU, since every value is taken from a real run. Run the model in ONNX "
            "Runtime alone to see the same error; custom operators are not supported."
        ) from error


def run_session(session: Any, outputs: Sequence[str] | None, batch: Batch) -> list[Any]:
    """Run one batch and return the outputs asked for (None: all). Raises ModelError naming the batch."""
    try:
        return list(session.run(outputs, {name: _feedable(array) for name, array in batch.feeds.items()}))
    except Exception as error:
        raise ModelError(
            f"The model could not be run on batch {batch.name}: {_first_line(error)}. Expected every batch to run in "
            f"ONNX Runtime {onnxruntime.__version__}. Check that the batch has the shapes the model was made "
            "for; if memory ran out, use a smaller batch."
        ) from error


class SessionRunner:
    """A Runner over a session: all of its outputs, by name. FP32 feeds of FP16 inputs are rounded."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.output_names: tuple[str, ...] = tuple(output.name for output in session.get_outputs())
        self._halves = {given.name for given in session.get_inputs() if given.type == "tensor(float16)"}

    def run(self, batch: Batch) -> dict[str, Array]:
        feeds = {n: round_to_fp16(a) if n in self._halves else a for n, a in batch.feeds.items()}
        batch = Batch(batch.name, feeds)
        return dict(zip(self.output_names, run_session(self._session, None, batch), strict=True))


def mark_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Make inner tensors outputs of the model, in place; ONNX Runtime tells their types itself."""
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in present)


def infer_types(model: onnx.ModelProto, folder: Path, tensors: Sequence[str]) -> dict[str, int]:
    """ONNX Runtime's own word on the element types of `tensors`; what is not a tensor is left out.

    Serves where ONNX shape inference knows nothing (other domains' operators). Raises ModelError when ONNX Runtime refuses the model.
    """
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    mark_outputs(marked, tensors)
    types = {output.name: output.type for output in open_session(marked, folder).get_outputs()}
    return {name: _ELEM_TYPES[kind] for name in tensors if (kind := types[name][7:-1]) in _ELEM_TYPES}


def _feedable(array: Array) -> Any:
    """ONNX Runtime takes BF16, which numpy does not have, only as an OrtValue made of its bits."""
    if not isinstance(array, np.ndarray) or array.dtype.name != "bfloat16":
        return array
    bits = array.view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)


def _serialize(model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        raise ModelError(
            f"The model is too large for one protobuf message ({_first_line(error)}). Expected weights in "
            "external data for a model near 2 GB. Save it with onnx.save(..., save_as_external_data=True)."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__

"""The ways to learn max|x| of every tensor, each as an opener that imports and a scan that is timed.

A scan reads the batches from their .npz files itself and gives max|x| by tensor name, of every float
tensor that it sees; plain inference sees none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Numbers = dict[str, float]
Task = Callable[[Path, Sequence[Path]], Numbers]
"""Takes a model and its batches, and gives numbers by name. What it does is timed."""
Opener = Callable[[], Task]
"""Imports all that the task needs, which is not timed."""


def open_plain() -> Task:
    """Inference as anyone runs it: default optimisation, the model's own outputs."""
    return _plain_inference(optimize=True)


def open_plain_unoptimized() -> Task:
    """Inference with graph optimisation off, the level at which a scan's values are defined."""
    return _plain_inference(optimize=False)


def open_by_hand() -> Task:
    """Every float tensor marked as an output, optimisation off, max|x| in numpy. What exact is held against."""
    import onnx
    import onnxruntime as _  # noqa: F401

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        marked = onnx.load(model)
        inferred = onnx.shape_inference.infer_shapes(marked).graph
        names = [info.name for info in (*inferred.input, *inferred.value_info) if _is_float(info)]
        given = {info.name for info in marked.graph.input}
        marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
        session = _open_session(marked.SerializeToString(), optimize=False)
        outputs = [output.name for output in session.get_outputs()]
        return _fold({**feeds, **_named(outputs, session.run(outputs, feeds))} for feeds in _read(batches))

    return scan


def open_overflow_fixer() -> Task:
    """overflow_fixer.collect_ranges, as it comes."""
    return _ranges_scan("reductions")


def open_overflow_fixer_without_native_probes() -> Task:
    """The same with operators of ONNX alone, as where no C++ compiler was found."""
    scan = _ranges_scan("reductions")

    def scan_without(model: Path, batches: Sequence[Path]) -> Numbers:
        os.environ["OVERFLOW_FIXER_NATIVE"] = "0"
        try:
            return scan(model, batches)
        finally:
            del os.environ["OVERFLOW_FIXER_NATIVE"]

    return scan_without


def open_overflow_fixer_fast() -> Task:
    """The same of the tensors of optimised kernels."""
    return _ranges_scan("optimized")


def open_polygraphy() -> Task:
    """Polygraphy's OnnxrtRunner on the model with every tensor marked, max|x| in numpy."""
    _import_what_polygraphy_imports_late()
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        marked = ModifyOutputs(OnnxFromPath(str(model)), outputs=constants.MARK_ALL)
        with OnnxrtRunner(SessionFromOnnx(BytesFromOnnx(marked))) as runner:
            return _fold(runner.infer(feeds) for feeds in _read(batches))

    return scan


def open_polygraphy_cli() -> Task:
    """`polygraphy run` with every tensor marked and saved as JSON, then max|x| of what the file holds.

    The tool runs in this process, so that its imports are left out as those of all others are.
    """
    _import_what_polygraphy_imports_late()
    from polygraphy.comparator import RunResults
    from polygraphy.tools import main

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        with tempfile.TemporaryDirectory(dir=model.parent) as folder:
            loader, outputs = Path(folder) / "data_loader.py", Path(folder) / "outputs.json"
            loader.write_text(_DATA_LOADER.format(batches=[str(batch) for batch in batches]))
            arguments = ["run", str(model), "--onnxrt", "--onnx-outputs", "mark", "all"]
            arguments += ["--data-loader-script", str(loader), "--save-outputs", str(outputs)]
            if status := main(arguments):
                raise RuntimeError(f"polygraphy run ended with {status}")
            ((_, iterations),) = RunResults.load(str(outputs)).items()
            return _fold(iterations)

    return scan


def open_modelopt() -> Task:
    """The reference runner with which ModelOpt's AutoCast looks for what overflows."""
    _import_what_polygraphy_imports_late()
    import onnx
    from modelopt.onnx.autocast.referencerunner import ReferenceRunner

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        found = ReferenceRunner(onnx.load(model)).run(str(batches[0].parent))
        return {name: float(np.max(np.abs(stats))) for name, stats in found.items()}

    return scan


def open_min_max_calibrater() -> Task:
    """The calibrator of ONNX Runtime's quantisation tools, method MinMax."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader, create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, batches: Sequence[Path]) -> None:
            self._batches = iter(_read(batches))

        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            return next(self._batches, None)

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        with tempfile.TemporaryDirectory(dir=model.parent) as folder:
            calibrator = create_calibrator(model, augmented_model_path=f"{folder}/augmented.onnx")
            calibrator.collect_data(Reader(batches))
            found = calibrator.compute_data().data
        return {name: float(np.max(np.abs(data.range_value))) for name, data in found.items()}

    return scan


SCANS: dict[str, Opener] = {
    "plain": open_plain,
    "plain, optimisation off": open_plain_unoptimized,
    "overflow_fixer": open_overflow_fixer,
    "overflow_fixer, no native probes": open_overflow_fixer_without_native_probes,
    "overflow_fixer --fast": open_overflow_fixer_fast,
    "by hand": open_by_hand,
    "ONNX Runtime MinMaxCalibrater": open_min_max_calibrater,
    "Polygraphy API": open_polygraphy,
    "ModelOpt AutoCast's runner": open_modelopt,
}
ONE_SHOT: dict[str, Opener] = {"Polygraphy CLI": open_polygraphy_cli}
"""Scans that hold every tensor of every batch, and take so long that they get few batches."""

_DATA_LOADER = """
import numpy as np

def load_data():
    for batch in {batches}:
        with np.load(batch) as arrays:
            yield dict(arrays)
"""


def _import_what_polygraphy_imports_late() -> None:
    """Modules that it imports on its first run only, while the clock runs."""
    late = "onnx onnxruntime onnx_graphsurgeon polygraphy.backend.onnx polygraphy.backend.onnxrt"
    for module in (*late.split(), "polygraphy.comparator"):
        import_module(module)


def _ranges_scan(observe: Literal["reductions", "optimized"]) -> Task:
    from overflow_fixer import collect_ranges, load_graph, open_calibration

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        graph = load_graph(model)
        ranges = collect_ranges(graph, open_calibration(batches[0].parent, graph.inputs), observe=observe)
        return {found.tensor: found.max_abs for found in ranges.ranges}

    return scan


def _plain_inference(optimize: bool) -> Task:
    import onnxruntime as _  # noqa: F401

    def infer(model: Path, batches: Sequence[Path]) -> Numbers:
        session = _open_session(str(model), optimize)
        for feeds in _read(batches):
            session.run(None, feeds)
        return {}

    return infer


def _open_session(model: str | bytes, optimize: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _read(batches: Sequence[Path]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    for batch in batches:
        with np.load(batch) as arrays:
            yield dict(arrays)


def _named(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, arrays, strict=True))


def _fold(batches: Iterable[Mapping[str, Any]]) -> Numbers:
    """max|x| over all batches of each tensor that holds floats and is not empty; NaN where one is in it."""
    seen: Numbers = {}
    for tensors in batches:
        for name, array in tensors.items():
            if array.dtype.kind == "f" and array.size:
                seen[name] = float(np.maximum(seen.get(name, 0.0), np.abs(array).max()))
    return seen


def _is_float(info: Any) -> bool:
    return bool(info.type.tensor_type.elem_type == 1)

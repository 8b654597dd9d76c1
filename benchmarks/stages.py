"""What a scan's time goes into, and what comes after it: verification and conversion, by other tools too."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scans import Numbers, Opener, Task
from benchmarks.session_clock import SessionClock


def open_scan_split() -> Task:
    """The scan of overflow_fixer, seconds by part.

    "instrument" ends where ONNX Runtime first opens a session; "open" and "run" are inside ONNX Runtime;
    "other" is the rest: batches read, numbers folded, and what is instrumented anew.
    """
    from overflow_fixer import collect_ranges, load_graph, open_calibration

    def scan(model: Path, batches: Sequence[Path]) -> Numbers:
        laps, clock = _Laps(), SessionClock()
        graph = load_graph(model)
        laps.note("load")
        started = time.perf_counter()
        collect_ranges(graph, open_calibration(batches[0].parent, graph.inputs))
        laps.note("scan")
        instrument = clock.first_opened - started
        known = {"instrument": instrument, "open": clock.open_seconds, "run": clock.run_seconds}
        other = laps.seconds["scan"] - sum(known.values())
        return {"load": laps.seconds["load"], **known, "other": other}

    return scan


def open_verification() -> Task:
    """The FP16 simulation of the typed model beside `model`, and the FP32 reference, compared batch by batch."""
    from overflow_fixer import Tolerance, load_graph, open_calibration, open_reference, open_runner, verify
    from overflow_fixer.records import Artifact

    def check(model: Path, batches: Sequence[Path]) -> Numbers:
        graph = load_graph(model)
        path = typed_path(model)
        candidate = open_runner(Artifact("onnx", path, (path,), (), (), (), 0))
        calibration = open_calibration(batches[0].parent, graph.inputs)
        verify(open_reference(graph), candidate, calibration, Tolerance())
        return {}

    return check


def open_stages() -> Task:
    """Every stage of overflow_fixer in turn, seconds by stage; each Softmax is pinned.

    "load" infers shapes, which else are inferred when the first is asked for; "instrument" is a part of "scan";
    "simulate" opens the simulation and runs every batch.
    """
    from overflow_fixer import (
        PlanPolicy,
        collect_ranges,
        emit,
        load_graph,
        open_calibration,
        open_runner,
        plan_precision,
    )

    def run(model: Path, batches: Sequence[Path]) -> Numbers:
        laps, clock = _Laps(), SessionClock()
        graph = load_graph(model)
        len(graph.sure_shapes)
        laps.note("load")
        calibration = open_calibration(batches[0].parent, graph.inputs)
        started = time.perf_counter()
        ranges = collect_ranges(graph, calibration)
        laps.note("scan")
        instrument = clock.first_opened - started
        plan = plan_precision(graph, ranges, PlanPolicy(include_ops=("Softmax",)))
        laps.note("plan")
        artifact = emit(graph, plan, typed_path(model))
        laps.note("emit")
        runner = open_runner(artifact)
        for batch in calibration:
            runner.run(batch)
        laps.note("simulate")
        return {**laps.seconds, "instrument": instrument}

    return run


def open_autocast() -> Task:
    """AutoCast, file to file, its reference run left out, each Softmax kept in FP32."""
    import onnx
    from modelopt.onnx.autocast import convert_to_mixed_precision

    def convert(model: Path, batches: Sequence[Path]) -> Numbers:
        converted = convert_to_mixed_precision(
            str(model), keep_io_types=True, data_max=math.inf, op_types_to_exclude=["Softmax"]
        )
        onnx.save(converted, typed_path(model))
        return {}

    return convert


def open_onnxconverter() -> Task:
    """onnxconverter_common, file to file, each Softmax kept in FP32 besides the operators it always keeps."""
    import onnx
    from onnxconverter_common import float16

    def convert(model: Path, batches: Sequence[Path]) -> Numbers:
        blocked = [*float16.DEFAULT_OP_BLOCK_LIST, "Softmax"]
        converted = float16.convert_float_to_float16(
            onnx.load(model), keep_io_types=True, op_block_list=blocked
        )
        onnx.save(converted, typed_path(model))
        return {}

    return convert


STAGES: dict[str, Opener] = {
    "scan split": open_scan_split,
    "verification": open_verification,
    "overflow_fixer stages": open_stages,
    "AutoCast": open_autocast,
    "onnxconverter_common": open_onnxconverter,
}


def typed_path(model: Path) -> Path:
    """Where a conversion of `model` is written."""
    return model.with_name(f"{model.stem}.fp16.onnx")


class _Laps:
    """Seconds between one note and the next."""

    def __init__(self) -> None:
        self.seconds: Numbers = {}
        self._last = time.perf_counter()

    def note(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now

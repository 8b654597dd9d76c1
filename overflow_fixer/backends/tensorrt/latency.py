"""Engines timed in turns, so that whatever else the GPU does meets all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from overflow_fixer.backends.tensorrt.cuda import open_device
from overflow_fixer.backends.tensorrt.inspection import EngineLayer
from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.records import Batch, Latency

_WARM_UP = 20
_RUNS = 200
_MOST_MS = 20_000.0


def time_in_turns(runners: Mapping[str, EngineRunner], batch: Batch) -> tuple[Latency, ...]:
    """GPU time of one inference of each engine, between two events on the stream; copies are left out.

    After a warm-up each engine runs once a turn, 200 turns or 20 seconds, at least 10 turns.
    """
    device = open_device()
    for runner in runners.values():
        runner.bind(batch)
    marks = device.create_event(), device.create_event()
    once = sum(_time_once(runner, marks) for runner in runners.values())
    turns = int(min(_RUNS, max(10, _MOST_MS / max(once, 1e-3))))
    for _ in range(min(_WARM_UP, turns)):
        for runner in runners.values():
            _time_once(runner, marks)
    found: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(turns):
        for name, runner in runners.items():
            found[name].append(_time_once(runner, marks))
    return tuple(_summarize(name, times) for name, times in found.items())


def time_layers(trt: Any, runner: EngineRunner, batch: Batch, runs: int = 20) -> dict[str, float]:
    """Milliseconds of each engine layer, the median over runs.

    The profiler runs layers one after the other, which takes longer than the engine as it ships: good for
    shares, not for sums.
    """
    rows: dict[str, list[float]] = {}

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            rows.setdefault(layer_name, []).append(ms)

    runner.bind(batch)
    profiler = Profiler()
    runner.context.profiler = profiler
    for _ in range(runs):
        runner.enqueue()
        open_device().synchronize()
    return {name: float(np.median(times)) for name, times in rows.items()}


def share_of_time(
    layers: Sequence[EngineLayer], times_ms: Mapping[str, float], counts: Callable[[EngineLayer], bool]
) -> float:
    """The share of all layers' time spent in those that count, reformats aside; NaN where none was timed."""
    total = sum(times_ms.get(layer.name, 0.0) for layer in layers)
    mine = (layer for layer in layers if counts(layer) and not layer.is_reformat)
    return sum(times_ms.get(layer.name, 0.0) for layer in mine) / total if total else float("nan")


def _time_once(runner: EngineRunner, marks: tuple[int, int]) -> float:
    device = open_device()
    device.record(marks[0])
    runner.enqueue()
    device.record(marks[1])
    return device.elapsed_ms(*marks)


def _summarize(name: str, times: Sequence[float]) -> Latency:
    p50, p95 = (float(value) for value in np.percentile(times, (50, 95)))
    return Latency(name, p50, p95, len(times))

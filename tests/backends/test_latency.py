"""Timing over a stand-in GPU: engines in turns, layers by the profiler, shares by their time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_tensorrt import Script, fake_tensorrt
from hypothesis import given
from hypothesis import strategies as st
from standin_gpu import StandInDriver, use_standin_gpu

from overflow_fixer.backends.tensorrt.inspection import EngineLayer
from overflow_fixer.backends.tensorrt.latency import share_of_time, time_in_turns, time_layers
from overflow_fixer.records import Batch

BATCH = Batch("batch", {"x": np.zeros((1, 4), np.float32)})


class StandInRunner:
    """An engine that takes `ms` to run and notes each run in a log that all share."""

    def __init__(self, name: str, driver: StandInDriver, log: list[str], ms: Callable[[int], float]) -> None:
        self._name, self._driver, self._log, self._ms = name, driver, log, ms
        self.runs = 0
        self.bound: list[str] = []
        self.context: Any = type("Context", (), {"profiler": None})()

    def bind(self, batch: Batch) -> None:
        self.bound.append(batch.name)

    def enqueue(self) -> None:
        self._log.append(self._name)
        self._driver.elapsed_ms = [self._ms(self.runs)]
        self.runs += 1
        if self.context.profiler is not None:
            self.context.profiler.report_layer_time("conv", self._ms(self.runs))
            self.context.profiler.report_layer_time("relu", 1.0)


@pytest.fixture
def driver() -> Iterator[StandInDriver]:
    with use_standin_gpu(fake_tensorrt("8.6", Script())) as found:
        yield found


def test_engines_take_turns_on_one_batch(driver: StandInDriver) -> None:
    log: list[str] = []
    runners: Any = {name: StandInRunner(name, driver, log, lambda _: 1.0) for name in ("a", "b", "c")}
    found = time_in_turns(runners, BATCH)
    assert log == ["a", "b", "c"] * (len(log) // 3)
    assert [latency.name for latency in found] == ["a", "b", "c"]
    assert [latency.runs for latency in found] == [200] * 3
    assert len(log) == 3 * (1 + 20 + 200)
    assert all(runner.bound == ["batch"] for runner in runners.values())


def test_each_engine_has_its_own_times(driver: StandInDriver) -> None:
    log: list[str] = []
    runners: Any = {
        "even": StandInRunner("even", driver, log, lambda _: 2.0),
        "rising": StandInRunner("rising", driver, log, lambda run: float(max(run - 20, 0))),
    }
    even, rising = time_in_turns(runners, BATCH)
    assert (even.p50_ms, even.p95_ms) == (2.0, 2.0)
    assert (rising.p50_ms, rising.p95_ms) == pytest.approx((100.5, 190.05))


@pytest.mark.parametrize(("ms", "turns"), [(0.0, 200), (50.0, 200), (1000.0, 10), (200.0, 50), (1e5, 10)])
def test_slow_engines_run_less_often(driver: StandInDriver, ms: float, turns: int) -> None:
    """Two engines share the 20 seconds."""
    runners: Any = {name: StandInRunner(name, driver, [], lambda _: ms) for name in "ab"}
    assert [latency.runs for latency in time_in_turns(runners, BATCH)] == [turns] * 2


def test_layers_are_timed_by_their_median(driver: StandInDriver) -> None:
    runner: Any = StandInRunner("a", driver, [], float)
    trt = fake_tensorrt("8.6", Script())
    assert time_layers(trt, runner, BATCH, runs=5) == {"conv": 3.0, "relu": 1.0}
    assert isinstance(runner.context.profiler, trt.IProfiler)
    assert (runner.runs, runner.bound) == (5, ["batch"])


def _layer(name: str, kind: str, *types: str) -> EngineLayer:
    return EngineLayer(name, kind, (), types, kind == "Myelin")


LAYERS = [
    _layer("conv", "CaskConvolution", "fp32", "fp32"),
    _layer("half", "CaskConvolution", "fp16", "fp16"),
    _layer("copy", "Reformat", "fp32", "fp32"),
    _layer("region", "Myelin", "fp32", "fp32"),
]


def test_a_share_is_of_all_the_time_and_leaves_copies_out() -> None:
    times = {"conv": 1.0, "half": 4.0, "copy": 3.0, "region": 2.0, "of another engine": 100.0}
    assert share_of_time(LAYERS, times, lambda layer: layer.is_fp32) == 0.1
    assert share_of_time(LAYERS, times, lambda layer: layer.is_opaque) == 0.2


def test_where_nothing_was_timed_there_is_no_share() -> None:
    assert math.isnan(share_of_time(LAYERS, {}, lambda layer: layer.is_fp32))
    assert math.isnan(share_of_time([], {"conv": 1.0}, lambda layer: True))


@given(times=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4))
def test_shares_are_shares(times: list[float]) -> None:
    told = {layer.name: ms for layer, ms in zip(LAYERS, times, strict=True)}
    shares = [
        share_of_time(LAYERS, told, counts)
        for counts in (lambda la: la.is_fp32, lambda la: la.is_fp16, lambda la: la.is_opaque)
    ]
    copies = told["copy"] / sum(times)
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) + copies == pytest.approx(1.0)

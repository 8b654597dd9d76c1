"""Sums of |a| |b| are measured in the session that observes, which is opened anew for them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save
from onnx import TensorProto, helper
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.ranges import collect_ranges, observers
from overflow_fixer.records import RangeTable

SMALL, LARGE, HUGE = floats(1, 2, 3)[None], floats(20000, 20000, 1)[None], floats(70000, np.nan, 1)[None]
W = np.repeat(floats(2, -2, 1)[:, None], 3, axis=1)
"""Of LARGE an output of 1, and a sum of magnitudes of 80001."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Sessions opened and runs, and how many sessions there were at once."""
    found = {"open_session": 0, "run_session": 0, "at once": 0}
    alive: list[weakref.ref[Any]] = []
    open_session, run_session = observers.open_session, observers.run_session

    def opening(*args: Any, **options: Any) -> Any:
        found["open_session"] += 1
        gc.collect()
        before = sum(ref() is not None for ref in alive)
        found["at once"] = max(found["at once"], before + 1)
        session = open_session(*args, **options)
        alive.append(weakref.ref(session))
        return session

    def running(*args: Any) -> Any:
        found["run_session"] += 1
        return run_session(*args)

    monkeypatch.setattr(observers, "open_session", opening)
    monkeypatch.setattr(observers, "run_session", running)
    return found


def _scan(folder: Path, *fed: Any, observe: Any = "reductions") -> RangeTable:
    nodes = [node("Mul", "x one", "r"), node("MatMul", "r w", "y"), node("MatMul", "r v", "z")]
    constants = {"w": W, "v": np.ascontiguousarray(W[:, :1]), "one": floats(1)}
    model = make_model(nodes, {"x": [1, 3]}, "y z", constants)
    return collect_ranges(
        save(model, folder), InMemoryCalibration(tuple({"x": x} for x in fed)), observe=observe
    )


def _sums(ranges: RangeTable) -> list[float]:
    return [one.seen.max_abs for one in ranges.inner if one.quantity == "products"]


@pytest.mark.parametrize(
    ("probes", "sessions", "runs"), [("native", 1, 4), ("shared", 1, 4), ("operators", 2, 5)]
)
def test_the_first_suspect_opens_the_model_anew_where_nothing_watches_from_within(
    probes: Probes, sessions: int, runs: int, counts: dict[str, int], tmp_path: Path
) -> None:
    """And later batches run once."""
    with use_probes(probes):
        ranges = _scan(tmp_path, SMALL, LARGE, LARGE / 2, LARGE)
    assert _sums(ranges) == pytest.approx([80001] * 2, rel=1e-5)
    assert counts == {"at once": 1, "open_session": sessions, "run_session": runs}


def test_without_a_suspect_nothing_is_opened_anew(counts: dict[str, int], tmp_path: Path) -> None:
    assert all(map(np.isnan, _sums(_scan(tmp_path, SMALL, SMALL))))
    assert (counts["open_session"], counts["run_session"]) == (1, 2)


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("observe", ["reductions", "outputs"])
def test_ranges_are_the_same_whenever_the_first_suspect_comes(
    observe: str, probes: Probes, tmp_path: Path
) -> None:
    fed = (SMALL, HUGE, LARGE)
    with use_probes(probes):
        tables = [_scan(tmp_path, *order, observe=observe) for order in (fed, fed[::-1], (fed[2], *fed[:2]))]
    for table in tables:
        seen = {one.tensor: one for one in table.ranges}
        assert (seen["x"].nan_count, seen["x"].over_fp16_count, seen["x"].max_abs) == (1, 1, 70000)
        assert (seen["r"].nan_count, seen["r"].over_fp16_count, seen["r"].element_count) == (1, 1, 9)
        assert _sums(table) == pytest.approx([80001] * 2, rel=1e-5)
    totals = [[(one.max_abs, one.min, one.max, one.nan_count) for one in table.ranges] for table in tables]
    assert totals[0] == totals[1] == totals[2]


@pytest.mark.parametrize("probes", PROBES)
def test_a_fast_scan_measures_them_in_the_optimised_model(
    probes: Probes, counts: dict[str, int], tmp_path: Path
) -> None:
    """Sixteen channels are laid out in blocks."""
    rng = np.random.default_rng(0)
    v, w = rng.standard_normal((2, 16, 16, 3, 3), np.float32)
    constants = {"v": v, "w": w * np.float32(0.15)}
    nodes = [node("Conv", "x v", "h"), node("Relu", "h", "r"), node("Conv", "r w", "y")]
    graph = save(make_model(nodes, {"x": [1, 16, 9, 9]}, "y", constants), tmp_path)
    x = 25 * rng.standard_normal((1, 16, 9, 9), np.float32)
    data = InMemoryCalibration(({"x": x}, {"x": 40 * x}))
    with use_probes(probes):
        fast = collect_ranges(graph, data, observe="optimized")
    assert counts["at once"] == 1
    exact = _sums(collect_ranges(graph, data, observe="outputs"))
    assert _sums(fast) == pytest.approx(exact, rel=1e-5)
    assert min(exact) > 65504


@pytest.mark.parametrize("probes", PROBES)
def test_what_a_random_model_draws_is_multiplied_as_it_was_observed(
    probes: Probes, counts: dict[str, int], tmp_path: Path
) -> None:
    """It is measured in the one run there is."""
    nodes = [
        node("RandomNormalLike", "x", "r", scale=2e4, seed=1.0),
        node("Concat", "r r", "both", axis=1),
        node("MatMul", "both w", "y"),
    ]
    model = make_model(nodes, {"x": [1, 1]}, "y", {"w": floats(1, -1)[:, None]})
    feeds = tuple({"x": np.zeros((1, 1), np.float32)} for _ in range(20))
    with use_probes(probes):
        ranges = collect_ranges(save(model, tmp_path), InMemoryCalibration(feeds))
    largest = ranges.by_tensor["r"].max_abs
    assert largest <= 65504
    assert _sums(ranges) == [2 * largest]
    assert 2 * largest > 65504
    assert (counts["open_session"], counts["run_session"]) == (1, 20)


@pytest.mark.parametrize("probes", PROBES)
def test_products_in_a_body_are_measured_over_all_its_runs(
    probes: Probes, counts: dict[str, int], tmp_path: Path
) -> None:
    """The second shows what there is."""
    body = make_model([node("MatMul", "s w", "t"), node("Identity", "go", "on")], {}, "t").graph
    del body.output[:]
    body.input.extend(
        [
            _info("i", TensorProto.INT64, []),
            _info("go", TensorProto.BOOL, []),
            _info("s", TensorProto.FLOAT, [1, 3]),
        ]
    )
    body.output.extend([_info("on", TensorProto.BOOL, []), _info("t", TensorProto.FLOAT, [1, 3])])
    w = floats((2, 2, 2), (-2, -2, -2), (1, 1, 0))
    nodes = [node("Loop", "n - x", "y", body=body)]
    model = make_model(nodes, {"x": [1, 3]}, "y", {"w": w, "n": np.int64(3)})
    with use_probes(probes):
        ranges = collect_ranges(
            save(model, tmp_path), InMemoryCalibration(({"x": floats(1, 1, 20000)[None]},))
        )
    (found,) = (one.seen for one in ranges.inner if one.quantity == "products")
    assert found.max_abs == 80000
    once = (1, 1) if probes != "operators" else (1 + 1 + 1, 1 + 3 + 1)
    assert (counts["open_session"], counts["run_session"]) == once


def _info(name: str, elem_type: int, dims: list[int]) -> Any:
    return helper.make_tensor_value_info(name, elem_type, dims)

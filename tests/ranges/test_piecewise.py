"""Sums of |a| |b| with a large constant that is read piece by piece, against numpy in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save
from product_cases import CASES, Case, name_case
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.inner.products import find_products
from overflow_fixer.model_file import reading
from overflow_fixer.ranges import collect_ranges, piecewise, product_sessions, product_sums, product_watch
from overflow_fixer.ranges.piecewise import PiecewiseSum, find_large_factor
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.records import Batch


def _is_cut(case: Case) -> bool:
    held = [value for name, value in case.inputs.items() if name in case.constants]
    return case.op in ("MatMul", "Gemm") and any(value.ndim == 2 for value in held)


CUT = list(filter(_is_cut, CASES))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and a piece is a channel or two."""
    monkeypatch.setattr(reading, "LEAST_BYTES", 32)
    monkeypatch.setattr(product_sums, "_LARGE_BYTES", 1)
    monkeypatch.setattr(product_watch, "_LARGE_BYTES", 1)
    monkeypatch.setattr(piecewise, "PIECE_BYTES", 64)


def _place(case: Case, graph: Any) -> int | None:
    sizes = {name: 0 for name in case.inputs}  # smaller than any constant
    return find_large_factor(graph, find_products(graph)[0], sizes, 1)


@pytest.mark.parametrize("case", CUT, ids=name_case)
def test_pieces_together_are_the_whole(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fed = case.build(tmp_path)
    place = _place(case, graph)
    assert place is not None
    (product,) = find_products(graph)
    values = {name: np.asarray(value) for name, value in case.inputs.items()}
    pieces: list[int] = []
    run = product_sessions.run_session
    monkeypatch.setattr(
        product_sessions,
        "run_session",
        lambda session, outputs, batch: (
            pieces.append(batch.feeds[f"input_{place}"].size) or run(session, outputs, batch)
        ),
    )
    found = PiecewiseSum(graph, product, place, ProductSessions(graph)).measure(Batch("b", fed), values)
    assert found["max_abs"] == pytest.approx(case.exact(), rel=1e-5)
    assert sum(pieces) == case.inputs[product.factors[place]].size
    assert len(pieces) > 1


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("case", CUT, ids=name_case)
def test_a_scan_measures_the_same_in_pieces_where_the_constant_is_the_larger(
    case: Case, probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case.in_range()
    graph, fed = case.build(tmp_path)
    sizes = {name: value.size for name, value in case.inputs.items()}
    place = find_large_factor(graph, find_products(graph)[0], sizes, 1)
    measured: list[Any] = []
    measure = PiecewiseSum.measure
    monkeypatch.setattr(PiecewiseSum, "measure", lambda *given: measured.append(given) or measure(*given))
    with use_probes(probes):
        (found,) = (one.seen for one in collect_ranges(graph, InMemoryCalibration((fed,))).inner)
    assert found.max_abs == pytest.approx(case.exact(), rel=1e-5)
    assert len(measured) == (place is not None)


def test_what_is_counted_is_the_output(tmp_path: Path) -> None:
    model = make_model(
        [node("MatMul", "x w", "y")], {"x": [2, 4]}, "y", {"w": np.full((4, 9), 3e38, np.float32)}
    )
    graph = save(model, tmp_path)
    piecewise_sum = PiecewiseSum(graph, find_products(graph)[0], 1, ProductSessions(graph))
    found = piecewise_sum.measure(Batch("b", {}), {"x": np.ones((2, 4), np.float32)})
    assert (found["element_count"], found["inf_count"], found["nan_count"]) == (18, 18, 0)


@pytest.mark.parametrize("probes", PROBES)
def test_a_constant_that_a_batch_feeds_is_what_it_feeds(probes: Probes, tmp_path: Path) -> None:
    """Of x a part cancels another in the output."""
    w = np.full((4, 9), 400, np.float32)
    model = make_model([node("MatMul", "x w", "y")], {"x": [1, 4], "w": [4, 9]}, "y", {"w": w})
    x = floats(100, -100, 100, -100)[None]
    graph = save(model, tmp_path)
    with use_probes(probes):
        ranges = collect_ranges(graph, InMemoryCalibration(({"x": x}, {"x": x, "w": 2 * w}, {"x": x})))
    (found,) = (one.seen for one in ranges.inner)
    assert (found.max_abs, found.worst_batch) == (320000, 1)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("MatMul", "x w", "y")], {"w": np.ones((2, 2), np.float32)}),  # in the message
        ([node("MatMul", "x x", "y")], {"w": np.ones((8, 8), np.float32)}),
        ([node("MatMul", "x w", "y")], {"w": np.ones((2, 8, 8), np.float32)}),
        ([node("Einsum", "x w", "y", equation="ij,jk->ik")], {"w": np.ones((8, 8), np.float32)}),
    ],
)
def test_others_are_no_large_factors(nodes: Any, constants: Any, tmp_path: Path) -> None:
    graph = save(make_model(nodes, {"x": [8, 8]}, "y", constants), tmp_path)
    (product,) = find_products(graph)
    assert find_large_factor(graph, product, {"x": 0, "w": 0}, 1) is None


@pytest.mark.parametrize(("count", "is_large"), [(63, True), (64, False), (65, False)])
def test_what_must_leave_the_run_is_smaller(count: int, is_large: bool, tmp_path: Path) -> None:
    graph = save(
        make_model([node("MatMul", "x w", "y")], {"x": ["n", 8]}, "y", {"w": np.ones((8, 8), np.float32)}),
        tmp_path,
    )
    found = find_large_factor(graph, find_products(graph)[0], {"x": count, "w": 64}, 1)
    assert (found == 1) is is_large


@pytest.mark.parametrize("probes", PROBES)
def test_like_products_share_a_session(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an exporter noted at each."""
    nodes = []
    for i in range(4):
        nodes += [node("MatMul", f"s{i} w", f"y{i}"), node("Mul", f"y{i} z", f"s{i + 1}")]
        nodes[-2].doc_string = f"line {i}"
        nodes[-2].metadata_props.add(key="scope", value=str(i))
    w = np.full((8, 8), 9000, np.float32)
    w[0] = -9000
    graph = save(make_model(nodes, {"s0": [1, 8]}, "s4", {"w": w, "z": floats(1 / 54000)}), tmp_path)
    opened: list[Any] = []
    open_session = product_sessions.open_session
    monkeypatch.setattr(
        product_sessions, "open_session", lambda *given: opened.append(given) or open_session(*given)
    )
    with use_probes(probes):
        ranges = collect_ranges(graph, InMemoryCalibration(({"s0": np.ones((1, 8), np.float32)},)))
    assert [one.seen.max_abs for one in ranges.inner] == pytest.approx([72000] * 4, rel=1e-5)
    assert len(opened) == 1

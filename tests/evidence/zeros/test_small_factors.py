"""Factors that are small just where the other is large."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, make_model, node, pinned_by, scalar, scan

from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import PlanPolicy, RangeTable
from overflow_fixer.rules.small_value import find_small_values

DECAYS = np.random.default_rng(3).uniform(-24, -1, (4, 32)).astype(np.float32)
X = np.random.default_rng(4).normal(size=(4, 32)).astype(np.float32)
UNDONE = [
    node("Exp", "c", "decay"),
    node("Mul", "x decay", "kept"),
    node("Neg", "c", "minus"),
    node("Exp", "minus", "growth"),
    node("Mul", "kept growth", "y"),
]
CONSTANTS = {
    "zero": scalar(0),
    "large": scalar(1e9),
    "row": np.where(np.arange(32) == 0, 0.5, 1e9).astype(np.float32),
}


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: tuple[np.ndarray, np.ndarray]
) -> tuple[Graph, RangeTable]:
    model = make_model(nodes, {"c": [None, 32], "x": [None, 32]}, "y", CONSTANTS)
    return scan(model, folder, *({"c": c, "x": x} for c, x in batches))


def test_a_decay_that_is_undone_is_told_and_right_with_the_pins(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, UNDONE, (DECAYS, X))
    assert set(pinned_by(find_small_values, graph, ranges)) == {"Exp_decay", "Mul_kept", "Mul_y"}
    planned = plan_precision(graph, ranges, PlanPolicy()).pinned
    fp32 = {name for one in graph.nodes if one.label in planned for name in one.writes}
    assert planned == {"Exp_decay", "Mul_kept", "Exp_growth", "Mul_y"}
    assert not _snr_db(tmp_path, fp32 - {"decay", "kept"}) > 30
    assert _snr_db(tmp_path, fp32) > 50


STD = [
    node("Mul", "x x", "square"),
    node("ReduceMean", "square", "mean", axes=[-1]),
    node("Mul", "mean n", "sum"),
    node("Div", "sum less", "variance"),
    node("Sqrt", "variance", "std"),
    node("Div", "x std", "y"),
]
"""Over the deviation of 32 elements, with the factor 32 / 31 as PyTorch exports it."""


def test_the_product_and_what_makes_as_small_a_number_of_it_again_stay_too(tmp_path: Path) -> None:
    """Of 4 times 1.2e-6 in FP32, and 1.2e-6 in FP16 before it, nothing is won: both ends are to be in FP32."""
    quiet, n = 1e-3 * X, scalar(4000)
    model = make_model(STD, {"x": [None, 32]}, "y", {"n": n, "less": scalar(3999)})
    graph, ranges = scan(model, tmp_path, {"x": X}, {"x": quiet})
    assert set(pinned_by(find_small_values, graph, ranges)) == {
        "ReduceMean_mean",
        "Mul_sum",
        "Div_variance",
        "Sqrt_std",
    } | {"Mul_square"}
    pins = {"square", "mean", "sum", "variance", "std"}
    found = [measure_snr_db(tmp_path / "model.onnx", {"x": quiet}, one) for one in ({"square", "mean"}, pins)]
    assert found[0] < 45 < 60 < found[1]


def test_a_residual_behind_the_product_does_not(tmp_path: Path) -> None:
    nodes = [*UNDONE[:-1], node("Mul", "kept growth", "u"), node("Add", "u x", "y")]
    graph, ranges = _scan(tmp_path, nodes, (DECAYS, X))
    assert set(pinned_by(find_small_values, graph, ranges)) == {"Exp_decay", "Mul_kept", "Mul_u"}


def _snr_db(folder: Path, fp32_nodes: set[str]) -> float:
    return measure_snr_db(folder / "model.onnx", {"c": DECAYS, "x": X}, fp32_nodes)


def test_the_evidence_is_of_the_batch_in_which_the_other_is_largest(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, UNDONE, (DECAYS / 2, X), (DECAYS, X), (DECAYS / 3, X))
    found = ask(find_small_values, graph, ranges)[-1]
    growth, made = np.exp(np.float64(-DECAYS)).max(), np.abs(X).max()
    assert (found.node, found.tensor, found.batch, found.limit) == ("Mul_y", "kept", "batch_1", 2.0**-18)
    assert found.value == pytest.approx(made / growth, rel=1e-5)
    assert found.reason.startswith(f"kept is {found.value:.3g} at most where growth reaches {growth:.6g}")
    assert "which Mul Mul_y makes 2." in found.reason


@pytest.mark.parametrize(("exponent", "is_found"), [(18, False), (19, True)])
def test_it_is_one_below_2_to_the_minus_18(exponent: int, is_found: bool, tmp_path: Path) -> None:
    """The product is 1 where the other factor is 2^18; elsewhere the factor is as large as the product."""
    x = np.where(np.arange(32) == 0, np.float32(2.0**-exponent), np.float32(0.3))[None]
    c = np.where(np.arange(32) == 0, np.float32(2.0**exponent), np.float32(0.7))[None]
    nodes = [node("Abs", "x", "t"), node("Mul", "t c", "y")]
    graph, ranges = _scan(tmp_path, nodes, (c, x))
    assert bool(ask(find_small_values, graph, ranges)) == is_found


LARGE = np.where(np.arange(32) == 0, 0.5, -1e9 * np.abs(X)).astype(np.float32)


@pytest.mark.parametrize(("largest", "is_found"), [(1.0, False), (1.001, True)])
def test_nothing_is_undone_by_a_factor_of_1_and_less(largest: float, is_found: bool, tmp_path: Path) -> None:
    """Cholesky's, of 3e-6 and 0.05: what comes of it is smaller still."""
    c = np.where(np.arange(32) == 0, np.float32(largest), np.float32(1e-7))[None]
    x = np.where(np.arange(32) == 0, np.float32(2.0**-19), np.float32(0.3))[None]
    nodes = [node("Abs", "x", "t"), node("Mul", "t c", "y")]
    graph, ranges = _scan(tmp_path, nodes, (c, x))
    assert (
        bool([one for one in ask(find_small_values, graph, ranges) if "at most where" in one.reason])
        == is_found
    )


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([node("Sigmoid", "c", "s"), node("Mul", "s c", "y")], True),
        (
            [node("Greater", "c zero", "g"), node("Cast", "g", "m", to=1), node("Mul", "m c", "y")],
            False,
        ),  # held
        ([node("Mul", "c x", "y")], False),  # fed
        ([node("Tanh", "x", "t"), node("Mul", "t c", "y")], False),  # small as a whole
        ([node("Tanh", "x", "t"), node("Mul", "t large", "y")], False),
        ([node("Exp", "c", "e"), node("Mul", "e row", "y")], True),
        ([node("Tanh", "c", "t"), node("Mul", "t t", "y")], False),
        ([node("Exp", "c", "e"), node("Mul", "e zero", "y")], False),
    ],
)
def test_other_products(nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    """The first column is 1/2, and the others are far below zero."""
    graph, ranges = _scan(tmp_path, nodes, (LARGE, 1e-9 * X))
    found = [one for one in ask(find_small_values, graph, ranges) if "at most where" in one.reason]
    assert bool(found) == is_found


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_nor_of_what_is_not_finite_or_empty(other: float, tmp_path: Path) -> None:
    broken = DECAYS.copy()
    broken[0, 0] = other
    empty = (DECAYS[:0], X[:0])
    for batch in ((broken, X), empty):
        graph, ranges = _scan(tmp_path, UNDONE, batch)
        assert ask(find_small_values, graph, ranges) == []


@pytest.mark.parametrize(
    ("reader", "is_found"),
    [
        (node("Mul", "p half", "q"), True),
        (node("Mul", "p t", "q"), True),
        (node("Add", "p half", "q"), False),
        (node("Exp", "p", "q"), False),
    ],
)
def test_what_reads_a_small_product_is_told_where_that_shows(
    reader: onnx.NodeProto, is_found: bool, tmp_path: Path
) -> None:
    """The product is 1e-8 and less in the batch: beside 0.5 that is nothing, and e to it is 1."""
    nodes = [node("Abs", "x", "t"), node("Mul", "t c", "p"), reader, node("Identity", "q", "y")]
    model = make_model(nodes, {"c": [None, 32], "x": [None, 32]}, "y", {"half": scalar(0.5)})
    c = np.where(np.arange(32) == 0, np.float32(2), np.float32(1e-9))[None]
    x = np.where(np.arange(32) == 0, np.float32(5e-9), np.float32(0.3))[None]
    graph, ranges = scan(model, tmp_path, {"c": c, "x": x}, {"c": np.ones_like(c), "x": np.ones_like(x)})
    told = [one.node for one in ask(find_small_values, graph, ranges) if "at most where" in one.reason]
    assert "Mul_p" in told
    assert (f"{reader.op_type}_q" in told) == is_found

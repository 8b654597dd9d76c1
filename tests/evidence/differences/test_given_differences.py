"""A difference that is given out, of which FP16 leaves too few steps in every batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.differences.given_differences import find_given_differences
from overflow_fixer.rules.lost_difference import find_lost_differences

PRICES = np.random.default_rng(5).uniform(20, 90, (4, 32)).astype(np.float32)
LATER = (PRICES * np.random.default_rng(6).normal(1, 4e-4, PRICES.shape)).astype(np.float32)
RATIO = node("Div", "b a", "q")
FORMS = {
    "a return": ([RATIO, node("Sub", "q one", "y")], {"Div_q", "Sub_y"}),
    "a return, scaled": ([RATIO, node("Add", "q minus", "d"), node("Mul", "d hundred", "y")], {"Div_q", "Add_d"}),
    "its logarithm": ([RATIO, node("Log", "q", "y")], {"Div_q", "Log_y"}),
    "a difference": ([node("Sub", "b a", "d"), node("Abs", "d", "y")], {"Sub_d"}),
    "one half of it": ([node("Sub", "b a", "d"), node("Split", "d", "z y", axis=1)], {"Sub_d"}),
    "squared, beside a smaller one": (
        [node("Sub", "b a", "d"), node("Mul", "d d", "s"), node("Add", "s tiny", "t"), node("Sqrt", "t", "y")],
        {"Sub_d"},
    ),
    "under a sine, as of angles": (
        [node("Div", "b ninety", "v"), node("Div", "a ninety", "u"), node("Sub", "v u", "d"), node("Sin", "d", "y")],
        {"Div_v", "Div_u", "Sub_d"},
    ),
}  # fmt: skip
HIDDEN = {
    "beside a larger one": [node("Sub", "b a", "d"), node("Add", "d a", "y")],
    "under an exponential": [node("Sub", "b a", "d"), node("Neg", "d", "n"), node("Exp", "n", "y")],
    "as the places of the largest": [
        node("Sub", "b a", "d"),
        node("TopK", "d few", "v i"),
        node("Cast", "i", "y", to=TensorProto.FLOAT),
    ],
    "as a mean": [node("Sub", "b a", "d"), node("ReduceMean", "d", "y", axes=[1])],
    "in a layer": [node("Sub", "b a", "d"), node("MatMul", "d w", "y")],
}
CONSTANTS = {
    "one": scalar(1),
    "minus": scalar(-1),
    "hundred": scalar(100),
    "ninety": scalar(90),
    "tiny": scalar(1e-12),
    "w": np.ones((32, 8), np.float32),
    "few": ints(3),
}


def _scan(folder: Path, nodes: list[onnx.NodeProto], *later: np.ndarray) -> tuple[Any, Any]:
    model = make_model(nodes, {"a": [4, 32], "b": [4, 32]}, "y", CONSTANTS)
    return scan(model, folder, *({"a": PRICES, "b": batch} for batch in later))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_given_out_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    nodes, pinned = FORMS[form]
    graph, ranges = _scan(tmp_path, nodes, LATER)
    assert set(pinned_by(find_lost_differences, graph, ranges)) == pinned
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _snr_db(tmp_path, set()) < 30
    assert _snr_db(tmp_path, fp32) > 40


def _snr_db(folder: Path, fp32_nodes: set[str]) -> float:
    """Behind the nodes named all is FP32, as the difference's own rounding is no matter here."""
    return measure_snr_db(folder / "model.onnx", {"a": PRICES, "b": LATER}, fp32_nodes)


@pytest.mark.parametrize("form", HIDDEN)
def test_what_hides_it_is_not_followed(form: str, tmp_path: Path) -> None:
    assert list(find_given_differences(*_scan(tmp_path, HIDDEN[form], LATER), {})) == []


@pytest.mark.parametrize(
    ("steps", "columns", "is_told"), [(15.5, 32, True), (16.5, 32, False), (15.5, 64, False)]
)
@pytest.mark.parametrize("behind", [[], [node("Concat", "j one4", "y", axis=1)]])
def test_beside_what_is_under_16_steps_it_counts(
    steps: float, columns: int, is_told: bool, behind: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """FP16's steps are 1/1024 from 1 on. Twice as many columns count as what is 1.4 times as large."""
    join = node("Concat", "d c", "j" if behind else "y", axis=1)
    nodes = [RATIO, node("Sub", "q one", "d"), node("Mul", "s size", "c"), join, *behind]
    share = np.random.default_rng(7).uniform(0.4, 1, (4, columns)).astype(np.float32)
    share[0, 0] = 1
    constants = CONSTANTS | {"size": scalar(steps / 1024), "one4": np.full((4, 1), 1e-3, np.float32)}
    shapes = {"a": [4, 32], "b": [4, 32], "s": [4, columns]}
    graph, ranges = scan(
        make_model(nodes, shapes, "y", constants), tmp_path, {"a": PRICES, "b": LATER, "s": share}
    )
    assert bool(list(find_given_differences(graph, ranges, {}))) == is_told


def test_of_several_ways_the_one_with_the_least_beside_it_counts(tmp_path: Path) -> None:
    nodes = [
        RATIO,
        node("Sub", "q one", "d"),
        node("Concat", "a d", "z", axis=1),
        node("Neg", "d", "y"),
        node("Concat", "d a", "v", axis=1),
    ]
    model = make_model(nodes, {"a": [4, 32], "b": [4, 32]}, "y z v", CONSTANTS)
    (found,) = find_given_differences(*scan(model, tmp_path, {"a": PRICES, "b": LATER}), {})
    assert found.made == "the output y tells it"


def test_the_evidence(tmp_path: Path) -> None:
    """The batch is that of the largest difference."""
    graph, ranges = _scan(tmp_path, FORMS["its logarithm"][0], PRICES * np.float32(1.0001), LATER)
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Log_y")
    most = ranges.by_tensor["y"].max_abs
    assert (found.tensor, found.batch, found.value, found.limit) == ("y", "batch_1", most, 32 / 1024)
    assert found.reason.startswith(
        f"y is {most:.6g} at most in that batch, and its terms, up to 1, lose much"
    )
    assert found.reason.endswith("and the output y tells it")


@pytest.mark.parametrize(("factor", "is_told"), [(0.99, True), (1.01, False)])
def test_the_limit_is_32_steps(factor: float, is_told: bool, tmp_path: Path) -> None:
    largest = np.float32(1 + factor * 32 / 1024)
    later = np.where(PRICES.max() == PRICES, PRICES * largest, PRICES).astype(np.float32)
    graph, ranges = _scan(tmp_path, FORMS["a return"][0], later)
    assert bool(list(find_given_differences(graph, ranges, {}))) == is_told


@pytest.mark.parametrize(("factor", "is_told"), [(0.9, False), (1.1, True)])
def test_a_millionth_of_the_terms_is_more_than_fp32_rounds(
    factor: float, is_told: bool, tmp_path: Path
) -> None:
    largest = PRICES.max() * (1 + factor * 2**-20)
    later = np.where(PRICES.max() == PRICES, largest, PRICES).astype(np.float32)
    graph, ranges = _scan(tmp_path, FORMS["a difference"][0], later)
    assert bool(list(find_given_differences(graph, ranges, {}))) == is_told


def test_what_is_an_output_itself_is_told_as_that(tmp_path: Path) -> None:
    model = make_model(FORMS["a difference"][0], {"a": [4, 32], "b": [4, 32]}, "y d", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"a": PRICES, "b": LATER})
    (found,) = find_given_differences(graph, ranges, {})
    assert found.made == "the output d tells it"


def test_beside_a_batch_of_large_ones_the_small_do_not_count(tmp_path: Path) -> None:
    assert list(find_given_differences(*_scan(tmp_path, FORMS["a return"][0], LATER, 2 * PRICES), {})) == []


def test_what_fp32_rounds_is_not_told(tmp_path: Path) -> None:
    noise = np.nextafter(PRICES, np.float32(100))
    assert list(find_given_differences(*_scan(tmp_path, FORMS["a difference"][0], noise), {})) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    later = LATER.copy()
    later[0, 0] = value
    assert list(find_given_differences(*_scan(tmp_path, FORMS["a difference"][0], later), {})) == []


def test_of_equal_numbers_nothing_is_told(tmp_path: Path) -> None:
    assert list(find_given_differences(*_scan(tmp_path, FORMS["a difference"][0], PRICES), {})) == []


VARIANCES = np.random.default_rng(8).uniform(-6, -2, (4, 32)).astype(np.float32)
MEANS = np.random.default_rng(9).normal(size=(4, 32)).astype(np.float32)
ALIKE = {
    "v": VARIANCES,
    "m": MEANS,
    "u": VARIANCES + np.random.default_rng(10).normal(0, 0.02, (4, 32)).astype(np.float32),
    "n": MEANS + np.random.default_rng(11).normal(0, 0.006, (4, 32)).astype(np.float32),
}
DIVERGENCE = [
    node("Add", "minus v", "a"), node("Sub", "a u", "b"), node("Sub", "u v", "c"), node("Exp", "c", "e"), node("Add", "b e", "s"),
    node("Sub", "n m", "d"), node("Mul", "d d", "q"), node("Neg", "v", "g"), node("Exp", "g", "p"), node("Mul", "q p", "l"),
    node("Add", "s l", "y"),
]  # fmt: skip
"""Twice the KL divergence of two Gaussians, of means n and m and logarithms of variances u and v."""


def test_what_is_added_hides_no_difference_that_loses_more(tmp_path: Path) -> None:
    """Here it is fifty times as large, and still less than what −1 + v − u + exp(u − v) loses where v and u are rounded."""
    model = make_model(DIVERGENCE, {name: [4, 32] for name in ALIKE}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, ALIKE)
    assert ranges.by_tensor["l"].max_abs > 40 * ranges.by_tensor["s"].max_abs
    pinned = {"Add_a", "Sub_b", "Sub_c", "Exp_e", "Add_s", "Sub_d"}
    assert pinned <= set(pinned_by(find_lost_differences, graph, ranges))
    assert measure_snr_db(tmp_path / "model.onnx", ALIKE, set("d")) < 21
    assert measure_snr_db(tmp_path / "model.onnx", ALIKE, set("abcesd")) > 55


@pytest.mark.parametrize(("steps", "is_told"), [(15.5, True), (16.5, False)])
def test_16_steps_that_are_added_hide_it(steps: float, is_told: bool, tmp_path: Path) -> None:
    share = np.random.default_rng(7).uniform(0.4, 1, PRICES.shape).astype(np.float32)
    share[0, 0] = 1
    nodes = [RATIO, node("Sub", "q one", "d"), node("Mul", "s size", "c"), node("Add", "d c", "y")]
    shapes = {"a": [4, 32], "b": [4, 32], "s": [4, 32]}
    model = make_model(nodes, shapes, "y", CONSTANTS | {"size": scalar(steps / 1024)})
    graph, ranges = scan(model, tmp_path, {"a": PRICES, "b": LATER, "s": share})
    assert bool(list(find_given_differences(graph, ranges, {}))) == is_told

"""A difference of which layers, sums and norms make what is given out, where FP16 leaves too few steps of it in every batch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.shown_differences import find_shown_differences
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

RANDOM = np.random.default_rng(5)
PRICES = RANDOM.uniform(20, 90, (4, 32)).astype(np.float32)
LATER = (PRICES * RANDOM.normal(1, 4e-4, PRICES.shape)).astype(np.float32)
RETURN = [node("Div", "b a", "q"), node("Sub", "q one", "d")]
GAP = [node("Sub", "b a", "d")]
FORMS: dict[str, tuple[list[onnx.NodeProto], set[str]]] = {
    "a return in a layer": ([*RETURN, node("MatMul", "d w", "h"), node("Tanh", "h", "y")], {"Div_q", "Sub_d"}),
    "with a bias": ([*RETURN, node("Gemm", "d w small", "h"), node("Relu", "h", "y")], {"Div_q", "Sub_d"}),
    "beside a smaller one": ([*GAP, node("Mul", "a tiny", "s"), node("Concat", "d s", "c", axis=1),
        node("MatMul", "c w64", "y")], {"Sub_d"}),
    "a mean of magnitudes": ([*GAP, node("Abs", "d", "m"), node("ReduceMean", "m last", "y")], {"Sub_d"}),
    "a norm": ([*GAP, node("Pow", "d two", "s"), node("ReduceSum", "s last", "t"), node("Sqrt", "t", "y")], {"Sub_d"}),
    "of what layers make": ([node("MatMul", "a e", "u"), node("MatMul", "b e", "v"), node("Sub", "v u", "d"),
        node("ReduceL2", "d last", "y")], {"MatMul_u", "MatMul_v", "Sub_d"}),
}  # fmt: skip
HIDDEN: dict[str, list[onnx.NodeProto]] = {
    "in a sum with what is larger": [*GAP, node("MatMul", "d w32", "h"), node("Add", "h a", "y")],
    "beside a larger one": [*GAP, node("Concat", "d a", "c", axis=1), node("MatMul", "c w64", "y")],
    "under a larger bias": [*RETURN, node("Gemm", "d w large", "h"), node("Tanh", "h", "y")],
    "under a softmax": [*GAP, node("Softmax", "d", "y")],
    "read by nothing": [*GAP, node("MatMul", "d w", "h"), node("Neg", "a", "y")],
}
CONSTANTS = {
    "one": scalar(1),
    "two": scalar(2),
    "tiny": scalar(1e-6),
    "last": ints(-1),
    "small": np.full(8, 1e-5, np.float32),
    "large": np.full(8, 0.5, np.float32),
    "w": RANDOM.normal(0, 0.3, (32, 8)).astype(np.float32),
    "w32": RANDOM.normal(0, 0.3, (32, 32)).astype(np.float32),
    "w64": RANDOM.normal(0, 0.3, (64, 8)).astype(np.float32),
    "e": RANDOM.uniform(0, 0.1, (32, 8)).astype(np.float32),
}


def _scan(folder: Path, nodes: list[onnx.NodeProto], *later: np.ndarray) -> tuple[Graph, RangeTable]:
    model = make_model(nodes, {"a": [4, 32], "b": [4, 32]}, "y", CONSTANTS, 18)
    return scan(model, folder, *({"a": PRICES, "b": batch} for batch in later))


def _is_shown(folder: Path, nodes: list[onnx.NodeProto], *later: np.ndarray) -> bool:
    return bool(list(find_shown_differences(*_scan(folder, nodes, *later), {})))


@pytest.mark.parametrize("form", FORMS)
def test_what_shows_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    nodes, pinned = FORMS[form]
    graph, ranges = _scan(tmp_path, nodes, LATER)
    assert set(pinned_by(find_lost_differences, graph, ranges)) == pinned
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _snr_db(tmp_path, set()) < 30
    assert _snr_db(tmp_path, fp32) > 50


def _snr_db(folder: Path, fp32_nodes: set[str]) -> float:
    return measure_snr_db(folder / "model.onnx", {"a": PRICES, "b": LATER}, fp32_nodes)


@pytest.mark.parametrize("form", HIDDEN)
def test_what_hides_it_is_not_followed(form: str, tmp_path: Path) -> None:
    assert not _is_shown(tmp_path, HIDDEN[form], LATER)


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["a return in a layer"][0], LATER)
    found = ask(find_lost_differences, graph, ranges)[-1]
    returns = LATER / PRICES - np.float32(1)
    assert (found.node, found.tensor, found.batch) == ("Sub_d", "d", "batch_0")
    assert found.value == np.abs(returns).max()
    assert found.limit == 32 / 1024
    assert found.reason.endswith("FP16's steps are 0.000976562 there, and y shows it")


@pytest.mark.parametrize(("steps", "is_found"), [(31.9, True), (32.1, False)])
def test_less_than_32_steps_at_the_largest_term_are_lost(
    steps: float, is_found: bool, tmp_path: Path
) -> None:
    """FP16's steps are 1/16 from 64 on."""
    later = PRICES + np.float32(0.5)
    later[0, 0] = PRICES[0, 0] + np.float32(steps / 16)
    assert _is_shown(tmp_path, FORMS["a norm"][0], later) == is_found


def test_a_batch_in_which_more_is_left_makes_up_for_the_others(tmp_path: Path) -> None:
    assert not _is_shown(tmp_path, FORMS["a norm"][0], LATER, PRICES[::-1])


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(other: float, tmp_path: Path) -> None:
    later = LATER.copy()
    later[0, 0] = other
    assert not _is_shown(tmp_path, FORMS["a norm"][0], later)


def test_what_fp32_itself_rounds_is_none(tmp_path: Path) -> None:
    assert not _is_shown(tmp_path, FORMS["a norm"][0], PRICES * np.float32(1 + 2.0**-22))

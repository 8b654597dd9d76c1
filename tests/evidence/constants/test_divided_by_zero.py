"""Infinities of zeros that FP16 has as well, where something takes them out again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.constants.divided_by_zero import find_infinities_of_zeros
from overflow_fixer.formats import FP16_MIN_NORMAL
from overflow_fixer.rules.non_finite import find_non_finite
from overflow_fixer.rules.vanishing_divisor import find_vanishing_divisors

BELOW = float(np.nextafter(np.float32(FP16_MIN_NORMAL), np.float32(0)))
QUOTIENTS = {
    "Pow": node("Pow", "x power", "r"),
    "Reciprocal": node("Reciprocal", "x", "r"),
    "Div": node("Div", "one x", "r"),
}
FILLED = [node("IsInf", "r", "c"), node("Where", "c zero r", "y")]
COMPARED = [node("Equal", "r inf", "c"), node("Where", "c zero r", "y")]
MOVED = [node("Unsqueeze", "r axis", "m"), node("IsInf", "m", "c"), node("Where", "c zero m", "y")]


def _find(folder: Path, nodes: list[onnx.NodeProto], values: list[float], outputs: str = "y") -> tuple:
    constants = {"power": -0.5, "one": 1, "zero": 0, "inf": math.inf}
    used = {name for one in nodes for name in one.input}
    arrays: dict[str, np.ndarray] = {name: scalar(v) for name, v in constants.items() if name in used}
    arrays |= {"axis": np.asarray([0])} if "axis" in used else {}
    return scan(make_model(nodes, {"x": [None]}, outputs, arrays), folder, {"x": floats(*values)})


@pytest.mark.parametrize("behind", [FILLED, COMPARED, MOVED])
@pytest.mark.parametrize("op", QUOTIENTS)
def test_nothing_is_pinned(op: str, behind: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _find(tmp_path, [QUOTIENTS[op], *behind], [0, 1, 4])
    assert "r" in find_infinities_of_zeros(graph, ranges)
    told = [one for one in ask(find_non_finite, graph, ranges) if one.tensor not in ("inf", "y")]
    assert {one.action for one in told} == {"none"}
    assert all(one.reason.endswith("and they are taken out again") for one in told)
    feeds = {"x": floats(0, 1, 4)}
    right, found = (run(tmp_path / "model.onnx", feeds)["y"] for run in (run_fp32, run_fp16))
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    ("values", "is_known"),
    [
        ([0, FP16_MIN_NORMAL], True),
        ([0, BELOW], False),
        ([0, -1], False),
        ([0, math.inf], False),
        ([0, math.nan], False),
        ([0, 65520], False),
        ([0, 65504], True),
        ([0], False),
        ([1], False),
        ([], False),
    ],
)
def test_boundary(values: list[float], is_known: bool, tmp_path: Path) -> None:
    graph, ranges = _find(tmp_path, [QUOTIENTS["Pow"], *FILLED], values)
    assert find_infinities_of_zeros(graph, ranges) == ({"r"} if is_known else set())


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([node("Mul", "r x", "y")], "y"),
        (FILLED, "y r"),
        ([*FILLED, node("Sqrt", "r", "z")], "y z"),
        ([node("IsInf", "r", "c"), node("Where", "c r x", "y")], "y"),
    ],
)
def test_what_keeps_or_computes_with_them_is_pinned(
    nodes: list[onnx.NodeProto], outputs: str, tmp_path: Path
) -> None:
    graph, ranges = _find(tmp_path, [QUOTIENTS["Pow"], *nodes], [0, 1, 4], outputs)
    assert find_infinities_of_zeros(graph, ranges) == set()
    assert "Pow_r" in pinned_by(find_non_finite, graph, ranges)


def test_a_tiny_dividend_would_be_nan(tmp_path: Path) -> None:
    nodes = [node("Sub", "x x", "nothing"), node("Div", "x nothing", "r"), *FILLED]
    graph, ranges = _find(tmp_path, nodes, [1e-9, 1])
    assert ranges.by_tensor["r"].inf_count == 2
    assert find_infinities_of_zeros(graph, ranges) == set()


def test_what_is_done_with_another_quotient_is_no_matter(tmp_path: Path) -> None:
    others = [node("Div", "one x", "q"), node("Unsqueeze", "q axis", "u"), node("Sqrt", "u", "w")]
    nodes = [QUOTIENTS["Pow"], *MOVED, *others]
    graph, ranges = _find(tmp_path, nodes, [0, 1, 4], "y w")
    assert find_infinities_of_zeros(graph, ranges) == {"r", "m"}
    assert pinned_by(find_non_finite, graph, ranges) == ["Div_q", "Unsqueeze_u", "Sqrt_w"]


def test_a_choice_between_two_is_asked_for_both(tmp_path: Path) -> None:
    nodes = [QUOTIENTS["Pow"], node("Div", "one x", "q"), node("Greater", "x one", "g")]
    nodes += [node("Where", "g r q", "b"), node("Sqrt", "b", "y")]
    graph, ranges = _find(tmp_path, nodes, [0, 1, 4])
    assert ranges.by_tensor["b"].inf_count
    assert find_infinities_of_zeros(graph, ranges) == set()


def test_behind_a_difference_fp16_has_more_zeros_which_no_pin_of_the_quotient_gives_back(
    tmp_path: Path,
) -> None:
    nodes = [node("Sub", "x one", "s"), node("Relu", "s", "d"), node("Div", "one d", "r"), *FILLED]
    graph, ranges = _find(tmp_path, nodes, [1.0004, 1, 1.5])
    assert find_infinities_of_zeros(graph, ranges) == {"r"}
    path, feeds = tmp_path / "model.onnx", {"x": floats(1.0004, 1, 1.5)}
    for pins in (set(), {"r", "y"}):
        np.testing.assert_array_equal(run_fp16(path, feeds, pins)["y"], floats(0, 0, 2))
    np.testing.assert_allclose(run_fp32(path, feeds)["y"], floats(2500, 0, 2), rtol=1e-3)
    assert "Sub_s" in pinned_by(find_vanishing_divisors, graph, ranges)

"""Sums of terms that FP16 makes zero of, and what nodes divide by inside."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar, scan

from overflow_fixer.evidence.zeros.divisors import Divisor, find_divisors
from overflow_fixer.formats import FP16_UNDERFLOW

CONSTANTS = {
    "axes": ints(-1),
    "whole": ints(-1, 1),
    "tiny": scalar(1e-12),
    "held": scalar(1e-3),
    "ones": np.ones((1000, 1), np.float32),
    "other": np.full(1, 1e-3, np.float32),
}


def _find(nodes: list[onnx.NodeProto], folder: Path, *batches: Any) -> list[Divisor]:
    """Of x copied to a, of which the smallest is not taken where zeros come."""
    copy = node("LeakyRelu", "x", "a", alpha=1.0)
    model = make_model([copy, *nodes], {"x": None}, "y", CONSTANTS, 18)
    graph, ranges = scan(model, folder, *({"x": np.asarray(values, np.float32)} for values in batches))
    return list(find_divisors(graph, ranges))


SUMS = {
    "ReduceSum": node("ReduceSum", "a axes", "s"),
    "ReduceL1": node("ReduceL1", "a axes", "s"),
    "MatMul": node("MatMul", "a ones", "s"),
    "Gemm": node("Gemm", "a ones", "s"),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(("share", "is_found"), [(0.5, True), (1.0, True), (1.01, False)])
def test_terms_that_fp16_makes_zero_of(name: str, share: float, is_found: bool, tmp_path: Path) -> None:
    """A thousand of them make a sum that it holds. A zero among them hides that the others are as small."""
    term = np.float32(share * FP16_UNDERFLOW)
    assert (np.float16(term) == 0) == is_found
    quiet = np.full((1, 1000), term)
    found = _find([SUMS[name], node("Exp", "s", "y")], tmp_path, np.ones((1, 1000)), quiet)
    told = [one for one in found if one.tensor == "s"]
    assert [one.is_mean for one in told] == [True] * is_found
    if told:
        least = f"{1000 * term:.3g}"
        assert told[0].least == pytest.approx(float(term), rel=1e-5)
        assert told[0].text == f"s is as small as {least}, a sum of terms of {term:.3g} on average"
        assert told[0].parts == (("a", told[0].least),)


def test_squares_that_fp16_makes_zero_of(tmp_path: Path) -> None:
    nodes = [node("ReduceSumSquare", "a axes", "s"), node("Exp", "s", "y")]
    x = np.full((1, 1000), 1e-4) * np.resize([1, -1], 1000)
    (found,) = _find(nodes, tmp_path, x)
    assert (found.tensor, found.is_mean, found.least) == ("s", True, pytest.approx(1e-8, rel=1e-5))
    assert "a sum of squares of 1e-08 on average" in found.text
    assert found.parts == (("a", pytest.approx(1e-4, rel=1e-5)),)


@pytest.mark.parametrize(
    "values",
    [
        np.full((1, 1000), 1e-6),
        np.zeros((1, 1000)),
        np.full((1, 1000), math.nan),
        np.zeros((0, 1000)),
        np.resize([1.0, -1.0], (1, 1000)) + 1e-9,
        np.float32([1e-6] + [0.0] * 3)[None],
        1e-6,
    ],
    ids=["held", "zeros", "NaN", "empty", "a difference", "few terms", "0-d"],
)
def test_other_sums(values: Any, tmp_path: Path) -> None:
    sums = node("ReduceSum", "a", "s")
    assert [one for one in _find([sums, node("Exp", "s", "y")], tmp_path, values) if one.tensor == "s"] == []


BEHIND: dict[str, tuple[list[onnx.NodeProto], bool]] = {
    "moved": ([node("Unsqueeze", "s axes", "m"), node("Log", "m", "y")], True),
    "guarded in vain": ([node("Max", "s tiny", "g"), node("Log", "g", "y")], False),
    "moved and guarded in vain": (
        [node("Reshape", "s whole", "m"), node("Add", "m tiny", "g"), node("Log", "g", "y")],
        False,
    ),
    "guarded": ([node("Max", "s held", "g"), node("Log", "g", "y")], False),
    "beside others": ([node("Concat", "s other", "g", axis=0), node("Log", "g", "y")], False),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_sum_of_which_the_smallest_is_not_taken(name: str, tmp_path: Path) -> None:
    """A row of zeros hides it, unless it is only moved; where the guard stood in for zero, that tells of it alone."""
    behind, is_told = BEHIND[name]
    x = np.full((3, 1000), 1.3e-9)
    x[0], x[1] = 1, 0
    nodes = [node("ReduceSum", "a axes", "s", keepdims=0), *behind]
    found = [one for one in _find(nodes, tmp_path, x) if one.tensor == "s"]
    assert bool(found) == is_told


@pytest.mark.parametrize("name", BEHIND)
def test_a_sum_without_a_row_of_zeros(name: str, tmp_path: Path) -> None:
    x = np.full((2, 1000), 1.3e-9)
    x[0] = 1
    nodes = [node("ReduceSum", "a axes", "s", keepdims=0), *BEHIND[name][0]]
    (found,) = [one for one in _find(nodes, tmp_path, x) if one.tensor == "s"]
    assert found.is_mean
    assert found.least == pytest.approx(1.3e-9, rel=1e-3)


@pytest.mark.parametrize(("term", "is_mean"), [(1e-12, False), (1e-9, True), (1e-6, None)])
def test_what_is_added_up_under_a_logarithm(term: float, is_mean: bool | None, tmp_path: Path) -> None:
    found = _find([node("ReduceLogSum", "a axes", "y")], tmp_path, np.full((2, 1000), term))
    told = [one for one in found if one.tensor == "y"]
    assert [one.is_mean for one in told] == ([] if is_mean is None else [is_mean])
    for one in told:
        assert one.inside is not None
        assert one.parts == (("a", pytest.approx(term, rel=1e-4)),)


@pytest.mark.parametrize(
    ("largest", "is_found"),
    [
        (1 - 2.0**-12, True),
        (float(np.nextafter(np.float32(1 - 2.0**-12), np.float32(0))), False),
        (1 - 1e-7, True),
        (-(1 - 1e-7), True),
        (1.0, False),
        (math.nan, False),
        (0.0, False),
    ],
)
def test_before_the_pole_of_atanh(largest: float, is_found: bool, tmp_path: Path) -> None:
    """At 1 itself FP32 gives infinity as well."""
    values = np.float32([largest, 0.25])
    assert bool((np.abs(values.astype(np.float16)) == 1).any() and abs(largest) != 1) == is_found
    found = _find([node("Atanh", "a", "y")], tmp_path, values)
    assert bool(found) == is_found
    if found:
        left = 1 - abs(float(np.float32(largest)))
        assert (found[0].least, found[0].limit, found[0].makes) == (left, 2.0**-12, "infinity of it")
        assert found[0].text == f"1 - |a| is as small as {left:.3g}"


def test_no_value_before_the_pole(tmp_path: Path) -> None:
    assert _find([node("Atanh", "a", "y")], tmp_path, np.zeros(0)) == []
    (tmp_path / "one").mkdir()
    assert len(_find([node("Atanh", "a", "y")], tmp_path / "one", 1 - 1e-5)) == 1

"""How much of a difference from a square cancels is measured element by element."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar, scan

from overflow_fixer.records import InnerRange

MEAN = {"keepdims": 0, "axes": [1]}
SQUARES = {
    "Mul": [node("Mul", "m m", "mm")],
    "Pow": [node("Pow", "m two", "mm")],
    "moved and scaled": [node("Mul", "m m", "q"), node("Mul", "q one", "s"), node("Reshape", "s flat", "mm")],
}
NO_SQUARES = {
    "a product": [node("Neg", "m", "n"), node("Mul", "m n", "mm")],
    "a cube": [node("Pow", "m three", "mm")],
    "itself": [node("Identity", "m", "mm")],
}
CONSTANTS = {"one": scalar(1), "two": scalar(2), "three": scalar(3), "flat": ints(-1)}


def _variance(square: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    return [
        node("Mul", "x x", "xx"),
        node("ReduceMean", "xx", "e", **MEAN),
        node("ReduceMean", "x", "m", **MEAN),
        *square,
        node("Sub", "e mm", "v"),
    ]


def _measure(
    folder: Path, square: list[onnx.NodeProto], *batches: np.ndarray, opset: int = 13
) -> list[InnerRange]:
    model = make_model(_variance(square), {"x": ["n", 50]}, "v", CONSTANTS, opset)
    _, ranges = scan(model, folder, *({"x": batch} for batch in batches))
    return [one for one in ranges.inner if one.quantity == "cancellation"]


def _draw(mean: float, deviation: float, rows: int = 4) -> np.ndarray:
    drawn = np.random.default_rng(int(mean)).normal(mean, deviation, (rows, 50))
    return drawn.astype(np.float32)


@pytest.mark.parametrize("form", SQUARES)
@pytest.mark.parametrize("opset", [9, 13, 17])
def test_the_most_of_any_element(form: str, opset: int, tmp_path: Path) -> None:
    quiet = np.concatenate([_draw(1, 3), _draw(5, 0.2, 1)])
    (found,) = _measure(tmp_path, SQUARES[form], _draw(1, 3), quiet, opset=opset)
    exact = quiet.astype(np.float64)
    times = (exact**2).mean(1) / exact.var(1)
    assert (found.node, found.is_bound) == ("Sub_v", False)
    assert found.seen.max_abs == pytest.approx(times[-1], rel=5e-4)  # of what is left FP32 rounds so much
    assert found.seen.worst_batch == 1


@pytest.mark.parametrize("form", NO_SQUARES)
def test_of_other_differences_nothing_is_measured(form: str, tmp_path: Path) -> None:
    assert _measure(tmp_path, NO_SQUARES[form], _draw(1, 3)) == []


def test_what_fp32_does_not_tell_is_left_out(tmp_path: Path) -> None:
    """A row of one number leaves zero, or what FP32 rounds, of either sign; a row of zeros 0 / 0."""
    rows = [np.full((1, 50), number, np.float32) for number in (0, 3, 0.1, 7.3, 1e3 / 3)]
    (found,) = _measure(tmp_path, SQUARES["Mul"], np.concatenate([*rows, _draw(2, 2)]))
    assert 1 < found.seen.max_abs < 4
    assert (found.seen.nan_count, found.seen.inf_count) == (0, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_no_ratio_is_told(value: float, tmp_path: Path) -> None:
    x = _draw(2, 2)
    x[0, 0] = value
    (found,) = _measure(tmp_path, SQUARES["Mul"], x)
    assert 1 < found.seen.max_abs < 4
    assert found.seen.nan_count == 0


def test_an_empty_batch(tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, SQUARES["Mul"], np.empty((0, 50), np.float32), _draw(2, 2))
    assert 1 < found.batch_max_abs[1] < 4
    assert math.isnan(found.batch_max_abs[0])


def test_a_long_way_to_the_square_is_not_followed(tmp_path: Path) -> None:
    """Of a chain of products by constants each could be asked, and all before it."""
    chain = [node("Mul", f"c{i} one", f"c{i + 1}") for i in range(9)]
    square = [node("Mul", "m m", "c0"), *chain, node("Identity", "c9", "mm")]
    assert _measure(tmp_path, square, _draw(1, 3)) == []

"""By how much an ArgMin chooses is measured where that may be a difference; the place alone tells nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.records import InnerRange

B = floats(5, 6, 7, 8)
POINTS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
CONSTANTS = {
    "b": B,
    "zero": scalar(0),
    "half": scalar(0.5),
    "ten": np.full((1, 1, 1, 4), 10, np.float32),
    "low": scalar(-100),
    "all": np.array([True]),
    "none": np.array([False]),
    "last": ints(-1),
    "first": ints(0),
    "rows": ints(6, 4),
    "minus": scalar(-2),
    "ones": np.ones((2, 3, 1), np.float32),
    "right": np.concatenate([POINTS, np.ones((5, 1)), np.square(POINTS).sum(1)[:, None]], 1).T.astype("f4"),
}
X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def _measure(
    folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray, opset: int = 17, length: int | None = 2
) -> list[InnerRange]:
    model = make_model(
        nodes,
        {"x": [length, 3, 4]},
        "i",
        CONSTANTS,
        opset,
        {"i": TensorProto.INT64},
    )
    _, ranges = scan(model, folder, *({"x": batch} for batch in batches))
    return [one for one in ranges.inner if one.seen.element_count]


def _margin(op: str, x: np.ndarray, axis: int) -> float:
    sign = 1 if op == "ArgMax" else -1
    ordered = np.sort(sign * x.astype(np.float64), axis)
    return float((np.take(ordered, -1, axis) - np.take(ordered, -2, axis)).mean())


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
@pytest.mark.parametrize("op", ["ArgMin", "ArgMax"])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_the_mean_of_what_is_between_the_first_and_the_next(
    op: str, axis: int | None, opset: int, tmp_path: Path
) -> None:
    given = {} if axis is None else {"axis": axis}
    nodes = [node("Add", "x b", "s"), node(op, "s", "i", **given)]
    (found,) = _measure(tmp_path, nodes, X, 2 * X, opset=opset)
    margins = [_margin(op, batch + B, axis or 0) for batch in (X, 2 * X)]
    assert (found.node, found.quantity, found.is_bound) == (f"{op}_i", "mean margin", False)
    assert found.batch_max_abs.tolist() == pytest.approx(margins, rel=1e-5)
    assert found.seen.max_abs == pytest.approx(max(margins), rel=1e-5)


def test_behind_moves_and_bounds_too(tmp_path: Path) -> None:
    nodes = [
        node("Sub", "x b", "s"),
        node("Max", "s zero", "r"),
        node("Neg", "r", "n"),
        node("ArgMax", "n", "i", axis=2),
    ]
    (found,) = _measure(tmp_path, nodes, 9 * X)
    assert found.seen.max_abs == pytest.approx(_margin("ArgMin", np.maximum(9 * X - B, 0), 2), rel=1e-5)


@pytest.mark.parametrize(
    "move",
    [
        node("Abs", "s", "r"),
        node("Relu", "s", "r"),
        node("Clip", "s low", "r"),
        node("Max", "s low", "r"),
        node("Max", "low s", "r"),
        node("Where", "all s low", "r"),
        node("Where", "none low s", "r"),
        node("Reshape", "s rows", "r"),
        node("Transpose", "s", "r", perm=[0, 2, 1, 3]),
        node("Squeeze", "s first", "r"),
        node("Unsqueeze", "s first", "r"),
        node("Flatten", "s", "r", axis=3),
        node("Identity", "s", "r"),
        node("Cast", "s", "r", to=TensorProto.FLOAT),
    ],
    ids=lambda move: f"{move.op_type} {move.input[0]}",
)
def test_each_move_and_bound_is_passed(move: onnx.NodeProto, tmp_path: Path) -> None:
    nodes = [node("Add", "x ten", "s"), move, node("ArgMin", "r", "i", axis=-1)]
    (found,) = _measure(tmp_path, nodes, X)
    assert found.seen.max_abs == pytest.approx(_margin("ArgMin", X, 2), rel=1e-5)


@pytest.mark.parametrize("root", [node("Sqrt", "s", "r"), node("Pow", "s half", "r")], ids=["Sqrt", "Pow"])
def test_behind_a_root_it_is_that_of_the_squares(root: onnx.NodeProto, tmp_path: Path) -> None:
    nodes = [node("Sum", "x b", "s"), root, node("Neg", "r", "n"), node("ArgMax", "n", "i", axis=2)]
    (found,) = _measure(tmp_path, nodes, X)
    assert found.seen.max_abs == pytest.approx(_margin("ArgMin", X + B, 2), rel=1e-5)


def test_of_distances_as_one_product(tmp_path: Path) -> None:
    """As PyTorch exports cdist."""
    nodes = [
        node("ReduceSumSquare", "x", "a", axes=[2]),
        node("Mul", "x minus", "m"),
        node("Concat", "m a ones", "left", axis=2),
        node("MatMul", "left right", "d"),
        node("ArgMin", "d", "i", axis=2),
    ]
    (found,) = _measure(tmp_path, nodes, X)
    distances = np.square(X[:, :, None].astype(np.float64) - POINTS).sum(-1)
    assert found.seen.max_abs == pytest.approx(_margin("ArgMin", distances, 2), rel=1e-4)


@pytest.mark.parametrize("op", ["ArgMin", "ArgMax"])
def test_of_two_that_are_alike_it_is_zero(op: str, tmp_path: Path) -> None:
    x = np.zeros((2, 3, 4), np.float32)
    nodes = [node("Sub", "x zero", "s"), node(op, "s", "i", axis=2)]
    (found,) = _measure(tmp_path, nodes, x)
    assert found.seen.max_abs == 0


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ArgMin", "x", "i")],
        [node("Relu", "x", "r"), node("ArgMin", "r", "i")],
        [node("ReduceMax", "x", "m", axes=[2]), node("Add", "m zero", "s"), node("ArgMin", "s", "i", axis=2)],
    ],
    ids=["no sum", "behind a function", "one element"],
)
def test_of_others_nothing_is_measured(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert _measure(tmp_path, nodes, X) == []


def test_a_long_way_to_the_sum_is_not_followed(tmp_path: Path) -> None:
    """Of a chain of such nodes each could be asked, and all before it."""
    chain = [node("Neg", f"s{i}", f"s{i + 1}") for i in range(9)]
    nodes = [node("Add", "x b", "s0"), *chain, node("ArgMin", "s9", "i", axis=2)]
    assert _measure(tmp_path, nodes, X) == []


def test_of_rows_of_any_length_nothing_is_measured(tmp_path: Path) -> None:
    """They may have one element, and the model would not run."""
    nodes = [node("Add", "x b", "s"), node("ArgMin", "s", "i", axis=0)]
    assert _measure(tmp_path, nodes, X, length=None) == []


def test_before_opset_11_nothing_is_measured(tmp_path: Path) -> None:
    """No TopK chose the least there."""
    nodes = [node("Add", "x b", "s"), node("ArgMin", "s", "i", axis=2)]
    assert _measure(tmp_path, nodes, X, opset=10) == []


def test_nan_and_infinities_are_counted(tmp_path: Path) -> None:
    x = X.copy()
    x[0, 0, 0] = math.inf
    nodes = [node("Add", "x b", "s"), node("ArgMax", "s", "i", axis=2)]
    (found,) = _measure(tmp_path, nodes, x, np.full_like(x, math.nan))
    assert (found.seen.nan_count, found.seen.inf_count, found.seen.max_abs) == (1, 1, math.inf)


def test_an_empty_batch(tmp_path: Path) -> None:
    nodes = [node("Add", "x b", "s"), node("ArgMin", "s", "i", axis=2)]
    (found,) = _measure(tmp_path, nodes, X[:0], X, length=None)
    assert found.batch_max_abs[1] == pytest.approx(_margin("ArgMin", X + B, 2), rel=1e-5)
    assert np.isnan(found.batch_max_abs[0])

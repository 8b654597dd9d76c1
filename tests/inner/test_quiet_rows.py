"""How little of a row of features is left less a statistic of it, against an independent computation in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.records import InnerRange

GENERATOR = np.random.default_rng(4)
QUIET = np.stack([GENERATOR.normal(1013, 0.5, (3, 40)), GENERATOR.normal(-180, 90, (3, 40))], 2).astype("f4")
LOUD = GENERATOR.normal(0, 5, (3, 40, 2)).astype(np.float32)
CONSTANTS = {
    "scale": np.ones(2, np.float32),
    "bias": np.zeros(2, np.float32),
    "axis": ints(1),
    "one": scalar(1),
    "hundredth": scalar(0.01),
    "low": scalar(-1e6),
    "w": np.eye(2, dtype=np.float32),
    "shape": ints(3, 1, 2),
    "zero": np.asarray(0, np.int64),
    "last": ints(2),
    "forty": ints(40),
    "none": ints(),
}
OPS = ("ReduceMean", "ReduceMin", "ReduceMax")


def _measure(
    folder: Path, nodes: list[onnx.NodeProto], *batches: Any, opset: int = 17, output: str = "d"
) -> list[InnerRange]:
    model = make_model(nodes, {"x": [None, None, 2]}, output, CONSTANTS, opset)
    _, ranges = scan(model, folder, *({"x": batch} for batch in batches))
    return [one for one in ranges.inner if one.quantity == "row cancellation"]


def _find_times(x: np.ndarray, op: str, axis: int = 1) -> float:
    exact = x.astype(np.float64)
    left = np.ptp(exact, axis) * (0.5 if op == "ReduceMean" else 1)
    return float((np.abs(exact).max(axis) / left).max())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_the_most_of_any_row(op: str, opset: int, tmp_path: Path) -> None:
    reduced = node(op, "x axis", "s") if opset == 18 else node(op, "x", "s", axes=[1])
    (found,) = _measure(tmp_path, [reduced, node("Sub", "x s", "d")], LOUD, QUIET, opset=opset)
    assert (found.node, found.is_bound) == ("Sub_d", False)
    assert found.batch_max_abs.tolist() == pytest.approx(
        [_find_times(x, op) for x in (LOUD, QUIET)], rel=2e-4
    )


NORMS: dict[str, tuple[list[onnx.NodeProto], int]] = {
    "InstanceNormalization": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("InstanceNormalization", "t scale bias", "d")],
        1,
    ),
    "LayerNormalization": ([node("LayerNormalization", "x scale bias", "d")], 2),
    "MeanVarianceNormalization": ([node("MeanVarianceNormalization", "x", "d", axes=[1])], 1),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("native", ["0", "1"])
def test_inside_a_normalisation(
    norm: str, native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", native)
    nodes, axis = NORMS[norm]
    batch = QUIET if axis == 1 else QUIET[:, :, :1] + np.float32([0, 3])
    (found,) = _measure(tmp_path, nodes, batch)
    assert found.seen.max_abs == pytest.approx(_find_times(batch, "ReduceMean", axis), rel=1e-4)


def test_of_groups(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("GroupNormalization", "t scale bias", "d", num_groups=2),
    ]
    (found,) = _measure(tmp_path, nodes, QUIET, opset=21)
    assert found.seen.max_abs == pytest.approx(_find_times(QUIET, "ReduceMean"), rel=1e-4)


def test_what_is_between_the_largest_and_the_least(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMax", "x", "h", axes=[1]),
        node("ReduceMin", "x", "l", axes=[1]),
        node("Sub", "h l", "d"),
    ]
    (found,) = _measure(tmp_path, nodes, QUIET)
    exact = QUIET.astype(np.float64)
    times = np.abs(exact.max(1)) / (exact.max(1) - exact.min(1))
    assert found.seen.max_abs == pytest.approx(times.max(), rel=1e-4)


MOVED = {
    "its axes put back": [
        node("ReduceMean", "x", "m", axes=[1], keepdims=0),
        node("Unsqueeze", "m axis", "u"),
        node("Expand", "u shape", "e"),
        node("Sub", "x e", "d"),
    ],
    "of features that are moved": [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("ReduceMean", "t", "m", axes=[2]),
        node("Sub", "t m", "d"),
    ],
    "of some of them": [
        node("Gather", "x zero", "first", axis=2),
        node("Unsqueeze", "first last", "c"),
        node("Slice", "c axis forty axis", "t"),
        node("ReduceMean", "t", "m", axes=[1]),
        node("Sub", "t m", "d"),
    ],
    "of one of two": [
        node("Split", "x", "t other", axis=2),
        node("ReduceMean", "t", "m", axes=[1]),
        node("Sub", "t m", "d"),
    ],
    "over all": [node("ReduceMean", "x", "m", keepdims=0), node("Sub", "x m", "d")],
    "scaled and bounded by constants": [
        node("Mul", "hundredth x", "s"),
        node("Div", "s scale", "q"),
        node("Clip", "q low", "t"),
        node("ReduceMean", "t", "m", axes=[1]),
        node("Sub", "t m", "d"),
    ],
}
OTHERS = {
    "of what a layer gives out": [
        node("MatMul", "x w", "f"),
        node("ReduceMean", "f", "m", axes=[1]),
        node("Sub", "f m", "d"),
    ],
    "of a product of data": [
        node("Mul", "x x", "f"),
        node("ReduceMean", "f", "m", axes=[1]),
        node("Sub", "f m", "d"),
    ],
    "of a reciprocal": [
        node("Div", "one x", "f"),
        node("ReduceMean", "f", "m", axes=[1]),
        node("Sub", "f m", "d"),
    ],
    "of a constant": [
        node("Constant", "", "c", value_floats=[1.0, 2.0]),
        node("Mul", "c scale", "f"),
        node("ReduceMean", "f", "m", axes=[0]),
        node("Sub", "f m", "g"),
        node("Add", "x g", "d"),
    ],
    "of something else": [
        node("Mul", "x x", "xx"),
        node("ReduceMean", "xx", "m", axes=[1]),
        node("Sub", "x m", "d"),
    ],
    "a sum": [node("ReduceMean", "x", "m", axes=[1]), node("Add", "x m", "d")],
    "the largest of all taken from it": [
        node("ReduceMax", "x", "m", axes=[1]),
        node("Sub", "m x", "d"),
    ],
    "a constant": [node("Sub", "x one", "d")],
    "one of nothing": [node("ReduceMax", "x none", "m", noop_with_empty_axes=1), node("Sub", "x m", "d")],
    "no statistic": [node("ReduceSum", "x axis", "m"), node("Sub", "x m", "d")],
}


@pytest.mark.parametrize("form", MOVED)
def test_moved(form: str, tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, MOVED[form], QUIET)
    assert found.seen.max_abs > (1 if form == "over all" else 500)


@pytest.mark.parametrize("form", OTHERS)
def test_others(form: str, tmp_path: Path) -> None:
    opset = 18 if form == "one of nothing" else 17  # from which on the axes are an input
    assert _measure(tmp_path, OTHERS[form], QUIET, opset=opset) == []


def test_axes_that_the_model_computes_are_not_followed(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s", start=0, end=1),
        node("Sub", "s s", "nought"),
        node("Add", "nought axis", "a"),
        node("ReduceMean", "x a", "m"),
        node("Sub", "x m", "d"),
    ]
    assert _measure(tmp_path, nodes, QUIET, opset=18) == []


@pytest.mark.parametrize(
    ("batch", "times"),
    [
        (np.full((1, 5, 2), 7, np.float32), 0),
        (np.full((1, 100_000, 2), 0.1, np.float32), 0),  # its mean is off in FP32
        (np.zeros((1, 5, 2), np.float32), 0),
        (np.full((1, 5, 2), math.nan, np.float32), 0),
        (np.float32([[[1, 1], [1 + 2**-18, 1]]]), 0),  # as little as FP32 rounds
        (np.float32([[[1, 1], [1 + 2**-10, 1]]]), 2050),
    ],
)
def test_what_fp32_does_not_tell(batch: np.ndarray, times: float, tmp_path: Path) -> None:
    nodes = [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m", "d")]
    (found,) = _measure(tmp_path, nodes, batch)
    assert found.seen.max_abs == pytest.approx(times, rel=1e-3)


def test_of_less_than_the_root_of_epsilon_a_norm_makes_little(tmp_path: Path) -> None:
    x = np.float32([[[1, 1.01], [100, 100.5]]])  # 0.005 and 0.25 from their mean
    for epsilon, times in ((1e-6, 402), (1e-3, 402), (1.0, 0)):
        nodes = [node("LayerNormalization", "x scale bias", "d", epsilon=epsilon)]
        (found,) = _measure(tmp_path, nodes, x)
        assert found.seen.max_abs == pytest.approx(times, rel=1e-3)
    (found,) = _measure(tmp_path, [node("LayerNormalization", "x scale bias", "d", epsilon=1e-4)], x[:, :1])
    assert found.seen.max_abs == 0


def test_what_a_body_reads_is_not_taken_for_fed(tmp_path: Path) -> None:
    result = onnx.helper.make_tensor_value_info("d", TensorProto.FLOAT, None)
    norm = node("LayerNormalization", "f scale bias", "d")
    branches = {
        f"{word}_branch": onnx.helper.make_graph([norm], word, [], [result]) for word in ("then", "else")
    }
    nodes = [node("MatMul", "x w", "f"), node("If", "c", "y", **branches)]
    inputs = {"x": [None, None, 2], "c": (TensorProto.BOOL, [])}
    model = make_model(nodes, inputs, "y", CONSTANTS, 17)
    _, ranges = scan(model, tmp_path, {"x": QUIET, "c": np.asarray(True)})
    assert [one for one in ranges.inner if one.quantity == "deviation"]
    assert not [one for one in ranges.inner if one.quantity == "row cancellation"]


def test_empty(tmp_path: Path) -> None:
    nodes = [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m", "d")]
    (found,) = _measure(tmp_path, nodes, np.zeros((0, 5, 2), np.float32))
    assert found.seen.element_count == 0

"""Quiet rows of features beside loud ones, normalised row by row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.row_differences import find_row_differences
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(3)
CONSTANTS = {
    "eps": scalar(1e-5),
    "one": scalar(1),
    "zero": scalar(0),
    "half": scalar(0.5),
    "minus": scalar(-0.5),
    "first": ints(0),
    "scale": np.ones(2, np.float32),
    "bias": np.zeros(2, np.float32),
    "eye": np.eye(2, dtype=np.float32),
    "w": GENERATOR.normal(size=(2, 2)).astype(np.float32),
}
MEAN = [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m", "d")]
DEVIATION = [
    node("Mul", "d d", "dd"),
    node("ReduceMean", "dd", "v", axes=[1]),
    node("Add", "v eps", "g"),
    node("Sqrt", "g", "s"),
]
SCALED = {
    "by the deviation": [*MEAN, *DEVIATION, node("Div", "d s", "y")],
    "by one over it": [*MEAN, *DEVIATION, node("Reciprocal", "s", "q"), node("Mul", "d q", "y")],
    "by one over it, from the left": [*MEAN, *DEVIATION, node("Div", "one s", "q"), node("Mul", "q d", "y")],
    "by one over it, or one": [
        *MEAN,
        *DEVIATION,
        node("Equal", "s zero", "c"),
        node("Where", "c one s", "k"),
        node("Div", "one k", "q"),
        node("Mul", "d q", "y"),
    ],
    "by a power": [*MEAN, *DEVIATION[:3], node("Pow", "g minus", "q"), node("Mul", "d q", "y")],
    "moved before": [*MEAN, *DEVIATION, node("Identity", "d", "i"), node("Div", "i s", "y")],
    "by the range": [
        node("ReduceMax", "x", "h", axes=[1]),
        node("ReduceMin", "x", "m", axes=[1]),
        node("Sub", "h m", "s"),
        node("Sub", "x m", "d"),
        node("Div", "d s", "y"),
    ],
    "inside an InstanceNormalization": [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("InstanceNormalization", "t scale bias", "n"),
        node("Transpose", "n", "y", perm=[0, 2, 1]),
    ],
}
RANGE = [
    node("ReduceMax", "x", "h", axes=[1]),
    node("ReduceMin", "x", "m", axes=[1]),
    node("Sub", "h m", "d"),
]
NOT_SCALED = {
    "given out": [*MEAN, node("Identity", "d", "y")],
    "a layer": [*MEAN, node("MatMul", "d w", "y")],
    "multiplied by the deviation": [*MEAN, *DEVIATION, node("Mul", "d s", "y")],
    "divided by what is of all rows": [
        *MEAN,
        node("Mul", "d d", "dd"),
        node("ReduceMean", "dd", "v", keepdims=0),
        node("Sqrt", "v", "s"),
        node("Div", "d s", "y"),
    ],
    "divided by its mean, guarded": [*MEAN, node("Add", "m eps", "g"), node("Div", "d g", "y")],
    "the range, divided by the largest, guarded": [
        *RANGE,
        node("Add", "h eps", "g"),
        node("Unsqueeze", "g first", "u"),
        node("Squeeze", "u first", "v"),
        node("Div", "d v", "y"),
    ],
    "multiplied by one over the largest": [*RANGE, node("Div", "one h", "q"), node("Mul", "d q", "y")],
    "divided by the largest, or by one": [
        *RANGE,
        node("Equal", "d zero", "c"),
        node("Where", "c one h", "g"),
        node("Div", "d g", "y"),
    ],
    "squared": [*MEAN, node("Mul", "d d", "y")],
    "scaled by a constant": [*MEAN, node("Div", "d half", "y")],
    "divided by another input": [*MEAN, node("Div", "d z", "y")],
}


def _draw(deviation: float, rows: int = 3) -> np.ndarray:
    """Of two features: 1013 with such a deviation, and 0 with 30."""
    quiet, loud = (GENERATOR.normal(*of, (rows, 50)) for of in ((1013, deviation), (0, 30)))
    return np.stack([quiet, loud], 2).astype(np.float32)


def _scan(folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray) -> tuple[Any, Any]:
    inputs = {"x": [None, None, 2], "z": [1]}
    model = make_model(nodes, inputs, "y", CONSTANTS, 17)
    return scan(model, folder, *({"x": batch, "z": np.full(1, 3, np.float32)} for batch in batches))


@pytest.mark.parametrize("form", SCALED)
def test_a_quiet_feature_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SCALED[form], _draw(30), _draw(0.3))
    assert len(list(find_row_differences(graph, ranges))) == (2 if form == "by the range" else 1)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    feeds = {"x": _draw(0.3), "z": np.full(1, 3, np.float32)}
    assert measure_snr_db(tmp_path / "model.onnx", feeds) < 20
    assert measure_snr_db(tmp_path / "model.onnx", feeds, fp32) > 45


@pytest.mark.parametrize("form", NOT_SCALED)
def test_what_is_not_scaled_up_is_no_matter(form: str, tmp_path: Path) -> None:
    assert list(find_row_differences(*_scan(tmp_path, NOT_SCALED[form], _draw(0.3)))) == []


RESTORED = {
    "as it is": [node("Add", "fs m", "y")],
    "from the left": [node("Add", "m fs", "y")],
    "moved": [
        node("Identity", "m", "i"),
        node("Add", "fs i", "r"),
        node("Transpose", "r", "y", perm=[1, 0, 2]),
    ],
}


@pytest.mark.parametrize("form", RESTORED)
def test_where_the_mean_is_added_again_what_is_given_out_stays_too(form: str, tmp_path: Path) -> None:
    """Rows of 1013 whose FP16 has steps of a half."""
    between = [node("Div", "d s", "n"), node("MatMul", "n eye", "f"), node("Mul", "f s", "fs")]
    nodes = [*MEAN, *DEVIATION, *between, *RESTORED[form]]
    graph, ranges = _scan(tmp_path, nodes, _draw(0.3))
    restoring = {one.op_type + "_" + one.output[0] for one in RESTORED[form]}
    assert set(pinned_by(find_lost_differences, graph, ranges)) == {"ReduceMean_m", "Sub_d", *restoring}


def test_what_is_added_to_the_mean_inside_is_no_matter(tmp_path: Path) -> None:
    nodes = [
        *SCALED["by the deviation"][:-1],
        node("Div", "d s", "n"),
        node("Add", "n m", "a"),
        node("Tanh", "a", "y"),
    ]
    graph, ranges = _scan(tmp_path, nodes, _draw(0.3))
    assert set(pinned_by(find_lost_differences, graph, ranges)) == {"ReduceMean_m", "Sub_d"}


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SCALED["by the deviation"], _draw(30), _draw(0.3))
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_d")
    times = float(ranges.inner_of["Sub_d"]["row cancellation"].seen.max_abs)
    assert (found.tensor, found.value, found.limit, found.batch) == ("d", times, 64, "batch_1")
    assert found.reason == (
        f"a row of x is {times:.6g} times as large as what is left of it less m, over the limit of 64: FP16 has less than "
        "32 steps for that, and Div Div_y scales it up"
    )


def _alternate(times: float) -> np.ndarray:
    """[1, 4, 2], of which each row is so many times as large as it is far from its mean."""
    left = 1000 / (times - 1)
    signs = np.float64([1, -1, 1, -1])[None, :, None]
    return np.asarray(1000 + left * signs * np.ones((1, 4, 2)), np.float32)


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([_alternate(63.9)], False),
        ([_alternate(64.1)], True),
        ([-_alternate(64.1)], True),
        ([_alternate(3), _alternate(100), _alternate(3)], True),
        ([np.full((1, 4, 2), 1000.1, np.float32)], False),
        ([np.zeros((0, 4, 2), np.float32)], False),
        ([_alternate(100), np.full((1, 4, 2), math.nan, np.float32)], False),
        ([_alternate(100), np.full((1, 4, 2), math.inf, np.float32)], False),
        ([np.round(_alternate(100))], False),  # integers up to 2048 are held
    ],
)
def test_boundary(batches: list[np.ndarray], is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SCALED["by the deviation"], *batches)
    assert bool(list(find_row_differences(graph, ranges))) is is_found


def test_rounding_leaves_a_row_of_that_under_30_db() -> None:
    """Where the row is 64 times as large as what is left of it, and about as far in FP16's numbers as it can be."""
    x = 1023.9 - np.abs(GENERATOR.normal(0, 6, 100_000)).clip(0, 16)
    x, left = x.astype(np.float32), x - x.mean()
    error = x.astype(np.float16).astype(np.float64) - x
    snr_db = 10 * np.log10(np.square(left).sum() / np.square(error).sum())
    assert 25 < snr_db < 32

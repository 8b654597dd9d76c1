"""What a Softmax loses by logits with a bias that grows with the place, against an independent computation in float64."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.records import InnerRange

SLOPES = np.array([2.0**-n for n in (1, 2, 4, 8)], np.float32)[:, None, None]
PLACES = [
    node("Shape", "x", "dims"),
    node("Gather", "dims last", "length"),
    node("Range", "zero_int length one_int", "range"),
    node("Add", "range first", "places"),
]
SCALED = [*PLACES, node("Cast", "places", "p", to=TensorProto.FLOAT), node("Mul", "p slopes", "bias")]
CONSTANTS = {
    "last": ints(3)[0],
    "zero_int": ints(0)[0],
    "one_int": ints(1)[0],
    "slopes": SLOPES,
    "hide": scalar(-10000),
    "lowest": scalar(-3.4e38),
    "half": scalar(0.5),
    "is_later": np.triu(np.ones((600, 600), bool), 1),
    "fixed": (SLOPES * np.arange(-599, 1)).astype(np.float32),
    "mask": np.triu(np.full((600, 600), -10000, np.float32), 1),
    "table": np.linspace(-9, 9, 8, dtype=np.float32)[:, None],
}
GENERATOR = np.random.default_rng(0)
SCORES = [GENERATOR.normal(size=(1, 4, 600, 600)).astype(np.float32) for _ in range(2)]


def _measure(
    folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray, first: int = 0
) -> list[InnerRange]:
    constants = {**CONSTANTS, "first": ints(first)[0]}
    model = make_model(nodes, {"x": [None] * 4, "m": (TensorProto.INT64, [None] * 4)}, "y", constants, 13)
    feeds = ({"x": one, "m": np.ones((1, 1, 1, 600), np.int64)} for one in batches)
    _, ranges = scan(model, folder, *feeds)
    return [one for one in ranges.inner if one.quantity == "softmax loss"]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _lose(logits: np.ndarray) -> float:
    right = _softmax(logits.astype(np.float64))
    found = _softmax(np.maximum(logits, -65504).astype(np.float16).astype(np.float64))
    return float(np.sqrt(np.square(found - right).sum() / np.square(right).sum()))


ADDED = [*SCALED, node("Add", "x bias", "s")]
MASKED = [*ADDED, node("Where", "is_later lowest s", "l"), node("Softmax", "l", "y")]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("first", [0, 3000])
def test_is_that_of_rounded_logits(
    first: int, is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", str(int(is_native)))
    (found,) = _measure(tmp_path, MASKED, *SCORES, first=first)
    bias = (first + np.arange(600)).astype(np.float32) * SLOPES
    is_later = np.triu(np.ones((600, 600), bool), 1)
    expected = [_lose(np.where(is_later, np.float32(-3.4e38), one + bias)) for one in SCORES]
    assert np.allclose(found.batch_max_abs, expected, rtol=1e-4)
    assert max(expected) > 0.01


def test_a_row_that_is_masked_as_a_whole_loses_nothing(tmp_path: Path) -> None:
    hidden = np.full((1, 4, 600, 600), -3.4e38, np.float32)
    nodes = [*ADDED, node("Softmax", "s", "y")]
    (found,) = _measure(tmp_path, nodes, hidden)
    assert found.seen.max_abs == 0


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("logit", "is_told"),
    [(math.nan, False), (math.inf, False), (65520, False), (65504, True), (-65520, True), (-math.inf, True)],
)
def test_what_is_not_finite_in_fp16_is_told_of_no_batch(
    logit: float, is_told: bool, is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an empty batch; of those before and after it the loss is as it is without it."""
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", str(int(is_native)))
    broken = SCORES[0].copy()
    broken[0, 0, 5, 0] = logit
    nodes = [*ADDED, node("Softmax", "s", "y")]
    (found,) = _measure(tmp_path, nodes, SCORES[0], broken, SCORES[0][..., :0, :0], SCORES[0], first=0)
    assert np.isfinite(found.batch_max_abs).tolist() == [True, is_told, False, True]
    assert 0 < found.batch_max_abs[0] == found.batch_max_abs[3] == pytest.approx(found.seen.max_abs, rel=0.01)


COUNTED = {
    "behind a mask that is added": [*ADDED, node("Add", "s mask", "l"), node("Softmax", "l", "y")],
    "scaled": [*ADDED, node("Mul", "s half", "l"), node("Softmax", "l", "y")],
    "a constant": [node("Add", "x fixed", "s"), node("Softmax", "s", "y")],
    "of which one is moved": [
        node("Unsqueeze", "fixed axis", "f"),
        node("Add", "x f", "s"),
        node("Softmax", "s", "y"),
    ],
    "a count": [
        node("CumSum", "m last", "c"),
        node("Cast", "c", "p", to=TensorProto.FLOAT),
        node("Mul", "p slopes", "bias"),
        node("Add", "x bias", "s"),
        node("Softmax", "s", "y"),
    ],
}
NOT_COUNTED = {
    "a constant mask": [node("Add", "x mask", "s"), node("Softmax", "s", "y")],
    "a mask of the data": [
        node("Cast", "m", "f", to=TensorProto.FLOAT),
        node("Mul", "f hide", "h"),
        node("Add", "x h", "s"),
        node("Softmax", "s", "y"),
    ],
    "a bias of a table": [
        *PLACES,
        node("Mod", "places eight", "bucket"),
        node("Gather", "table bucket", "g"),
        node("Squeeze", "g axis_one", "b"),
        node("Add", "x b", "s"),
        node("Softmax", "s", "y"),
    ],
    "scores alone": [node("Mul", "x half", "s"), node("Softmax", "s", "y")],
    "a LogSoftmax": [*ADDED, node("LogSoftmax", "s", "y")],
}
CONSTANTS |= {"axis": ints(0), "axis_one": ints(1), "eight": ints(8)[0]}


@pytest.mark.parametrize("form", COUNTED)
def test_what_grows_with_the_place(form: str, tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, COUNTED[form], *SCORES)
    assert 0 < found.seen.max_abs < math.inf


@pytest.mark.parametrize("form", NOT_COUNTED)
def test_what_does_not(form: str, tmp_path: Path) -> None:
    assert _measure(tmp_path, NOT_COUNTED[form], *SCORES) == []

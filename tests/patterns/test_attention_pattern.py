"""Of attention, the mask and its softmax are one region; the products and the scale before the mask are not in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.attention import find_attention

DIMS = [2, 4, 4]
CONSTANTS = {
    "eight": scalar(8),
    "low": scalar(-1e9),
    "one": scalar(1),
    "bias": np.zeros((4, 4), np.float32),
    "flat": ints(2, 4, 4),
    "last": ints(-1),
}
SCORES = [node("MatMul", "q k", "s"), node("Div", "s eight", "t")]
VALUES = [node("MatMul", "p v", "y")]


def attention_graph(folder: Path, *between: onnx.NodeProto, after: list[onnx.NodeProto] = VALUES) -> Graph:
    inputs: dict[str, object] = {name: DIMS for name in "qkv"} | {
        "mask": [2, 1, 4],
        "c": (TensorProto.BOOL, DIMS),
    }
    return save(make_model([*SCORES, *between, *after], inputs, "y", CONSTANTS, opset=13), folder)


MASKED = {
    "added": [node("Add", "t mask", "u"), node("Softmax", "u", "p")],
    "added first": [node("Add", "mask t", "u"), node("Softmax", "u", "p")],
    "subtracted": [node("Sub", "t mask", "u"), node("Softmax", "u", "p")],
    "replaced": [node("Where", "c low t", "u"), node("Softmax", "u", "p")],
    "twice, moved between": [
        node("Add", "t bias", "u"),
        node("Reshape", "u flat", "w"),
        node("Add", "w mask", "z"),
        node("Reshape", "z flat", "r"),
        node("Softmax", "r", "p"),
    ],
    "scaled behind the mask": [
        node("Add", "t mask", "u"),
        node("Mul", "u one", "w"),
        node("Softmax", "w", "p"),
    ],
    "written out": [
        node("Add", "t mask", "u"),
        node("ReduceMax", "u", "m", axes=[-1]),
        node("Sub", "u m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e last", "n"),
        node("Div", "e n", "p"),
    ],
}


@pytest.mark.parametrize("name", MASKED)
def test_the_mask_and_its_softmax_are_one_region(name: str, tmp_path: Path) -> None:
    (region,) = find_attention(attention_graph(tmp_path, *MASKED[name]))
    assert region.nodes == tuple(at.name for at in MASKED[name])
    assert (region.kind, region.source, region.output) == ("attention", "t", "p")


def test_probabilities_may_be_moved_and_mended_before_the_product(tmp_path: Path) -> None:
    after = [
        node("Dropout", "p", "pd"),
        node("Where", "c low pd", "pw"),
        node("Transpose", "pw", "pt", perm=[0, 2, 1]),
        node("MatMul", "pt v", "y"),
    ]
    (region,) = find_attention(attention_graph(tmp_path, *MASKED["added"], after=after))
    assert region.nodes == ("Add_u", "Softmax_p")


@pytest.mark.parametrize(
    ("between", "after"),
    [
        ([node("Softmax", "t", "p")], VALUES),
        ([node("Add", "t mask", "u"), node("Sigmoid", "u", "p")], VALUES),
        ([node("Add", "q mask", "u"), node("Softmax", "u", "p")], VALUES),
        (MASKED["added"], [node("Exp", "p", "y")]),
    ],
)
def test_what_lacks_a_part_is_none(
    between: list[onnx.NodeProto], after: list[onnx.NodeProto], tmp_path: Path
) -> None:
    assert list(find_attention(attention_graph(tmp_path, *between, after=after))) == []


def test_a_classifier_with_a_bias_is_noattention_graph(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "s"), node("Add", "s b", "t"), node("Softmax", "t", "y")]
    weights = {"w": np.ones((3, 2), np.float32), "b": floats(1, 2)}
    assert list(find_attention(save(make_model(nodes, {"x": [1, 3]}, "y", weights), tmp_path))) == []

"""Squared distances as one product of matrices are known by the squares that are joined to ones and vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar

from overflow_fixer.graph.distances import find_joined_squares, find_joining
from overflow_fixer.graph.model import Graph

ONE = onnx.numpy_helper.from_array(np.ones(1, np.float32))
ONES = np.ones((4, 1), np.float32)
CONSTANTS = {
    "last": ints(-1),
    "two": scalar(2),
    "minus": scalar(-2),
    "one": scalar(1),
    "column": ints(4, 1),
    "ones": ONES,
    "twos": 2 * ONES,
    "half": scalar(0.5),
    "vectors": np.ones((4, 3), np.float32),
    "empty": np.ones((0, 1), np.float32),
    "none": ints(),
    "p": np.arange(12, dtype=np.float32).reshape(4, 3),
}
SQUARES = [node("Pow", "x two", "xx"), node("ReduceSum", "xx last", "a"), node("Mul", "x minus", "m")]
JOINED = node("Concat", "m a ones", "left", axis=1)
RIGHT = [
    node("Mul", "p p", "pp"),
    node("ReduceSum", "pp last", "b"),
    node("Concat", "p ones b", "joined", axis=1),
    node("Transpose", "joined", "right"),
]
PRODUCT = node("MatMul", "left right", "y")
FORMS = {
    "as exported": ([*SQUARES, JOINED, *RIGHT, PRODUCT], ("a", "b")),
    "of what is fed": ([*SQUARES, JOINED, node("MatMul", "left w", "y")], ("a",)),
    "ones of any shape": (
        [*SQUARES, node("Expand", "one column", "e"), node("Concat", "m a e", "left", axis=1), *RIGHT, PRODUCT],
        ("a", "b"),
    ),
    "ones in a shape of the data": (
        [*SQUARES, node("ConstantOfShape", "column", "e", value=ONE), node("Concat", "m a e", "left", axis=1), *RIGHT, PRODUCT],
        ("a", "b"),
    ),
    "coordinate by coordinate": (
        [*SQUARES, node("Concat", f"{' '.join(['v'] * 30)} a ones", "left", axis=1), *RIGHT, PRODUCT],
        ("a", "b"),
    ),
    "by ReduceSumSquare": (
        [node("ReduceSumSquare", "x last", "a"), SQUARES[2], JOINED, *RIGHT, PRODUCT],
        ("a", "b"),
    ),
    **{
        f"moved by {move.op_type}": (
            [node("ReduceSumSquare", "x last", "s", keepdims=keepdims), move, SQUARES[2], JOINED, node("MatMul", "left w", "y")],
            ("a",),
        )
        for move, keepdims in (
            (node("Transpose", "s", "a", perm=[0, 1]), 1),
            (node("Reshape", "s column", "a"), 1),
            (node("Flatten", "s", "a"), 1),
            (node("Squeeze", "s none", "a"), 1),
            (node("Unsqueeze", "s last", "a"), 0),
            (node("Expand", "s column", "a"), 1),
            (node("Identity", "s", "a"), 1),
            (node("Cast", "s", "a", to=onnx.TensorProto.FLOAT), 1),
        )
    },
}  # fmt: skip
OTHERS = {
    "joined to no ones": [
        *SQUARES,
        node("Concat", "m a twos", "left", axis=1),
        node("MatMul", "left w", "y"),
    ],
    "joined to vectors of ones": [
        *SQUARES,
        node("Concat", "m a vectors", "left", axis=1),
        node("MatMul", "left w", "y"),
    ],
    "joined to nothing": [
        *SQUARES[:2],
        node("Concat", "a empty", "left", axis=0),
        node("MatMul", "left w", "y"),
    ],
    "joined to vectors alone, and the vectors to ones": [
        *SQUARES,
        node("Concat", "m a", "left", axis=1),
        node("Concat", "p ones", "joined", axis=1),
        node("Transpose", "joined", "right"),
        PRODUCT,
    ],
    "added to ones": [*SQUARES, node("Sum", "m a ones", "left"), node("MatMul", "left w", "y")],
    "no squares": [SQUARES[2], node("Concat", "m v ones", "left", axis=1), node("MatMul", "left w", "y")],
    "joined to many others": [
        *SQUARES,
        node("Concat", f"m a {' '.join(['ones'] * 31)}", "left", axis=1),
        node("MatMul", "left w", "y"),
    ],
    "not joined": [node("MatMul", "left w", "y")],
    "added": [*SQUARES, JOINED, node("Add", "left left", "y")],
}


def _graph(folder: Path, nodes: list[onnx.NodeProto]) -> Graph:
    inputs = {"x": [4, 3], "w": [5, 4], "v": [4, 1], "left": [4, 5]}
    written = {name for one in nodes for name in one.output}
    fed = {name: shape for name, shape in inputs.items() if name not in written}
    return save(make_model(nodes, fed, "y", CONSTANTS, opset=18), folder)


@pytest.mark.parametrize("form", FORMS)
def test_the_squares_are_found(form: str, tmp_path: Path) -> None:
    nodes, squares = FORMS[form]
    graph = _graph(tmp_path, nodes)
    assert find_joined_squares(graph, graph.nodes[-1]) == squares


@pytest.mark.parametrize("form", OTHERS)
def test_other_nodes_have_none(form: str, tmp_path: Path) -> None:
    graph = _graph(tmp_path, OTHERS[form])
    assert [find_joined_squares(graph, one) for one in graph.nodes] == [()] * len(graph.nodes)
    assert [one.label for each in graph.nodes for one in find_joining(graph, each)] == []


def test_what_joins_the_operands_and_nothing_that_computes_them(tmp_path: Path) -> None:
    """Each once: the negative is scaled, and joined as well."""
    nodes = [
        *SQUARES[:2],
        node("Neg", "x", "n"),
        node("Mul", "n two", "h"),
        node("Div", "h half", "m"),
        node("Mul", "x v", "weighted"),
        node("Concat", "m n weighted a ones", "left", axis=1),
        *RIGHT,
        PRODUCT,
    ]
    graph = _graph(tmp_path, nodes)
    joining = [one.outputs[0] for one in find_joining(graph, graph.nodes[-1])]
    assert sorted(joining) == ["h", "joined", "left", "m", "n", "right"]

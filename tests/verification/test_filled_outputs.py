"""Which constants a model fills its outputs with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.graph.model import load_graph
from overflow_fixer.verification.filled_outputs import find_fills

CONSTANTS = {
    "low": scalar(-1e9),
    "one": np.array([[7.0]], np.float32),
    "five": scalar(5),
    "none": scalar(0),
    "zero": scalar(0),
    "high": scalar(2000),
    "infinite": scalar(-np.inf),
    "several": np.array([1, 2], np.float32),
    "shape": ints(1, 2),
}
MASK = {"x": ["N", 2], "m": (TensorProto.BOOL, ["N", 2])}


@pytest.mark.parametrize(
    ("nodes", "fills"),
    [
        ([node("Mul", "x low", "k"), node("Add", "x k", "y")], (-1e9,)),
        ([node("Mul", "low x", "k"), node("Add", "k x", "y")], (-1e9,)),
        ([node("Mul", "x high", "k"), node("Sub", "x k", "y")], (-2000.0,)),
        ([node("Where", "m low zero", "k"), node("Add", "x k", "y")], (-1e9,)),
        (
            [
                node("Mul", "x low", "a"),
                node("Unsqueeze", "a", "b", axes=[1]),
                node("Squeeze", "b", "k", axes=[1]),
                node("Add", "x k", "z"),
                node("Identity", "z", "y"),
            ],
            (-1e9,),
        ),
        ([node("Mul", "x high", "k"), node("Add", "x k", "y")], ()),
        ([node("Mul", "x low", "k"), node("Sub", "x k", "y")], ()),
        ([node("Mul", "x low", "k"), node("Sub", "k x", "y")], ()),
        ([node("Mul", "x high", "k"), node("Sub", "k x", "y")], ()),
        ([node("Mul", "x one", "k"), node("Add", "x k", "y")], ()),
        ([node("Mul", "x x", "k"), node("Add", "x k", "y")], ()),
        ([node("Add", "x low", "y")], ()),
        ([node("Mul", "x low", "k"), node("Add", "x k", "z"), node("Neg", "z", "y")], ()),
    ],
    ids=str,
)
def test_masks_that_are_added(nodes: list[Any], fills: tuple[float, ...], tmp_path: Path) -> None:
    save(make_model(nodes, MASK, "y", CONSTANTS, opset=12), tmp_path)
    assert find_fills(load_graph(tmp_path / "model.onnx")) == ({"y": fills} if fills else {})


@pytest.mark.parametrize(
    ("nodes", "fills"),
    [
        ([node("Where", "m low x", "y")], {"y": (-1e9,)}),
        ([node("Where", "m x one", "y")], {"y": (7.0,)}),
        ([node("Where", "m low x", "a"), node("Transpose", "a", "y")], {"y": (-1e9,)}),
        ([node("Where", "m low x", "a"), node("Where", "m a one", "y")], {"y": (-1e9, 7.0)}),
        ([node("Where", "m low x", "a"), node("Concat", "x a", "y", axis=1)], {"y": (-1e9,)}),
        ([node("Expand", "low shape", "e"), node("Where", "m e x", "y")], {"y": (-1e9,)}),
        ([node("Where", "m low one", "y")], {}),
        ([node("Where", "m low one", "a"), node("Where", "m a x", "y")], {"y": (-1e9, 7.0)}),
        (
            [node("Where", "m low one", "a"), node("Neg", "x", "b"), node("Where", "m b a", "y")],
            {"y": (-1e9, 7.0)},
        ),
        (
            [
                node("Where", "m low one", "a"),
                node("Identity", "a", "b"),
                node("Where", "m b five", "c"),
                node("Where", "m x c", "y"),
            ],
            {"y": (-1e9, 5.0, 7.0)},
        ),
        ([node("Where", "m low one", "a"), node("Where", "m a five", "y")], {"y": (5.0,)}),
        (
            [
                node("Where", "m low one", "a"),
                node("Where", "m one five", "b"),
                node("Where", "m a b", "y"),
            ],
            {},
        ),
        ([node("Where", "m low one", "a"), node("Concat", "x a", "y", axis=1)], {}),
        ([node("Where", "m none x", "y")], {}),
        ([node("Where", "m infinite x", "y")], {}),
        ([node("Where", "m several x", "y")], {}),
        ([node("Where", "m low x", "a"), node("Softmax", "a", "y")], {}),
        ([node("Neg", "x", "a"), node("Where", "m a x", "y")], {}),
        ([node("Identity", "x", "y")], {}),
    ],
    ids=str,
)
def test_fills(nodes: list[Any], fills: dict[str, tuple[float, ...]], tmp_path: Path) -> None:
    save(make_model(nodes, MASK, "y", CONSTANTS), tmp_path)
    assert find_fills(load_graph(tmp_path / "model.onnx")) == fills


def test_outputs_that_are_not_of_floats_have_none(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "i", to=TensorProto.INT64), node("Where", "m top i", "y")]
    model = make_model(nodes, MASK, "y", {"top": ints(3)}, output_types={"y": TensorProto.INT64})
    save(model, tmp_path)
    assert find_fills(load_graph(tmp_path / "model.onnx")) == {}

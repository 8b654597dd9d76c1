"""Roots of what a constant that FP16 makes zero of keeps from zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto, helper

from overflow_fixer.rules.vanishing_constant import find_vanishing_constants

CONSTANTS = {
    "eps": scalar(1e-12),
    "zero": scalar(0),
    "half": scalar(0.5),
    "one": scalar(1),
    "floor": scalar(1e-4),
    "tiny": scalar(1e-9),
    "last": ints(-1),
    "w": np.eye(3, dtype=np.float32),
    "w0": floats(1, 2, 3),
    "bias": floats(0.5, 0.2, 0.1),
}
LENGTHS = [node("Mul", "x x", "q"), node("Add", "q eps", "a")]


@pytest.mark.parametrize("root", [node("Sqrt", "a", "r"), node("Pow", "a half", "r")], ids=["Sqrt", "Pow"])
@pytest.mark.parametrize(
    ("behind", "is_pinned"),
    [
        ([node("Cos", "r", "y")], False),
        ([node("MatMul", "r w", "m"), node("Add", "m bias", "y")], False),
        ([node("Gemm", "r w bias", "y")], False),
        ([node("Concat", "r one3", "c", axis=-1), node("Exp", "c", "y")], False),
        ([node("Add", "r one", "m"), node("Log", "m", "y")], False),
        ([node("Identity", "r", "y")], True),
        ([node("MatMul", "r w", "y")], True),
        ([node("ReduceMean", "r", "m", axes=[-1]), node("Neg", "m", "y")], True),
        ([node("Div", "x r", "y")], True),
        ([node("MatMul", "r w", "m"), node("Log", "m", "y")], True),
        ([node("Max", "r floor", "m"), node("Log", "m", "y")], True),
        ([node("Add", "r tiny", "m"), node("Div", "x m", "y")], True),
        ([node("Abs", "x", "b"), node("Add", "r b", "m"), node("Div", "x m", "y")], True),
        ([node("Neg", "x", "b"), node("Sub", "r b", "m"), node("Div", "x m", "y")], True),
        ([node("Sigmoid", "x", "s"), node("Add", "r s", "m"), node("Div", "x m", "y")], False),
        ([node("Sub", "one r", "m"), node("Log", "m", "y")], False),
        ([node("Greater", "r tiny", "m"), node("Where", "m x one", "y")], True),
        ([node("Equal", "zero r", "m"), node("Where", "m x one", "y")], True),
        ([node("Cast", "r", "m", to=TensorProto.BOOL), node("Where", "m x one", "y")], True),
        ([node("Sign", "r", "m"), node("Exp", "m", "y")], True),
        ([node("LayerNormalization", "r w0", "m", epsilon=1e-12), node("Exp", "m", "y")], True),
        ([node("LayerNormalization", "r w0", "m", epsilon=1e-5), node("Exp", "m", "y")], False),
        (
            [
                node("Cast", "r", "m", to=TensorProto.DOUBLE),
                node("Cast", "m", "n", to=1),
                node("Exp", "n", "y"),
            ],
            False,
        ),
        ([node("Less", "r half", "m"), node("Where", "m x one", "y")], False),
        ([node("Cos", "r", "c"), node("Div", "x r", "d"), node("Add", "c d", "y")], True),
        ([node("QuickGelu", "r", "y", domain="com.microsoft")], True),
        ([node("Sigmoid", "x", "s"), node("Div", "r s", "d"), node("Exp", "d", "y")], False),
    ],
)
def test_a_root_that_nothing_divides_by_may_be_zero(
    root: onnx.NodeProto, behind: list[onnx.NodeProto], is_pinned: bool, tmp_path: Path
) -> None:
    """The distance of an atom to itself, behind which there are cosines and layers: a network that is right in FP16."""
    constants = CONSTANTS | {"one3": floats(1, 1, 1)[None]}
    model = make_model([*LENGTHS, root, *behind], {"x": [1, 3]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 0.5, 1)[None]})
    pins = pinned_by(find_vanishing_constants, graph, ranges)
    assert ({"Add_a", f"{root.op_type}_r"} <= set(pins)) is is_pinned
    assert is_pinned or not pins


def test_a_root_that_a_body_reads_may_be_divided_by(tmp_path: Path) -> None:
    branches = {
        f"{which}_branch": helper.make_graph(
            [node("Div", "one r", f"{which}_y")],
            which,
            [],
            [helper.make_tensor_value_info(f"{which}_y", TensorProto.FLOAT, None)],
        )
        for which in ("then", "else")
    }
    nodes = [*LENGTHS, node("Sqrt", "a", "r"), node("If", "yes", "y", **branches)]
    model = make_model(nodes, {"x": [1, 3]}, "y", CONSTANTS | {"yes": np.asarray(True)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 0.5, 1)[None]})
    assert {"Add_a", "Sqrt_r"} <= set(pinned_by(find_vanishing_constants, graph, ranges))

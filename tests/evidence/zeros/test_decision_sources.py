"""Of which comparison a node is told that several depend on, and how far back a node is one of those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.zeros.decision_sources import find_decision_sources

CONSTANTS = {
    "zero": scalar(0),
    "half": scalar(0.5),
    "one": scalar(1),
    "little": scalar(0.04),
    "tiny": scalar(1e-6),
    "last": ints(1),
}


def _found(folder: Path, nodes: list[onnx.NodeProto], compared: str, x: np.ndarray) -> dict[str, str]:
    """By node, the comparison that is told of. Those named in `compared` write truths, which the model gives out as floats."""
    nodes = [*nodes, *(node("Cast", name, f"{name}_", to=TensorProto.FLOAT) for name in compared)]
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    outputs = " ".join(f"{name}_" for name in compared)
    model = make_model(nodes, {"x": [None] * x.ndim}, outputs, constants)
    found = find_decision_sources(*scan(model, folder, {"x": x}))
    return {label: lost.comparison.node.label for label, lost in found.items()}


def test_a_node_is_told_of_the_first_that_reads_what_it_writes_or_of_one_behind(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x half", "h"),
        node("Greater", "h zero", "b"),
        node("Less", "zero h", "c"),
        node("Abs", "h", "a"),
        node("Mul", "a one", "q"),
        node("Greater", "q zero", "d"),
    ]
    assert _found(tmp_path, nodes, "bcd", floats(2**-24, 1)) == {
        "Mul_h": "Greater_b",
        "Greater_b": "Greater_b",
        "Less_c": "Less_c",
        "Abs_a": "Greater_d",
        "Mul_q": "Greater_d",
        "Greater_d": "Greater_d",
    }


@pytest.mark.parametrize(("compared", "is_followed"), [("b", False), ("c", True), ("bc", True)])
def test_the_smallest_magnitude_that_matters_to_any_is_followed(
    compared: str, is_followed: bool, tmp_path: Path
) -> None:
    """The smallest term is 2e-9, made of 5e-8, which FP16 holds; of the sum the terms are 1e-9 on average, made of 2.5e-8."""
    nodes = [
        node("Tanh", "x", "h"),
        node("Mul", "h little", "a"),
        node("Greater", "a zero", "b"),
        node("ReduceSum", "a last", "s"),
        node("Greater", "s zero", "c"),
    ]
    found = _found(tmp_path, nodes, compared, np.array([[5e-8, 0], [1, 1]], np.float32))
    assert ("Tanh_h" in found) == is_followed
    assert found["Mul_a"] == f"Greater_{compared[0]}"


def test_beside_a_number_that_fp16_holds_badly(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x half", "h"),
        node("Less", "h tiny", "b"),
        node("Abs", "h", "a"),
        node("Less", "a tiny", "c"),
    ]
    assert _found(tmp_path, nodes, "bc", floats(1.9e-6, 1)) == {
        "Mul_h": "Less_b",
        "Less_b": "Less_b",
        "Abs_a": "Less_c",
        "Less_c": "Less_c",
    }

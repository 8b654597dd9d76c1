"""Nodes that make zero of zero."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from in_memory_calibration import make_model, node, save, scalar

from overflow_fixer.evidence.zeros.near_zero import keeps_zero


@pytest.mark.parametrize(
    ("read", "is_kept"),
    [
        (node("Tanh", "x", "y"), True),
        (node("Identity", "x", "y"), True),
        (node("Pow", "x half", "y"), True),
        (node("Pow", "x less", "y"), False),
        (node("Div", "x half", "y"), True),
        (node("Div", "half x", "y"), False),
        (node("Mul", "half x", "y"), True),
        (node("Exp", "x", "y"), False),
        (node("Add", "x half", "y"), False),
        (node("Tanh", "x", "y", domain="com.microsoft"), False),
    ],
)
def test_what_keeps_zero(read: onnx.NodeProto, is_kept: bool, tmp_path: Path) -> None:
    constants = {"half": scalar(0.5), "less": scalar(-0.5)}
    used = {name: value for name, value in constants.items() if name in read.input}
    graph = save(make_model([read], {"x": [2]}, "y", used), tmp_path)
    (found,) = graph.nodes
    assert keeps_zero(graph, found, found.inputs.index("x")) == is_kept

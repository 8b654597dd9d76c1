"""Native operators that tell their statistics in memory, with an output that tells them too or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from overflow_fixer.native import DOMAIN, LIBRARY
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
_TOLD = np.array([3.0, -3.0, np.inf, 1, 0, 1, 1, 0])
_WATCHED = [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]  # of no function
_OPERATORS: dict[str, tuple[list[str], int, dict[str, Any]]] = {
    "Probe": (["x"], 0, {}),
    "SmallProbe": (["x"], 0, {}),
    "SharedProbe": (["x", "x", "x"], 0, {}),
    "LastingProbe": (["x"], 0, {"address": 0}),
    "BlockProbe": (["x", "layout"], 0, {}),
    "Watch": (["x", "told", "x"], 0, {"numbers": _WATCHED}),
    "WatchPair": (["x", "told", "x", "told", "x"], 0, {"numbers": _WATCHED}),
    "Moments": (["x", "length"], 7, {}),
    "Sums": (["x", "length"], 5, {}),
    "SumsApart": (["x", "axes"], 5, {}),
    "Exponentials": (["x", "length"], 1, {}),
    "Windows": (["x", "form"], 2, {}),
}
"""Of each operator what it reads, how many outputs there are before the statistics, and its attributes."""
_TENSORS_TOLD = {"SharedProbe": 3}
"""Of others, all outputs and what they read."""
_X = np.random.default_rng(0).standard_normal((2, 16, 3, 5)).astype(np.float32)
_FIXED = {"layout": [16, 8], "length": [-1], "axes": [1, 1], "form": [2, 1, 1, 0, 0]}


def _run(op_type: str, output: str, **target: Any) -> Array | None:
    """What the output tells."""
    read, count, attributes = _OPERATORS[op_type]
    told = helper.make_tensor("", TensorProto.DOUBLE, [8], _TOLD)
    nodes = [
        helper.make_node("Constant", [], ["told"], value=told),
        *(helper.make_node("Constant", [], [name], value_ints=ints) for name, ints in _FIXED.items()),
        helper.make_node(
            op_type, read, [*(f"y{i}" for i in range(count)), output], domain=DOMAIN, **attributes, **target
        ),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    fetched = output or "z"
    wanted = helper.make_tensor_value_info(fetched, TensorProto.DOUBLE if output else TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", given, [wanted])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    session = open_session(
        helper.make_model(graph, opset_imports=imports, ir_version=8), Path(), by_priority=True
    )
    for x in (np.zeros_like(_X), _X) if op_type != "LastingProbe" else (_X, _X + 1):
        (found,) = run_session(session, [fetched], Batch("b", {"x": x}))
    return np.asarray(found) if output else None


@pytest.mark.parametrize("op_type", _OPERATORS)
def test_the_same_is_told_in_memory(op_type: str) -> None:
    expected = _run(op_type, "told_here")
    assert expected is not None
    assert len(expected) == 8 * _TENSORS_TOLD.get(op_type, _OPERATORS[op_type][1] + 1)
    for output, is_output in (("", 0), ("told_here", 1)):
        memory = np.full(len(expected) + 2, 7.0)
        found = _run(op_type, output, target=[memory[1:].ctypes.data, is_output])
        np.testing.assert_array_equal(memory[1:-1], expected)
        assert memory[[0, -1]].tolist() == [7, 7]  # and no more than that
        if found is not None:
            np.testing.assert_array_equal(found, expected)

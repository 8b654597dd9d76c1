"""The shape that a Reshape writes, told from the nodes that make it; what they make is what ONNX Runtime makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.shapes import output_shape
from overflow_fixer.records import Batch, Dim
from overflow_fixer.sessions.session import SessionRunner, open_session

INT32 = onnx.TensorProto.INT32
INT64 = onnx.TensorProto.INT64
CONSTANTS = {
    "zero": ints(0),
    "one": ints(1),
    "two": ints(2),
    "last": ints(-1),
    "beyond": ints(7),
    "both": ints(1, 0),
    "from_the_end": ints(-3),
    "at": np.asarray(1),
    "free": ints(-1),
}


@pytest.mark.parametrize("opset", [13, 15])
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [node("Slice", "s zero two zero", "a"), node("Concat", "a one two two", "to", axis=0)],
            ("n", "c", 1, 2, 2),
        ),
        ([node("Slice", "s zero two", "a"), node("Concat", "a free", "to", axis=0)], ("n", "c", None)),
        ([node("Slice", "s last beyond zero one", "a"), node("Concat", "free a", "to", axis=0)], (None, 4)),
        ([node("Gather", "s both", "a"), node("Concat", "a zero", "to", axis=0)], ("c", "n", None)),
        (
            [
                node("Gather", "s at", "g"),
                node("Unsqueeze", "g zero", "a"),
                node("Concat", "a free", "to", axis=0),
            ],
            ("c", None),
        ),
        (
            [
                node("Cast", "s", "i", to=INT32),
                node("Slice", "i one two zero", "a"),
                node("Cast", "a", "b", to=INT64),
                node("Concat", "b free", "to", axis=0),
            ],
            ("c", None),
        ),
        ([node("Slice", "s zero two zero two", "a"), node("Concat", "a free", "to", axis=0)], None),
        ([node("Mul", "s one", "to")], None),
        ([node("Gather", "s from_the_end", "a"), node("Concat", "a free", "to", axis=0)], ("n", None)),
    ],
)
def test_a_shape_that_is_computed(
    opset: int, nodes: list[onnx.NodeProto], expected: tuple[Dim, ...] | None, tmp_path: Path
) -> None:
    reshape = node("Reshape", "x to", "y")
    model = make_model(
        [node("Shape", "x", "s"), *nodes, reshape], {"x": ["n", "c", 4]}, "y", CONSTANTS, opset=opset
    )
    graph = save(model, tmp_path)
    found = _told(graph)
    if opset == 13:
        assert found == expected
    for told, wanted in zip(found or (), expected or (), strict=found is not None and expected is not None):
        assert wanted in (None, told)  # more is inferred from opset 14 on
    x = np.zeros((3, 5, 4), np.float32)
    made = SessionRunner(open_session(graph.path, tmp_path)).run(Batch("b", {"x": x}))["y"].shape
    sizes: dict[Any, int] = {"n": 3, "c": 5}
    for told, size in zip(found or (), made, strict=found is not None):
        assert told is None or sizes.get(told, told) == size


def test_what_a_reshape_works_out_is_as_inferred(tmp_path: Path) -> None:
    graph = save(
        make_model([node("Reshape", "x to", "y")], {"x": [2, 6]}, "y", {"to": ints(0, -1, 3)}), tmp_path
    )
    assert output_shape(graph, graph.nodes[0]) == (2, 2, 3)


def test_a_default_in_whose_place_another_shape_may_be_fed_tells_nothing(tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"x": [2, 3], "to": (INT64, [2])}
    graph = save(make_model([node("Reshape", "x to", "y")], inputs, "y", {"to": ints(3, 2)}), tmp_path)
    told = output_shape(graph, graph.nodes[0]) or ()
    assert not any(isinstance(dim, int) for dim in told)


def test_a_part_of_a_shape_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    """From opset 15 on, Shape may start behind the first dimension."""
    nodes = [node("Shape", "x", "s", start=1), node("Reshape", "x to", "y")]
    nodes.insert(1, node("Concat", "s free", "to", axis=0))
    graph = save(make_model(nodes, {"x": ["n", "c", 4]}, "y", CONSTANTS, opset=15), tmp_path)
    found = output_shape(graph, graph.producers["y"])
    assert found is None or found[0] != "n"


@pytest.mark.parametrize("place", [3, -4])
def test_what_is_gathered_from_beyond_a_shape_is_not_told(place: int, tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s place", "a"),
        node("Concat", "a free", "to", axis=0),
        node("Reshape", "x to", "y"),
    ]
    constants = {**CONSTANTS, "place": ints(place)}
    graph = save(make_model(nodes, {"x": ["n", "c", 4]}, "y", constants), tmp_path)
    assert set(_told(graph) or ()) <= {None}


def _told(graph: Graph) -> tuple[Dim, ...] | None:
    """With None for what ONNX gives a name of its own, since it is not known."""
    found = output_shape(graph, graph.producers["y"])
    return None if found is None else tuple(None if str(dim).startswith("unk__") else dim for dim in found)

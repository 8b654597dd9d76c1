"""Initializers that are inputs too, in whose place a batch feeds other values or another shape: nothing is told by the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scan_cases import MemoryBatches, save_model, value_info
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Array

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ROWS = np.full((1, 1000), 10, np.float32)


@dataclass(frozen=True)
class Case:
    """The nodes, the default and what is fed for it, and the largest value of a quantity inside the last of the nodes."""

    nodes: Sequence[tuple[str, str, str, Mapping[str, object]]]
    default: Array
    fed: Array
    quantity: str
    expected: float
    x: Array = field(default_factory=lambda: X)

    def save(self, folder: Path, declared: Sequence[str] | None) -> Graph:
        default = numpy_helper.from_array(self.default, "w")
        dims = None if declared is None else list(declared)[: self.default.ndim]
        inputs = [value_info("x", dims=list(self.x.shape)), value_info("w", default.data_type, dims)]
        nodes = [
            helper.make_node(op, reads.split(), writes.split(), **attributes)
            for op, reads, writes, attributes in self.nodes
        ]
        outputs = [value_info(nodes[-1].output[0])]
        return save_model(folder / "m.onnx", nodes, inputs, outputs, [default], opset=18, ir_version=8)


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


CASES = {
    "rows of the default itself": Case(
        [("Softmax", "w", "y", {"axis": -1})],
        np.ones((2, 3), np.float32),
        np.ones((2, 70000), np.float32),
        "sum of exponentials",
        70000,
    ),
    "a shape": Case(
        [
            ("Reshape", "x w", "r", {}),
            ("Constant", "", "a", {"value_ints": [1]}),
            ("ReduceL2", "r a", "y", {}),
        ],
        _ints(4, 6),
        _ints(2, 3, 4),
        "sum of squares",
        float((X * X).sum(1).max()),
    ),
    "axes": Case(
        [("ReduceL2", "x w", "y", {})],
        _ints(1),
        _ints(0, 2),
        "sum of squares",
        float((X * X).sum((0, 2)).max()),
    ),
    "axes of a mean": Case(
        [("ReduceMean", "x w", "y", {})], _ints(1), _ints(0, 2), "sum", float(X.sum((0, 2)).max())
    ),
    "the axis of a sum": Case(
        [("CumSum", "x w", "y", {"exclusive": 1})],
        np.array(0),
        np.array(2),
        "last sum",
        float(X.sum(2).max()),
    ),
    "weights": Case(
        [("MatMul", "x w", "y", {})],
        np.ones((2, 2), np.float32),
        np.tile(np.float32([[20], [-20]]), (500, 2)),
        "products",
        200000,
        ROWS,
    ),
}
"""In each the shape that is fed is another, or what it says is."""


RANK = Case(
    [("Softmax", "w", "y", {"axis": -1})],
    np.ones(4, np.float32),
    np.ones((2, 70000), np.float32),
    "sum of exponentials",
    70000,
)


@pytest.mark.parametrize("declared", [None, "ab"], ids=["no shape", "any dimensions"])
@pytest.mark.parametrize("name", CASES)
def test_values_inside_nodes_are_those_of_what_is_fed(
    name: str, declared: str | None, tmp_path: Path
) -> None:
    case = CASES[name]
    table = scan_each_way(case.save(tmp_path, declared), MemoryBatches([{"x": case.x, "w": case.fed}]))
    (found,) = (one for one in table.inner if one.quantity == case.quantity)
    assert found.seen.max_abs == pytest.approx(case.expected, rel=1e-5)


def test_of_a_default_without_a_shape_another_rank_may_be_fed(tmp_path: Path) -> None:
    table = scan_each_way(
        RANK.save(tmp_path, None), MemoryBatches([{"x": RANK.x, "w": RANK.fed}, {"x": RANK.x}])
    )
    assert table.inner_of["node_of_y"]["sum of exponentials"].batch_max_abs.tolist()[0] == pytest.approx(
        70000
    )


@pytest.mark.parametrize(("is_inside", "declared"), [(True, "a"), (False, "a"), (False, None)])
@pytest.mark.parametrize("is_fed", [False, True])
def test_a_slice_along_axes_that_may_be_fed(
    is_fed: bool, is_inside: bool, declared: str | None, tmp_path: Path
) -> None:
    """In a body, too: by the default it has 3 x 2 elements, by what is fed 2 x 3."""
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["two"], value_ints=[2]),
        helper.make_node("Slice", ["x", "zero", "two", "w"], ["s"]),
        helper.make_node("Neg", ["s"], ["y"]),
    ]
    inputs = [
        value_info("x", dims=[3, 3]),
        value_info("c", TensorProto.BOOL, []),
        value_info("w", TensorProto.INT64, None if declared is None else [declared]),
    ]
    if is_inside:
        body = helper.make_graph(nodes, "body", [], [value_info("y")])
        nodes = [helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)]
    outputs = [value_info("z" if is_inside else "y")]
    default = numpy_helper.from_array(_ints(1), "w")
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, [default], opset=18, ir_version=8)
    feeds = {"x": np.arange(9, dtype=np.float32).reshape(3, 3), "c": np.array(True)}
    table = scan_each_way(graph, MemoryBatches([{**feeds, "w": _ints(0)} if is_fed else feeds]))
    found = table.by_tensor["node_of_z/then_branch/s" if is_inside else "s"]
    assert (found.element_count, found.max) == (6, 5 if is_fed else 7)

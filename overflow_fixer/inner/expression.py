"""ONNX nodes that compute a value inside a node from the tensors that the node reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph, Node

_AXES_ARE_INPUTS = {
    "ReduceSum": 13,
    **dict.fromkeys("ReduceL1 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare".split(), 18),
}
"""The opset from which on a reduction's axes are an input."""


class Expression:
    """Collects the nodes for what is inside `node`; names of new tensors begin with `prefix`.

    `constants` are those of expressions before this one, by value; new ones are added.
    """

    def __init__(self, graph: Graph, node: Node, prefix: str, constants: dict[object, str]) -> None:
        self.graph = graph
        self.node = node
        self.nodes: list[NodeProto] = []
        self.extremes: tuple[str, str, str] | None = None
        """The largest, the smallest and the mean of each row of `source`, whose rows hold all of it; if there are such."""
        self._prefix = prefix
        self._constants = constants

    @property
    def source(self) -> str:
        """The first tensor that the node reads."""
        return self.node.inputs[0]

    def attribute(self, name: str, default: Any) -> Any:
        found = self.node.attribute(name)
        return default if found is None else onnx.helper.get_attribute_value(found)

    def apply(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """One more node; the name of what it writes."""
        output = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def integers(self, *values: int) -> str:
        """A constant int64 vector; the same for the same values."""
        if values not in self._constants:
            value = onnx.helper.make_tensor("", TensorProto.INT64, [len(values)], values)
            self._constants[values] = self.apply("Constant", value=value)
        return self._constants[values]

    def flatten(self, axis: int) -> str:
        """`source` as a matrix: the dimensions before `axis`, and this one with all behind it."""
        return self.apply("Flatten", self.source, axis=axis)

    def number(self, value: float) -> str:
        """A constant float scalar; the same for the same value."""
        if value not in self._constants:
            tensor = onnx.helper.make_tensor("", TensorProto.FLOAT, [], [value])
            self._constants[value] = self.apply("Constant", value=tensor)
        return self._constants[value]

    def count_columns(self, matrix: str, axis: int) -> str:
        """The second dimension of `source` flattened at `axis`, as a float."""
        dims = [dim for dim in self.graph.shapes.get(self.source, [None])[axis:] if isinstance(dim, int)]
        if len(dims) == len(self.graph.shapes.get(self.source, [None])[axis:]):
            return self.number(float(math.prod(dims)))
        columns = self.apply("Slice", self.apply("Shape", matrix), self.integers(1), self.integers(2))
        return self.apply("Cast", columns, to=TensorProto.FLOAT)

    def reduce(self, op_type: str, source: str, axes: Sequence[int] | str | None) -> str:
        """A reduction over `axes` (their numbers, a tensor that holds them, None for all), which keeps dimensions."""
        if axes is None:
            return self.apply(op_type, source)
        if self.graph.opset < _AXES_ARE_INPUTS[op_type]:
            return self.apply(op_type, source, axes=list(axes))
        return self.apply(op_type, source, axes if isinstance(axes, str) else self.integers(*axes))

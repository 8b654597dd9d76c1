"""What ConstantOfShape writes: one number, in a shape that the data may decide."""

from __future__ import annotations

import numpy as np
import onnx

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Array


def read_fill(graph: Graph, tensor: str) -> Array | None:
    """The number, [1] in the type that it has, with which a ConstantOfShape fills the tensor; None of another tensor.

    None as well where the node names no number, and fills with zeros.
    """
    node = graph.producers.get(tensor)
    if node is None or node.standard_op != "ConstantOfShape":
        return None
    attribute = node.attribute("value")
    return None if attribute is None else np.asarray(onnx.numpy_helper.to_array(attribute.t))


def clip_fill(node: onnx.NodeProto, magnitude: float) -> None:
    """Have a ConstantOfShape that names a number fill with one of no more than `magnitude`, of the same type; NaN stays."""
    (attribute,) = node.attribute
    value = onnx.numpy_helper.to_array(attribute.t)
    clipped = np.clip(value, -magnitude, magnitude).astype(value.dtype)
    attribute.t.CopyFrom(onnx.numpy_helper.from_array(clipped, node.output[0]))

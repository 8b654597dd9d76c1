"""The model that TensorRT is given: the file itself, or what the plan changed in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.copies import embed_weights
from overflow_fixer.errors import BackendError
from overflow_fixer.graph import Graph
from overflow_fixer.records import Clamp


def find_source(graph: Graph, clamps: Sequence[Clamp]) -> Path | bytes:
    """The model's file, or its bytes where functions were inlined or constants are clamped.

    External data stays where it is, beside the file. Raises BackendError where the bytes would not fit
    one message.
    """
    if not clamps and not graph.is_inlined:
        return graph.path
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    embed_weights(model, graph)
    _clamp(model, graph, {clamp.tensor: clamp for clamp in clamps})
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        raise BackendError(
            f"{graph.path} with its constants clamped does not fit one message: {error}. Expected under 2 GB outside "
            "external data. Save the model with its weights in external data, or plan with --masks pin."
        ) from error


def _clamp(model: onnx.ModelProto, graph: Graph, clamps: Mapping[str, Clamp]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in clamps:
            tensor.CopyFrom(_clamped(graph, clamps[tensor.name]))
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in clamps:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", _clamped(graph, clamps[node.output[0]])))


def _clamped(graph: Graph, clamp: Clamp) -> TensorProto:
    value = graph.read_constant(clamp.tensor)
    assert value is not None
    clipped = np.clip(value, -clamp.magnitude, clamp.magnitude).astype(value.dtype)
    return numpy_helper.from_array(clipped, clamp.tensor)

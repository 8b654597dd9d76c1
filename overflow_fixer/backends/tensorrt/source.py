"""The model that TensorRT is given: the file itself, or what was changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.changes import (
    Shapes,
    find_changes,
    make_changes,
)
from overflow_fixer.backends.tensorrt.network import ParsedNetwork, parse_model
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Clamp, Typing

_OLD_OPSET = 17
"""The newest that parsers before TensorRT 10 say they know (onnx-tensorrt, docs/operators.md of 8.5 and 8.6)."""


def parse_graph(
    trt: Any, found: Capabilities, graph: Graph, clamps: Sequence[Clamp], typing: Typing, shapes: Shapes
) -> ParsedNetwork:
    """The network of the model with its constants clamped. Raises BackendError as find_source and parse_model do."""
    source = find_source(graph, clamps, found, shapes)
    return parse_model(trt, found, source, graph.path, typing, doubt_opset(graph, found))


def doubt_opset(graph: Graph, found: Capabilities) -> str:
    """A sentence where the parser was made before the model's opset; empty where it was not."""
    if found.axes_inputs or graph.opset <= _OLD_OPSET:
        return ""
    return (
        f"The model is of opset {graph.opset}, and the parser of TensorRT {found.version} was made for {_OLD_OPSET} and older: "
        f"what operators were given since may be refused or overlooked. An export with opset {_OLD_OPSET} is safer."
    )


def find_source(graph: Graph, clamps: Sequence[Clamp], found: Capabilities, shapes: Shapes) -> Path | bytes:
    """The model's file, or its bytes where something is changed for TensorRT, which is to be built for these shapes.

    That is where functions were inlined, constants are clamped, or something is refused or overlooked as it is: see
    changes.Changes. Raises BackendError where the bytes would not fit one message.
    """
    changes = find_changes(graph, clamps, found, shapes)
    if not (changes.is_any or graph.is_inlined):
        return graph.path
    return _serialize(make_changes(graph, changes), graph, clamps, found)


def _serialize(model: onnx.ModelProto, graph: Graph, clamps: Sequence[Clamp], found: Capabilities) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        pinned = ", or plan with --masks pin" if clamps else ""
        raise BackendError(
            f"{graph.path}, changed for TensorRT {found.version}, does not fit one message: {error}. Expected under 2 GB "
            f"outside external data. Save the model with its weights in external data{pinned}."
        ) from error

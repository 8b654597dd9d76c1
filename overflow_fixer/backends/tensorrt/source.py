"""The model that TensorRT is given: the file itself, or what was changed in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.changes import (
    Shapes,
    Sizes,
    find_changes,
    find_fixed_sizes,
    make_changes,
)
from overflow_fixer.backends.tensorrt.network import ParsedNetwork, RefusedModelError, parse_model
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PrecisionPlan, Typing

_OLD_OPSET = 17
"""The newest that parsers before TensorRT 10 say they know (onnx-tensorrt, docs/operators.md of 8.5 and 8.6)."""
_NO_SIZES: Sizes = MappingProxyType({})


def parse_typed(trt: Any, found: Capabilities, graph: Graph, model: Path, shapes: Shapes) -> ParsedNetwork:
    """The network of a typed model that was made of `model`, by strong typing. Raises BackendError as parse_graph does."""
    return parse_graph(trt, found, graph, None, "strong", shapes, f"the typed model of {model}")


def parse_graph(
    trt: Any,
    found: Capabilities,
    graph: Graph,
    plan: PrecisionPlan | None,
    typing: Typing,
    shapes: Shapes,
    told: str = "",
) -> ParsedNetwork:
    """The network of the model with what the plan changes in it. Raises BackendError as find_source and parse_model do.

    A model that is refused while dimensions are open is given those that the shapes leave no choice of.
    """

    def parse(sizes: Sizes) -> ParsedNetwork:
        source = find_source(graph, plan, found, shapes, sizes)
        name = told or str(graph.path)
        return parse_model(trt, found, source, graph.home, name, typing, doubt_opset(graph, found))

    try:
        return parse({})
    except RefusedModelError as refusal:
        sizes = find_fixed_sizes(graph, shapes)
        if not sizes:
            raise
        try:
            return replace(parse(sizes), note=_tell_sizes(found, refusal, sizes))
        except RefusedModelError:
            raise refusal from None


def _tell_sizes(found: Capabilities, refusal: RefusedModelError, sizes: Sizes) -> str:
    told = ", ".join(f"{size} of {name!r} along axis {axis}" for (name, axis), size in sizes.items())
    return (
        f"The model was given the sizes that the data, or --profile, leave no choice of ({told}), and the engine takes no others: "
        f"TensorRT {found.version} refuses it as it is ({refusal.reason})."
    )


def doubt_opset(graph: Graph, found: Capabilities) -> str:
    """A sentence where the parser was made before the model's opset; empty where it was not."""
    if found.axes_inputs or graph.opset <= _OLD_OPSET:
        return ""
    return (
        f"The model is of opset {graph.opset}, and the parser of TensorRT {found.version} was made for {_OLD_OPSET} and older: "
        f"what operators were given since may be refused or overlooked. An export with opset {_OLD_OPSET} is safer."
    )


def find_source(
    graph: Graph,
    plan: PrecisionPlan | None,
    found: Capabilities,
    shapes: Shapes,
    sizes: Sizes = _NO_SIZES,
) -> Path | bytes:
    """The model's file, or its bytes where something is changed for TensorRT, which is to be built for these shapes.

    That is where functions were inlined, the plan changes something, or something is refused or overlooked as it is: see
    changes.Changes. Without a plan nothing is changed for one. Open dimensions of inputs get these `sizes`. Raises BackendError
    where the bytes would not fit one message.
    """
    changes = find_changes(graph, plan, found, shapes, sizes)
    if not (changes.is_any or graph.is_inlined):
        return graph.path
    return _serialize(make_changes(graph, changes), graph, found, bool(changes.clamps))


def _serialize(model: onnx.ModelProto, graph: Graph, found: Capabilities, clamps: bool) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        pinned = ", or plan with --masks pin" if clamps else ""
        raise BackendError(
            f"{graph.path}, changed for TensorRT {found.version}, does not fit one message: {error}. Expected under 2 GB "
            f"outside external data. Save the model with its weights in external data{pinned}."
        ) from error

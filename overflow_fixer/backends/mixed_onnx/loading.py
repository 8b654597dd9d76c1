"""Whether ONNX Runtime loads a typed model, found out in time linear in the model.

ONNX Runtime's time to open a session grows with the square of the number of FP16 nodes (20,000: 21 s,
against 0.5 s in FP32). So a large model is loaded in pieces: each node, with its types, is in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.sessions.session import open_session

PIECE_NODES = 2000
_NO_KERNEL = "NOT_IMPLEMENTED"
"""ONNX Runtime's word once it has found the types of all nodes right."""


def find_refusal(path: Path, piece_nodes: int = PIECE_NODES) -> ModelError | None:
    """Why ONNX Runtime does not load the model, or a piece of it; None when it does."""
    try:
        graph = load_graph(path)
    except ModelError as error:
        return error
    if len(graph.nodes) <= piece_nodes or not _is_plain(graph):
        return _refusal(path, path.parent)
    refusals = (_refusal(piece, path.parent) for piece in cut(graph, piece_nodes))
    return next((refusal for refusal in refusals if refusal is not None), None)


def find_fault(path: Path) -> ModelError | None:
    """As find_refusal, but that a node has no kernel there, where others may have one, is no fault of the model."""
    refusal = find_refusal(path)
    return None if refusal is not None and _NO_KERNEL in str(refusal) else refusal


def cut(graph: Graph, piece_nodes: int) -> Iterator[onnx.ModelProto]:
    """The model in runs of `piece_nodes` nodes; what a run reads from outside is an input of its piece."""
    outputs = set(graph.outputs)
    for start in range(0, len(graph.nodes), piece_nodes):
        nodes = graph.nodes[start : start + piece_nodes]
        inside = {name for node in nodes for name in node.writes}
        reads = dict.fromkeys(name for node in nodes for name in node.reads if name not in inside)
        last = nodes[-1].index
        leaving = [
            n for n in inside if n in outputs or any(r.index > last for r in graph.consumers.get(n, ()))
        ]
        yield _piece(graph, nodes, list(reads), leaving)


def _piece(
    graph: Graph, nodes: Sequence[Node], reads: Sequence[str], writes: Sequence[str]
) -> onnx.ModelProto:
    source = graph.model
    piece = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    piece.graph.name = "piece"
    piece.graph.node.extend(node.proto for node in nodes)
    piece.graph.initializer.extend(graph.initializers[name] for name in reads if name in graph.initializers)
    piece.graph.input.extend(_declare(graph, name) for name in reads if name not in graph.initializers)
    piece.graph.output.extend(_declare(graph, name) for name in writes)
    return piece


def _declare(graph: Graph, name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, graph.dtypes[name], graph.sure_shapes.get(name))


def _is_plain(graph: Graph) -> bool:
    """Whether every tensor is one whose type can be declared between pieces."""
    return all(name in graph.dtypes for node in graph.nodes for name in (*node.reads, *node.writes))


def _refusal(model: Path | onnx.ModelProto, folder: Path) -> ModelError | None:
    """Why the model loads neither as it stands nor optimised.

    ONNX Runtime up to 1.23 loads a Cast from FP16 to FP16 between FP16 nodes only with optimisation on.
    """
    refusal = None
    for optimize in (False, True):
        try:
            open_session(model, folder, optimize=optimize)
        except ModelError as error:
            refusal = error
        else:
            return None
    return refusal

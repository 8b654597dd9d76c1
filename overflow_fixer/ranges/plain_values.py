"""The values of a few tensors of a batch, as a run with every tensor marked as an output has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import TensorProto

from overflow_fixer.copies import copy_shell
from overflow_fixer.graph import Graph, Node
from overflow_fixer.providers import Provider
from overflow_fixer.ranges.instrument import mark_tensors
from overflow_fixer.records import Batch
from overflow_fixer.sessions import mark_outputs, open_session, run_session

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


class PlainValues:
    """Computes `tensors`, and nothing that they do not need; no session is opened where no node writes them.

    Values are arrays, lists of arrays (sequences) and None (empty optionals), as ONNX Runtime gives and takes them.
    """

    def __init__(self, graph: Graph, tensors: Iterable[str], provider: Provider) -> None:
        wanted = list(dict.fromkeys(tensors))
        self._constants = {name: graph.read_constant(name) for name in wanted if name in graph.constants}
        self._given = [name for name in wanted if name not in graph.producers]
        self._computed = [name for name in wanted if name in graph.producers and name not in graph.constants]
        self._graph = graph
        if self._computed:
            self._open(provider)

    def compute(self, batch: Batch) -> dict[str, Any]:
        """The values by name. Raises ModelError where the batch cannot be run."""
        found = {**self._constants, **{n: batch.feeds[n] for n in self._given if n in batch.feeds}}
        if self._computed:
            feeds = {name: batch.feeds[name] for name in self._inputs if name in batch.feeds}
            arrays = run_session(self._session, self._fetches, Batch(batch.name, feeds))
            found |= zip(self._computed, map(self._restore, self._computed, arrays), strict=True)
        return found

    def _open(self, provider: Provider) -> None:
        graph = _keep(self._graph, _find_ancestors(self._graph, self._computed))
        self._inputs = [info.name for info in graph.model.graph.input]
        dense = [name for name in self._computed if name in graph.dtypes]
        narrow = (name for node in graph.nodes for name in node.writes if graph.dtypes.get(name) in _NARROW)
        marked = list(dict.fromkeys((*dense, *narrow)))  # ONNX Runtime may leave others unrounded
        model, fetches = mark_tensors(graph, marked)
        mark_outputs(model, self._computed)
        fetch_of = dict(zip(marked, fetches, strict=True))
        self._fetches = [fetch_of.get(name, name) for name in self._computed]
        self._session = open_session(model, graph.folder, provider=provider)

    def _restore(self, name: str, value: Any) -> Any:
        """BF16 leaves as float."""
        if self._graph.dtypes.get(name) != TensorProto.BFLOAT16:
            return value
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))


def _find_ancestors(graph: Graph, tensors: Sequence[str]) -> list[Node]:
    """The nodes that `tensors` depend on, in order."""
    found: dict[int, Node] = {}
    pending = list(tensors)
    while pending:
        node = graph.producers.get(pending.pop())
        if node is not None and node.index not in found:
            found[node.index] = node
            pending.extend(node.reads)
    return [found[index] for index in sorted(found)]


def _keep(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph with these nodes alone, what they read, and no outputs."""
    model = copy_shell(graph)
    read = {name for node in nodes for name in node.reads}
    for field in (model.graph.input, model.graph.initializer):
        kept: Mapping[str, Any] = {item.name: item for item in field if item.name in read}
        del field[:]
        field.extend(kept.values())
    model.graph.node.extend(node.proto for node in nodes)
    return replace(graph, model=model, nodes=tuple(nodes))

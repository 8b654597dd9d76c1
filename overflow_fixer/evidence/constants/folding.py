"""The value of a tensor that is computed from constants alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.repeatability import is_repeatable_node
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

_MOST_NODES = 64


@dataclass(frozen=True, eq=False)
class Folder:
    """Computes tensors of one graph that no input reaches, each once."""

    graph: Graph
    _known: dict[str, Array | None] = field(default_factory=dict)

    def value(self, tensor: str) -> Array | None:
        """The tensor's value, or None where it depends on an input, on chance, or on more than 64 nodes."""
        if tensor not in self._known:
            constant = self.graph.find_constant(tensor)
            self._known[tensor] = constant if constant is not None else self._run(tensor)
        return self._known[tensor]

    def _run(self, tensor: str) -> Array | None:
        nodes = self._ancestors(tensor)
        if nodes is None:
            return None
        source = self.graph.model
        model = onnx.ModelProto(ir_version=max(source.ir_version, 4), opset_import=source.opset_import)
        model.graph.name = "folded"
        model.graph.node.extend(node.proto for node in nodes)
        read = {name for node in nodes for name in node.reads}
        model.graph.initializer.extend(t for name, t in self.graph.initializers.items() if name in read)
        model.graph.output.append(onnx.ValueInfoProto(name=tensor))
        try:
            value: Array = run_session(open_session(model, self.graph.folder), None, Batch("constants", {}))[
                0
            ]
        except ModelError:
            return None
        return value

    def _ancestors(self, tensor: str) -> list[Node] | None:
        """Every node that the tensor depends on, in order; None where it is not made of constants alone."""
        found: dict[str, Node] = {}
        pending = [tensor]
        while pending:
            name = pending.pop()
            if name in self.graph.initializers:
                continue
            node = self.graph.producers.get(name)
            if node is None or len(found) > _MOST_NODES or not is_repeatable_node(self.graph, node):
                return None
            if node.label not in found:
                found[node.label] = node
                pending.extend(node.reads)
        return sorted(found.values(), key=lambda node: node.index)


@lru_cache(maxsize=1)
def find_folder(graph: Graph) -> Folder:
    """The one of the graph, for all rules."""
    return Folder(graph)

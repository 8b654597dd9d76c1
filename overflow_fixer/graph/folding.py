"""The value of a tensor that is computed from constants alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
_NO_BATCH = Batch("constants", {})


@dataclass(frozen=True, eq=False)
class Folder:
    """Computes tensors of one graph that no input reaches, each once."""

    graph: Graph
    _known: dict[str, Array | None] = field(default_factory=dict)

    def value(self, tensor: str) -> Array | None:
        """The tensor's value, or None where it depends on an input, on chance, or on more than 64 nodes."""
        return self.values([tensor])[tensor]

    def values(self, tensors: Iterable[str]) -> dict[str, Array | None]:
        """The same of several, by name, computed in one run."""
        names = list(dict.fromkeys(tensors))
        unknown = [name for name in names if name not in self._known]
        self._known.update((name, self.graph.find_constant(name)) for name in unknown)
        made = {name: self._ancestors(name) for name in unknown if self._known[name] is None}
        self._known.update(self._run({name: nodes for name, nodes in made.items() if nodes is not None}))
        return {name: self._known[name] for name in names}

    def _run(self, made: Mapping[str, Sequence[Node]]) -> dict[str, Array | None]:
        """What these nodes make of constants. Where ONNX Runtime refuses one tensor, the others are computed by themselves."""
        if not made:
            return {}
        try:
            found = run_session(open_session(self._extract(made), self.graph.folder), None, _NO_BATCH)
        except ModelError:
            alone = [{name: nodes} for name, nodes in made.items()] if len(made) > 1 else []
            return {**dict.fromkeys(made), **{n: v for one in alone for n, v in self._run(one).items()}}
        return dict(zip(made, found, strict=True))

    def _extract(self, made: Mapping[str, Sequence[Node]]) -> onnx.ModelProto:
        """A model of these nodes alone, which has no inputs."""
        source = self.graph.model
        nodes = {node.index: node for found in made.values() for node in found}
        read = {name for node in nodes.values() for name in node.reads}
        model = onnx.ModelProto(ir_version=max(source.ir_version, 4), opset_import=source.opset_import)
        model.graph.name = "folded"
        model.graph.node.extend(nodes[index].proto for index in sorted(nodes))
        model.graph.initializer.extend(t for name, t in self.graph.initializers.items() if name in read)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
        return model

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

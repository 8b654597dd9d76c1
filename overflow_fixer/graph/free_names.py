"""Names for what is put into a model, which nothing in it has."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from overflow_fixer.graph.model import Graph
from overflow_fixer.model_file.subgraphs import all_names, bodies, may_have_bodies


def free_prefix(graph: Graph, wanted: str) -> str:
    """`wanted` in the graph's place, with underscores before it until no name in the model begins with it, bodies included."""
    wanted = graph.place + wanted
    if wanted not in "\n".join(_names_to_avoid(graph)):
        return wanted
    taken = [name for name in all_names(graph.model.graph) if name.lstrip("_").startswith(wanted.lstrip("_"))]
    while any(name.startswith(wanted) for name in taken):
        wanted = "_" + wanted
    return wanted


def _names_to_avoid(graph: Graph) -> Iterable[str]:
    """All of tensors, of nodes, and of what is in bodies."""
    if any(bodies(node.proto) for node in graph.nodes if may_have_bodies(node.op_type, node.domain)):
        return all_names(graph.model.graph)
    labels = (node.label for node in graph.nodes)
    return chain(graph.tensors, labels, (info.name for info in graph.model.graph.value_info))

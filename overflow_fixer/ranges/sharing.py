"""Small tensors that share a probe: a node takes longer than a look at one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import TypeProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.tensor_types import dims_of
from overflow_fixer.ranges.probing import count_elements

_SMALL_ELEMENTS = 1 << 12
_MOST_ELEMENTS = 1 << 16
"""Of a group, and so of what stays in memory behind its last reader."""
_MOST_TENSORS = 64
"""ONNX Runtime opens a session in time quadratic in the number of a node's inputs."""


def find_small(graph: Graph, tensors: Collection[str]) -> dict[str, int]:
    """Those of the tensors that the model says to be small, with their numbers of elements.

    What a model says of sizes need not be true; nothing but time and memory may hang on it.
    """
    found: dict[str, int] = {}
    known: dict[bytes, int | None] = {}  # many are of one type
    for info in (*graph.model.graph.input, *graph.model.graph.value_info):
        if info.name not in tensors:
            continue
        told = info.type.SerializeToString()
        if told not in known:
            known[told] = _count_noted(info.type)
        count = known[told]
        if count is not None and count <= _SMALL_ELEMENTS:
            found[info.name] = count
    return found


def _count_noted(told: TypeProto) -> int | None:
    """The number of elements; None where a dimension is open, which some exporters note as 0 or -1."""
    dims = dims_of(told)
    if dims is None or not all(isinstance(dim, int) and dim > 0 for dim in dims):
        return None
    return count_elements(dims)


def group_small(graph: Graph, counts: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Small tensors, of so many elements, in groups, each in the order in which a run writes them."""
    group, held = list[str](), 0
    for name in sorted(counts, key=lambda name: graph.write_order.get(name, -1)):
        if len(group) == _MOST_TENSORS or held + counts[name] > _MOST_ELEMENTS:
            yield tuple(group)
            group, held = [], 0
        group.append(name)
        held += counts[name]
    if group:
        yield tuple(group)

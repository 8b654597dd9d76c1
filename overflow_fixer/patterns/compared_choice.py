"""What was chosen of a tensor, compared with the tensor itself: x == max(x), a peak that a MaxPool leaves as it is, the k-th largest.

Rounding keeps the order, so this holds in either precision, but not between both: a maximum that is rounded to FP16 is
none of the elements of x in FP32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import COMPARES
from overflow_fixer.patterns.region import Region

_COMPARES = COMPARES | {"Equal"}
_OF_THE_FIRST = frozenset(
    """ReduceMax ReduceMin MaxPool GlobalMaxPool TopK Gather GatherElements GatherND Slice Split Identity Reshape Transpose
    Squeeze Unsqueeze Flatten Expand Tile""".split()
)
"""Operators that give out elements of their first input, as they are."""
_OF_ALL = frozenset("Max Min".split())
_MOST_TENSORS = 16

Way = tuple[str, ...]
"""The labels of nodes, the last first."""


def find_compared_choice(graph: Graph) -> Iterator[Region]:
    """For each comparison the nodes on both sides, back to what both were chosen of; its writer leads where one side is it itself.

    None of constants, nor of tensors that are not of FP32, nor where nothing was chosen.
    """
    for node in graph.nodes:
        if node.standard_op not in _COMPARES or graph.dtypes.get(node.inputs[0]) != TensorProto.FLOAT:
            continue
        one, other = (_trace(graph, name) for name in node.inputs)
        source = next((name for name in one if name in other), None)
        if source is None or source in graph.constants or not (one[source] or other[source]):
            continue
        labels = sorted({*one[source], *other[source]}, key=lambda label: graph.by_label[label].index)
        writer = graph.producers.get(source)
        is_itself = not (one[source] and other[source])
        lead = (writer.label,) if is_itself and writer is not None else ()
        yield Region("choice that is compared", tuple(labels), source, node.outputs[0], lead)


def _trace(graph: Graph, tensor: str) -> Mapping[str, Way]:
    """What the tensor has elements of, the nearest first, each with a way to it."""
    found: dict[str, Way] = {tensor: ()}
    pending = [tensor]
    while pending and len(found) < _MOST_TENSORS:
        name = pending.pop(0)
        node = graph.producers.get(name)
        if node is not None:
            read = [one for one in _find_chosen_of(node) if one and one not in found]
            found.update((one, (*found[name], node.label)) for one in read)
            pending += read
    return found


def _find_chosen_of(node: Node) -> tuple[str, ...]:
    if node.standard_op in _OF_ALL:
        return node.inputs
    return node.inputs[:1] if node.standard_op in _OF_THE_FIRST else ()

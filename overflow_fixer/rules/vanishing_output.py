"""An output of the model that is never zero in FP32, and holds values that FP16 makes zero of.

A variance, a rate, a likelihood of 1e-9: what comes after the model may divide by it, or take its logarithm. What
is about zero by chance, and shares of a whole (Softmax, Sigmoid and products of them), are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph import Graph, Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.paths import find_ways
from overflow_fixer.rules.semantics import moves, operator

_SHARES = frozenset("Softmax Sigmoid HardSigmoid".split())
_KEEPS_SMALL = frozenset("Mul Div Add Sqrt Abs Neg Sum ReduceMin ReduceMean ReduceSum".split())
"""Operators whose small outputs may come from inputs as small."""


def find_vanishing_outputs(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such output that the node writes, or computes what is moved into it.

    Only where every value that was seen has one sign, and none is zero, NaN or infinite. `value` is the smallest
    magnitude.
    """
    for output, least in _evidence(graph, ranges).get(node.label, {}).items():
        reason = (
            f"the output {output} is never zero and has values down to {least:.3g}, which FP16 makes zero"
        )
        yield Finding("vanishing_output", node.label, output, least, FP16_UNDERFLOW, reason)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, float]]:
    """For each node concerned, the outputs and the smallest magnitude in what it hands to each."""
    found: dict[str, dict[str, float]] = {}
    for output in graph.outputs:
        for tensor in _moved_into(graph, output):
            if _vanishes(graph, ranges, tensor) and not _is_share(graph, tensor):
                least = ranges.by_tensor[tensor].min_nonzero_abs
                for node in (*_writers(graph, ranges, tensor), *_movers(graph, tensor, output)):
                    found.setdefault(node.label, {}).setdefault(output, least)
    return found


def _moved_into(graph: Graph, output: str) -> Iterator[str]:
    """The tensors of which the output has its values, themselves not moved but computed."""
    pending, seen = [output], {output}
    while pending:
        tensor = pending.pop()
        node = graph.producers.get(tensor)
        if node is None or tensor in graph.constants:
            continue
        if not moves(node, 0):
            yield tensor
            continue
        fresh = [name for slot, name in enumerate(node.inputs) if moves(node, slot) and name not in seen]
        seen.update(fresh)
        pending += fresh


def _movers(graph: Graph, tensor: str, output: str) -> tuple[Node, ...]:
    """The nodes that move the tensor's values into the output."""
    return find_ways(graph, tensor, moves, lambda node, slot: moves(node, slot) and output in node.outputs)


def _writers(graph: Graph, ranges: RangeTable, tensor: str) -> Iterator[Node]:
    """The node that writes the tensor, and those before it that write values as small for it."""
    pending, seen = [tensor], {tensor}
    while pending:
        node = graph.producers[pending.pop()]
        yield node
        for name in node.inputs if operator(node) in _KEEPS_SMALL or moves(node, 0) else ():
            if name not in seen and name in graph.producers and _vanishes(graph, ranges, name):
                seen.add(name)
                pending.append(name)


def _vanishes(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    if seen is None or tensor in graph.constants or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return False
    is_one_signed = (seen.min > 0 or seen.max < 0) and not seen.nan_count and not seen.inf_count
    return is_one_signed and 0 < seen.min_nonzero_abs <= FP16_UNDERFLOW


def _is_share(graph: Graph, tensor: str) -> bool:
    """Whether it is a Softmax or Sigmoid, or a product of such, moved or not."""
    pending, seen = [tensor], {tensor}
    while pending:
        node = graph.producers.get(pending.pop())
        if node is None or not (_makes_share(graph, node) or operator(node) == "Mul" or moves(node, 0)):
            return False
        if not _makes_share(graph, node):
            fresh = [
                n
                for s, n in enumerate(node.inputs)
                if (moves(node, s) or operator(node) == "Mul") and n not in seen
            ]
            seen.update(fresh)
            pending += fresh
    return True


def _makes_share(graph: Graph, node: Node) -> bool:
    """Whether it is such an operator, or the division that ends a softmax written out."""
    if operator(node) != "Div":
        return operator(node) in _SHARES
    total = graph.producers.get(node.inputs[1])
    return total is not None and operator(total) == "ReduceSum" and total.inputs[0] == node.inputs[0]

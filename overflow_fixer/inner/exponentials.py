"""What an exponential loses where FP16 rounds the terms of the differences in its exponent, as exp(−β (t1 − t2)) of times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rounded_terms import Differences, compute_rounded, find_differences
from overflow_fixer.inner.rounding import measure_loss


class Exponent(NamedTuple):
    """What the exponent of `exponential` is made of."""

    exponential: Node
    differences: Differences


def find_in_exponential(expression: Expression) -> Iterator[Found]:
    """The root mean square of what it loses, as a share of that of what it gives; 0 where that is zero.

    Of one that nothing but a Mul reads it is that of the product: a mask may take most of it away. Nothing of an exponent
    without a difference, or less its largest element: a softmax that is written out.
    """
    exponent = find_exponent(expression.graph, expression.node)
    if exponent is not None:
        behind = [exponent.exponential, *([expression.node] if expression.node.op_type == "Mul" else [])]
        rounded = compute_rounded(expression, exponent.differences, behind)
        yield "exponent loss", measure_loss(expression, rounded)


def has_exponential(graph: Graph, node: Node) -> bool:
    """Whether there is an Exp to look into; of most Mul nodes, of which networks have many, there is none."""
    return _find_exponential(graph, node) is not None


def find_exponent(graph: Graph, node: Node) -> Exponent | None:
    """That of an Exp, or of one that the node multiplies; None without a difference of data: see find_differences."""
    exponential = _find_exponential(graph, node)
    differences = None if exponential is None else find_differences(graph, exponential.inputs[0])
    return None if exponential is None or differences is None else Exponent(exponential, differences)


def _find_exponential(graph: Graph, node: Node) -> Node | None:
    """The node, if it is an Exp, or the one that it alone multiplies."""
    if node.standard_op == "Exp":
        return None if _find_product(graph, node) is not None else node
    writers = (graph.producers.get(name) for name in node.inputs)
    return next(
        (
            one
            for one in writers
            if one is not None and one.standard_op == "Exp" and _find_product(graph, one) is node
        ),
        None,
    )


def _find_product(graph: Graph, exponential: Node) -> Node | None:
    """The Mul that alone reads it."""
    name = exponential.outputs[0]
    readers = graph.consumers.get(name, ())
    is_product = len(readers) == 1 and readers[0].standard_op == "Mul" and name not in graph.outputs
    return readers[0] if is_product else None

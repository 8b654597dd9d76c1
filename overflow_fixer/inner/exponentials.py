"""What an exponential loses where FP16 rounds the terms of the differences in its exponent, as exp(−β (t1 − t2)) of times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.powers import divide, measure_power
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.quiet_rows import find_statistic

DIFFERENCES = frozenset("Add Sub".split())
_HANDS_ON = frozenset(
    """Mul Div Neg Abs Relu Clip Min Max Where Pow Sqrt ReduceSum ReduceMean ReduceSumSquare ReduceL1 ReduceL2 Identity
    Reshape Transpose Squeeze Unsqueeze Flatten Expand Slice Gather""".split()
)
_MOST_NODES = 16
"""So many are followed: a long chain of sums is no exponent."""


class Exponent(NamedTuple):
    """What computes the exponent of `exponential`, in order: differences, what is made of them, and their `terms`, but for differences."""

    exponential: Node
    nodes: tuple[Node, ...]
    terms: tuple[str, ...]


def find_in_exponential(expression: Expression) -> Iterator[Found]:
    """The root mean square of what it loses, as a share of that of what it gives; 0 where that is zero.

    Of one that nothing but a Mul reads it is that of the product: a mask may take most of it away. Nothing of an exponent
    without a difference, or less its largest element: a softmax that is written out.
    """
    exponent = find_exponent(expression.graph, expression.node)
    if exponent is not None:
        output = expression.node.outputs[0]
        rounded = _compute_rounded(expression, exponent)
        lost = measure_power(expression, expression.apply("Sub", rounded, output))
        share = divide(expression, lost, measure_power(expression, output))
        yield "exponent loss", expression.apply("Sqrt", share)


def has_exponential(graph: Graph, node: Node) -> bool:
    """Whether there is an Exp to look into; of most Mul nodes, of which networks have many, there is none."""
    return _find_exponential(graph, node) is not None


def find_exponent(graph: Graph, node: Node) -> Exponent | None:
    """That of an Exp, or of one that the node multiplies; None without a difference of data.

    As far back as a few moves, factors, bounds, reductions and added constants lead, up to the first.
    """
    exponential = _find_exponential(graph, node)
    found: list[Node] = []
    made, terms = set[str](), list[str]()
    for one in _walk_back(graph, exponential.inputs[0]) if exponential is not None else ():
        is_difference = one.standard_op in DIFFERENCES
        if is_difference and _subtracts_largest(graph, one):
            return None
        if is_difference or not made.isdisjoint(one.inputs):
            found.append(one)
            terms += [name for name in one.inputs if is_difference and name not in made]
            made.update(one.writes)
    if exponential is None or all(name in graph.constants for name in terms):
        return None
    return Exponent(exponential, tuple(found), tuple(dict.fromkeys(terms)))


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


def _walk_back(graph: Graph, tensor: str) -> list[Node]:
    """The nodes on the ways to the tensor, in order, from the last differences of data on."""
    found: dict[str, Node] = {}
    pending = [tensor]
    while pending and len(found) < _MOST_NODES:
        node = graph.producers.get(pending.pop(0))
        if node is not None and node.label not in found and _hands_on(graph, node):
            found[node.label] = node
            is_end = node.standard_op in DIFFERENCES and graph.constants.keys().isdisjoint(node.inputs)
            read = (name for name in node.inputs if graph.dtypes.get(name) == TensorProto.FLOAT)
            pending += () if is_end else read
    return sorted(found.values(), key=lambda one: one.index)


def _hands_on(graph: Graph, node: Node) -> bool:
    is_fp32 = graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT
    is_made = node.outputs[0] not in graph.constants
    return is_fp32 and is_made and (node.standard_op in _HANDS_ON or node.standard_op in DIFFERENCES)


def _subtracts_largest(graph: Graph, node: Node) -> bool:
    statistic = find_statistic(graph, node.inputs[1]) if node.standard_op == "Sub" else None
    return statistic is not None and statistic.standard_op == "ReduceMax"


def _compute_rounded(expression: Expression, exponent: Exponent) -> str:
    """What the node writes, once more, of terms that FP16 rounds; what else reads them has them as they are."""
    names = {name: _round(expression, name) for name in exponent.terms}
    behind = [exponent.exponential, *([expression.node] if expression.node.op_type == "Mul" else [])]
    for node in (*exponent.nodes, *behind):
        is_difference = node.standard_op in DIFFERENCES
        made = {name: to for name, to in names.items() if is_difference or name not in exponent.terms}
        names[node.outputs[0]] = _repeat(expression, node, [made.get(name, name) for name in node.inputs])
    return names[expression.node.outputs[0]]


def _round(expression: Expression, tensor: str) -> str:
    half = expression.apply("Cast", tensor, to=TensorProto.FLOAT16)
    return expression.apply("Cast", half, to=TensorProto.FLOAT)


def _repeat(expression: Expression, node: Node, inputs: list[str]) -> str:
    """The same node of other inputs."""
    output = expression.apply(node.op_type, *inputs)
    expression.nodes[-1].attribute.extend(node.proto.attribute)
    return output

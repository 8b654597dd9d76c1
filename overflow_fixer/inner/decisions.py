"""Of how many elements a comparison decides otherwise where FP16 rounds the terms of the differences that are compared."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import COMPARES
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rounded_terms import Differences, compute_rounded, find_differences
from overflow_fixer.inner.rounding import divide, measure_power


def find_in_comparison(expression: Expression) -> Iterator[Found]:
    """Their number, as a share of those that are true, or false, whichever are fewer; 0 where there are none of these."""
    differences = find_compared(expression.graph, expression.node)
    if differences is not None:
        rounded = compute_rounded(expression, differences, [expression.node])
        decided = expression.node.outputs[0]
        otherwise = _measure_share(expression, expression.apply("Xor", rounded, decided))
        true = _measure_share(expression, decided)
        false = expression.apply("Sub", expression.number(1.0), true)
        yield "decided otherwise", divide(expression, otherwise, expression.apply("Min", true, false))


def find_compared(graph: Graph, node: Node) -> Differences | None:
    """What is compared with constants that are not zero: at zero either way leads to little, mostly; None without a difference."""
    computed = [name for name in node.inputs if name not in graph.constants]
    if node.standard_op not in COMPARES or len(computed) != 1:
        return None
    number = next((graph.find_constant(name) for name in node.inputs if name in graph.constants), None)
    return find_differences(graph, computed[0]) if number is not None and number.any() else None


def _measure_share(expression: Expression, decided: str) -> str:
    return measure_power(expression, expression.apply("Cast", decided, to=TensorProto.FLOAT))

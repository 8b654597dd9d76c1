"""What operators make of values near zero: the tables that the rules of small values share, and whether a node keeps or divides by it.

They hold for the standard operators alone. What only moves elements is told by semantics.moves; operators that no table
names, such as Exp, Softmax and Sigmoid, are not zero at zero, or hide what was near it.
"""

from __future__ import annotations

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, DIVISOR_SLOTS, SCATTERS
from overflow_fixer.graph.powers import read_exponent

ELEMENTWISE = frozenset(
    """Mul Div Mod Neg Abs Relu LeakyRelu PRelu ThresholdedRelu Shrink Elu Selu Celu Gelu Mish Swish HardSwish
    Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf Sqrt Pow Reciprocal Log Sign Floor Ceil Clip Dropout LRN
    ReduceMax ReduceMin ReduceProd MaxPool GlobalMaxPool Resize Upsample""".split()
)
"""Operators whose output loses, element by element, the share that their input lost."""
PLACES = SCATTERS | frozenset("Where Pad Trilu TopK CenterCropPad MaxUnpool".split())
"""Operators that put what comes in beside other values, as it is."""
SUMS = frozenset(
    """MatMul Einsum Gemm Conv ConvTranspose ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare AveragePool
    GlobalAveragePool LpPool GlobalLpPool ReduceLogSum CumSum LayerNormalization InstanceNormalization
    GroupNormalization RMSNormalization LpNormalization MeanVarianceNormalization""".split()
)
"""The same of sums over elements, in which larger ones hide it."""
TERMS = ADDS | frozenset("Mean Max Min HardSigmoid".split())
"""Operators whose output hides the loss where another term is much larger."""
NO_SMALLER = PLACES | frozenset(
    """Neg Abs Relu Clip Max Min ReduceMax ReduceMin MaxPool GlobalMaxPool ReduceL1 ReduceL2 LpPool GlobalLpPool""".split()
)
"""Operators whose output is an element that came in, or a bound, or no smaller: a value near zero was one before."""
_ZERO_AT_ZERO = frozenset(
    """Sqrt Mul Abs Neg Relu LeakyRelu PRelu Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf""".split()
)
_DIVIDES = {**DIVISOR_SLOTS, "Log": 0}


def keeps_zero(graph: Graph, node: Node, slot: int) -> bool:
    """Whether the node makes zero of zero, and a value near zero of one near zero, element by element, of what it reads there."""
    is_plain = node.standard_op in _ZERO_AT_ZERO or moves(node, slot) or read_exponent(graph, node) > 0
    return is_plain or (node.standard_op == "Div" and slot == 0)


def divides(graph: Graph, node: Node, slot: int) -> bool:
    """Whether zero at the slot makes infinity or NaN: a quotient, a logarithm, a negative power."""
    return _DIVIDES.get(node.standard_op) == slot or (slot == 0 and read_exponent(graph, node) < 0)

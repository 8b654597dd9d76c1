"""What operators make of values near zero: the tables that the rules of small values share.

They hold for the standard operators alone. What only moves elements is told by semantics.moves; operators that no table
names, such as Exp, Softmax and Sigmoid, are not zero at zero, or hide what was near it.
"""

from __future__ import annotations

ELEMENTWISE = frozenset(
    """Mul Div Mod Neg Abs Relu LeakyRelu PRelu ThresholdedRelu Shrink Elu Selu Celu Gelu Mish Swish HardSwish
    Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf Sqrt Pow Reciprocal Log Sign Floor Ceil Clip Dropout LRN
    ReduceMax ReduceMin ReduceProd MaxPool GlobalMaxPool Resize Upsample""".split()
)
"""Operators whose output loses, element by element, the share that their input lost."""
PLACES = frozenset("Where Pad Trilu TopK Scatter ScatterElements ScatterND CenterCropPad MaxUnpool".split())
"""Operators that put what comes in beside other values, as it is."""
SUMS = frozenset(
    """MatMul Einsum Gemm Conv ConvTranspose ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare AveragePool
    GlobalAveragePool LpPool GlobalLpPool ReduceLogSum CumSum LayerNormalization InstanceNormalization
    GroupNormalization RMSNormalization LpNormalization MeanVarianceNormalization""".split()
)
"""The same of sums over elements, in which larger ones hide it."""
TERMS = frozenset("Add Sub Sum Mean Max Min HardSigmoid".split())
"""Operators whose output hides the loss where another term is much larger."""
NO_SMALLER = PLACES | frozenset(
    """Neg Abs Relu Clip Max Min ReduceMax ReduceMin MaxPool GlobalMaxPool ReduceL1 ReduceL2 LpPool GlobalLpPool""".split()
)
"""Operators whose output is an element that came in, or a bound, or no smaller: a value near zero was one before."""

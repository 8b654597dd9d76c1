"""The number of dimensions of what common operators write, by a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import TensorProto

from overflow_fixer.graph.nodes import Node

REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
).split()
BROADCAST = "Add BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul PRelu Pow Sub Sum".split()
OF_ONE_RANK = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitwiseNot Ceil Celu CenterCropPad Clip "
    "Concat Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace Dropout Elu Erf Exp Floor Gelu Gemm "
    "GlobalAveragePool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Hardmax Identity "
    "InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool MaxPool MaxUnpool "
    "MeanVarianceNormalization Mish Neg Pad RMSNormalization Reciprocal Relu Resize ReverseSequence RoiAlign "
    "RotaryEmbedding Round Selu Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt "
    "Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Upsample"
).split()
_ALSO_OF_ONE_RANK = "Cast ConvInteger DequantizeLinear IsInf IsNaN Not QLinearConv QuantizeLinear".split()

RANKED_INPUTS: Mapping[str, int | None] = {
    **dict.fromkeys([*OF_ONE_RANK, *_ALSO_OF_ONE_RANK], 1),
    **dict.fromkeys([*BROADCAST, "Where"], None),
}
"""Of operators whose outputs have the greatest rank of their first inputs: how many of those; None: all."""

Constants = Mapping[str, TensorProto]
Ranks = Mapping[str, int]


def find_rank(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    """Of each output of a standard node; None where nobody knows."""
    if node.op_type in RANKED_INPUTS:
        return _find_greatest(node.inputs[: RANKED_INPUTS[node.op_type]], ranks)
    find = RANKS.get(node.op_type)
    return None if find is None else find(node, constants, ranks)


def _find_greatest(names: Sequence[str], ranks: Ranks) -> int | None:
    return max(_find_all(names, ranks) or (), default=None)


def _find_all(names: Sequence[str], ranks: Ranks) -> list[int] | None:
    """Of each; None where not all are known."""
    found = [ranks[name] for name in names if name in ranks]
    return found if len(found) == len(names) else None


def _count_listed(node: Node, constants: Constants) -> int | None:
    """How many numbers the second input holds, a constant, or below opset 13 the axes."""
    if len(node.inputs) > 1:
        listed = constants.get(node.inputs[1])
        return listed.dims[0] if listed is not None and len(listed.dims) == 1 else None
    axes = node.attribute("axes")
    return None if axes is None else len(axes.ints)


def _reshape(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    return _count_listed(node, constants) if len(node.inputs) > 1 else None


def _reduce(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    keeps = node.attribute("keepdims")
    return _find_greatest(node.inputs[:1], ranks) if keeps is None or keeps.i else None


def _squeeze(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    """Where none is named, all of one element are dropped."""
    rank, axes = _find_greatest(node.inputs[:1], ranks), _count_listed(node, constants)
    return None if rank is None or not axes else rank - axes


def _unsqueeze(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    rank, axes = _find_greatest(node.inputs[:1], ranks), _count_listed(node, constants)
    return None if rank is None or axes is None else rank + axes


def _gather(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    found = _find_all(node.inputs, ranks)
    return sum(found) - 1 if found and len(found) == 2 else None


def _multiply(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    """Of a MatMul, in which a vector stands for a matrix of one row or column, which the output does not have."""
    found = _find_all(node.inputs, ranks)
    return max(*found, 2) - found.count(1) if found and len(found) == 2 else None


def _expand(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    rank, dims = _find_greatest(node.inputs[:1], ranks), _count_listed(node, constants)
    return None if rank is None or dims is None else max(rank, dims)


def _fill(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    shape = constants.get(node.inputs[0]) if node.inputs else None
    return shape.dims[0] if shape is not None and len(shape.dims) == 1 else None


def _sum_letters(node: Node, constants: Constants, ranks: Ranks) -> int | None:
    """Of an Einsum that says what it gives, in letters alone."""
    found = node.attribute("equation")
    _, arrow, output = (
        found.s.decode().replace(" ", "").partition("->") if found is not None else ("", "", "")
    )
    return len(output) if arrow and "." not in output else None


RANKS: Mapping[str, Callable[[Node, Constants, Ranks], int | None]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "ConstantOfShape": _fill,
    "Einsum": _sum_letters,
    "Expand": _expand,
    "Flatten": lambda *_: 2,
    "Gather": _gather,
    "MatMul": _multiply,
    "Reshape": _reshape,
    "Shape": lambda *_: 1,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
"""Of other operators, what tells the rank."""

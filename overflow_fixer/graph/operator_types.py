"""The types of what common operators write, by a table.

ONNX's inference knows every operator, and shapes besides; but the table of operators that it builds takes 8 MB and 0.02 s,
which a small network's scan is better without. Models with other operators, or other outputs of these, are left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import TensorProto

from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_ranks import BROADCAST, OF_ONE_RANK, REDUCTIONS, find_rank

_OF_ONE_TYPE = (
    "Col2Im Compress Det Einsum Expand Flatten GRU Gather GatherElements GatherND GlobalLpPool LSTM MatMul RNN Range Reshape "
    "ScatterElements ScatterND Squeeze TensorScatter Unique Unsqueeze"
).split()

TYPED_INPUT: Mapping[str, int] = {
    **dict.fromkeys([*REDUCTIONS, *BROADCAST, *OF_ONE_RANK, *_OF_ONE_TYPE], 0),
    **dict.fromkeys(["LayerNormalization", "RMSNormalization", "Where"], 1),
    "OneHot": 2,
    **dict.fromkeys(["QLinearConv", "QLinearMatMul"], 7),
}
"""Of operators whose first output has the type of one of their inputs: which. Below opset 17, where ONNX Runtime takes a
LayerNormalization all the same, its output has the type of the scale."""
FIXED_TYPES: Mapping[str, int] = {
    **dict.fromkeys("ArgMax ArgMin NonMaxSuppression NonZero Shape Size".split(), TensorProto.INT64),
    **dict.fromkeys(
        "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor".split(), TensorProto.BOOL
    ),
    **dict.fromkeys(["ConvInteger", "MatMulInteger"], TensorProto.INT32),
    "DynamicQuantizeLinear": TensorProto.UINT8,
}
OTHER_OUTPUTS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(["GRU", "LSTM", "RNN", "Split"], (TensorProto.UNDEFINED,)),
    **dict.fromkeys(["TopK", "Unique"], (TensorProto.INT64,)),
    "DynamicQuantizeLinear": (TensorProto.FLOAT, TensorProto.UINT8),
}
"""The types of the outputs behind the first, the last also of those behind it; undefined: that of the first. Of no other operator
there may be any."""
QUANTIZING: Mapping[str, int] = {"DequantizeLinear": 1, "QuantizeLinear": 2}
"""Of operators whose output has the type that an attribute names: the input that has it where there is none."""
PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "Resize": (1, 2),
    "Upsample": (1,),
    "OneHot": (0, 1),
    "Range": (0, 1, 2),
    "MelWeightMatrix": (3, 4),
}
"""Float inputs that say what to do, not what to do it to: an artifact reads them in FP32, whatever the node runs in."""
BODY_OUTPUTS: Mapping[str, tuple[str, int]] = {
    "If": ("then_branch", 0),
    "Loop": ("body", 1),
    "Scan": ("body", 0),
}
"""Of operators that give what a body gives: which body, and the first of its outputs that is one of theirs."""


def tell_outputs(
    nodes: Iterable[Node],
    constants: Mapping[str, TensorProto],
    dtypes: dict[str, int],
    ranks: dict[str, int],
) -> bool:
    """Add the types of what nodes in topological order write, and the ranks that are known, in place.

    What `constants` tell must be there already. False at the first node of which the table does not tell.
    """
    for node in nodes:
        if node.standard_op == "Constant" and node.outputs and node.outputs[0] in constants:
            continue
        types = _find_types(node, dtypes) if node.is_standard else None
        if types is None:
            return False
        rank = find_rank(node, constants, ranks)
        for name, elem_type in zip(node.outputs, types, strict=True):
            if name:
                dtypes[name] = elem_type
            if name and rank is not None:
                ranks[name] = rank
    return True


def _find_types(node: Node, dtypes: Mapping[str, int]) -> list[int] | None:
    """Of each output; None where not all can be told."""
    if node.op_type in BODY_OUTPUTS:
        return _find_body_types(node)
    first, others = _find_type(node, dtypes), OTHER_OUTPUTS.get(node.op_type, ())
    if first is None or (any(node.outputs[1:]) and not others):
        return None
    count = len(node.outputs) - 1
    types = [one or first for one in others] or [first]
    return [first, *types[:count], *types[-1:] * (count - len(types))]


def _find_body_types(node: Node) -> list[int] | None:
    """As a body declares them; ONNX Runtime refuses one that declares others than it has."""
    attribute, first = BODY_OUTPUTS[node.op_type]
    body = node.attribute(attribute)
    infos = [] if body is None else list(body.g.output)[first:]
    types = [info.type.tensor_type.elem_type for info in infos]
    is_told = len(types) >= len(node.outputs) and TensorProto.UNDEFINED not in types
    return types[: len(node.outputs)] if is_told else None


def _find_type(node: Node, dtypes: Mapping[str, int]) -> int | None:
    if node.op_type in TYPED_INPUT:
        slot = TYPED_INPUT[node.op_type]
        return dtypes.get(node.inputs[slot]) if slot < len(node.inputs) else None
    if node.op_type in QUANTIZING:
        return _find_quantized_type(node, dtypes)
    if node.op_type == "Cast":
        to = node.attribute("to")
        return None if to is None else to.i
    if node.op_type == "ConstantOfShape":
        value = node.attribute("value")
        return TensorProto.FLOAT if value is None else value.t.data_type
    return FIXED_TYPES.get(node.op_type)


def _find_quantized_type(node: Node, dtypes: Mapping[str, int]) -> int | None:
    told, slot = node.attribute("output_dtype"), QUANTIZING[node.op_type]
    if told is not None and told.i:
        return told.i
    if any(node.inputs[slot:]):
        return dtypes.get(node.inputs[slot])
    return TensorProto.UINT8 if node.op_type == "QuantizeLinear" else None

"""What each operator lets FP16 do: which inputs and outputs follow the node's type, and what must stay FP32.

Taken from the operator's own ONNX schema at the model's opset; the exceptions are what TensorRT's ONNX
parser refuses or does unsafely with FP16 (measured and read in its source; see docs/typed-onnx.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx
from onnx.defs import OpSchema

from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_types import PARAMETERS
from overflow_fixer.model_file.subgraphs import bodies

_FP16 = "tensor(float16)"

_NORMALIZATION = "its sums of squares would run in FP16 under strong typing"
_GENERATOR = "its type is an attribute; TensorRT generates it in FP32"
_SCALES = "quantization scales keep their type"
KEPT_OPS = {
    "LayerNormalization": _NORMALIZATION,
    "RMSNormalization": _NORMALIZATION,
    "GroupNormalization": _NORMALIZATION,
    "InstanceNormalization": _NORMALIZATION,
    "MeanVarianceNormalization": _NORMALIZATION,
    "LpNormalization": _NORMALIZATION,
    "LRN": _NORMALIZATION,
    "LpPool": _NORMALIZATION,
    "GlobalLpPool": _NORMALIZATION,
    "ReduceL2": _NORMALIZATION,
    "ReduceSumSquare": _NORMALIZATION,
    "CumSum": "what has been added up would be rounded at each step under strong typing",
    "CumProd": "what has been multiplied would be rounded at each step under strong typing",
    "AffineGrid": "ONNX Runtime has no FP16 kernel for it",
    "Range": "TensorRT has no FP16 Range",
    "Celu": "TensorRT's parser gives Celu FP32 constants",
    "Upsample": "TensorRT's parser takes FP32 alone here",
    "HannWindow": "TensorRT's parser takes FP32 alone here",
    "HammingWindow": "TensorRT's parser takes FP32 alone here",
    "BlackmanWindow": "TensorRT's parser takes FP32 alone here",
    "NonMaxSuppression": "TensorRT's parser takes FP32 alone here",
    "QuantizeLinear": _SCALES,
    "DequantizeLinear": _SCALES,
    "DynamicQuantizeLinear": _SCALES,
    "CastLike": "its type comes from another tensor",
    "BitCast": "it reads the bits of an FP32 value",
    "EyeLike": _GENERATOR,
    "MelWeightMatrix": _GENERATOR,
    "Multinomial": _GENERATOR,
    "Bernoulli": _GENERATOR,
    "RandomNormal": _GENERATOR,
    "RandomNormalLike": _GENERATOR,
    "RandomUniform": _GENERATOR,
    "RandomUniformLike": _GENERATOR,
}
"""Operators that stay in FP32 whatever the plan says, and why."""

_RECURRENT = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
_SCATTERS = ("ScatterElements", "ScatterND")


def reason_to_keep(node: Node, opset: int) -> str | None:
    """Why a node that computes floats cannot run in FP16, or None where it can."""
    if bodies(node.proto):
        return "control flow stays in FP32 as one node"
    if not node.is_standard or schema_of(node.op_type, opset) is None:
        return f"not a standard ONNX operator (domain {node.domain!r}), so its FP16 support is unknown"
    if node.op_type in KEPT_OPS:
        return KEPT_OPS[node.op_type]
    if node.op_type == "Gemm" and any(node.value_of(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return "TensorRT's parser makes Gemm's alpha and beta FP32 scalars"
    if node.op_type == "IsInf" and any(
        node.value_of(name, 1) != 1 for name in ("detect_negative", "detect_positive")
    ):
        return "TensorRT's parser gives a one-sided IsInf an FP32 zero"
    if node.op_type in _SCATTERS and node.value_of("reduction", b"none") != b"none":
        return "ONNX Runtime has no FP16 kernel for a scatter that reduces"
    state = _RECURRENT.get(node.op_type, ())
    if any(slot >= len(node.inputs) or not node.inputs[slot] for slot in state):
        return "TensorRT's parser gives a recurrent node without initial state FP32 zeros"
    return None


def input_follows(node: Node, opset: int, slot: int) -> bool:
    """Whether this float input takes FP16 when the node does; False for one ONNX fixes to FP32."""
    schema = schema_of(node.op_type, opset)
    if schema is None or slot in PARAMETERS.get(node.op_type, ()):
        return False
    return _allows_fp16(schema, schema.inputs, slot)


def output_follows(node: Node, opset: int, slot: int) -> bool:
    """Whether this float output becomes FP16 when the node does; False for one ONNX fixes to FP32."""
    schema = schema_of(node.op_type, opset)
    return schema is not None and _allows_fp16(schema, schema.outputs, slot)


@cache
def schema_of(op_type: str, opset: int) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None


def _allows_fp16(schema: OpSchema, parameters: Sequence[OpSchema.FormalParameter], slot: int) -> bool:
    if not parameters:
        return False
    kind = parameters[min(slot, len(parameters) - 1)].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == kind), [kind])
    return _FP16 in allowed

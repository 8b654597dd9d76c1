"""The nodes of one probe: they reduce a float tensor to scalars, each a vector of one element.

A *quick* probe takes QUICK and tells everything of a tensor whose L1 norm is finite and whose values
lie within FP16's range. ONNX Runtime's ReduceMax and ReduceMin drop a NaN that is not the first
element; the L1 norm cannot lose one, nor cancel. A *detailed* probe takes DETAILED and tells
everything of any tensor, at several times the cost.

Only operators that are the same from opset 9 on; reductions have no axes (an attribute, later an
input) and run over the tensor made flat, so that any rank and an empty tensor are no special case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.formats import FP16_OVERFLOW

QUICK = ("max", "min", "l1", "min_nonzero_abs", "size")
DETAILED = ("max", "min", "min_nonzero_abs", "size", "nan", "below", "finite")

_COUNTS = frozenset({"size", "nan", "below", "finite"})
_TINY: dict[int, float] = {TensorProto.FLOAT: 2.0**-149, TensorProto.DOUBLE: 2.0**-1074}
"""The least magnitude that is not zero."""
_CAST_TO: dict[int, onnx.AttributeProto] = {
    elem_type: onnx.helper.make_attribute("to", elem_type)
    for elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT64)
}


@dataclass(frozen=True)
class Probe:
    """The probe of `tensor`, of ONNX element type `dtype`, one of graph.FLOAT_TYPES.

    Its tensors are named `prefix` and a word, the constants that all probes share `shared` and a word.
    """

    tensor: str
    dtype: int
    prefix: str
    shared: str
    is_detailed: bool

    @property
    def scalars(self) -> tuple[str, ...]:
        """What is to be fetched: the names of QUICK or DETAILED."""
        return tuple(self.prefix + word for word in (DETAILED if self.is_detailed else QUICK))

    @property
    def scalar_types(self) -> tuple[int, ...]:
        """The ONNX element type of each scalar: int64 for counts, else float or double."""
        words = DETAILED if self.is_detailed else QUICK
        return tuple(TensorProto.INT64 if word in _COUNTS else self._float for word in words)

    def nodes(self) -> Iterator[NodeProto]:
        source = self.tensor
        if self.dtype != self._float:
            yield from widen(self.tensor, self.prefix)
            source = self.prefix + "wide"
        flat = self.prefix + "flat"
        yield _node("Reshape", [source, self.shared + "flat"], flat)
        yield _node("Shape", [flat], self.prefix + "size")
        yield from self._detailed(flat) if self.is_detailed else self._quick(flat)

    def _quick(self, flat: str) -> Iterator[NodeProto]:
        p = self.prefix
        yield _node("ReduceMax", [flat], p + "max")
        yield _node("ReduceMin", [flat], p + "min")
        yield _node("ReduceL1", [flat], p + "l1")
        yield from self._min_nonzero_in_range(flat)

    def _min_nonzero_in_range(self, flat: str) -> Iterator[NodeProto]:
        """The least of |x| with 65520 added to zeros: 65520 or more says that there was no other.

        Exact, for x + 0 is x. A Where does the same more slowly and with more copies of x.
        """
        p = self.prefix
        yield _node("Abs", [flat], p + "abs")
        yield _node("Less", [p + "abs", self._constant("tiny")], p + "is_zero")
        yield _cast(p + "is_zero", p + "zero", self._float)
        yield _node("Mul", [p + "zero", self._constant("limit")], p + "raise")
        yield _node("Add", [p + "abs", p + "raise"], p + "raised")
        yield _node("ReduceMin", [p + "raised"], p + "min_nonzero_abs")

    def _detailed(self, flat: str) -> Iterator[NodeProto]:
        p, inf = self.prefix, self._constant("inf")
        yield _node("IsNaN", [flat], p + "is_nan")
        yield _node("Where", [p + "is_nan", self._constant("minus_inf"), flat], p + "low")
        yield _node("ReduceMax", [p + "low"], p + "max")
        yield _node("Where", [p + "is_nan", inf, flat], p + "high")
        yield _node("ReduceMin", [p + "high"], p + "min")
        yield _node("Abs", [p + "high"], p + "abs")
        yield _cast(flat, p + "is_nonzero", TensorProto.BOOL)
        yield _node("Where", [p + "is_nonzero", p + "abs", inf], p + "nonzero_abs")
        yield _node("ReduceMin", [p + "nonzero_abs"], p + "min_nonzero_abs")
        yield from self._counts()

    def _counts(self) -> Iterator[NodeProto]:
        """Exact counts, in int64: NaN (which is infinite in `abs`), |x| < 65520 and |x| < inf."""
        p = self.prefix
        yield _node("Less", [p + "abs", self._constant("limit")], p + "is_below")
        yield _node("Less", [p + "abs", self._constant("inf")], p + "is_finite")
        for word in ("nan", "below", "finite"):
            yield _cast(p + "is_" + word, p + word + "_ones", TensorProto.INT64)
            yield _node("ReduceSum", [p + word + "_ones"], p + word)

    @property
    def _float(self) -> int:
        """What it is reduced in."""
        return TensorProto.DOUBLE if self.dtype == TensorProto.DOUBLE else TensorProto.FLOAT

    def _constant(self, word: str) -> str:
        return f"{self.shared}{word}_{self._float}"


def shared_constants(shared: str) -> Iterator[NodeProto]:
    """The constants of all probes. Nodes, for in old models an initializer must be an input too."""
    yield _constant(onnx.helper.make_tensor(shared + "flat", TensorProto.INT64, [1], [-1]))
    for elem_type, tiny in _TINY.items():
        values = {"inf": float("inf"), "minus_inf": float("-inf"), "limit": FP16_OVERFLOW, "tiny": tiny}
        for word, value in values.items():
            yield _constant(onnx.helper.make_tensor(f"{shared}{word}_{elem_type}", elem_type, [], [value]))


def widen(tensor: str, prefix: str) -> Iterator[NodeProto]:
    """Nodes that give an FP16 or BF16 tensor as the float tensor `prefix` + "wide".

    ONNX Runtime runs most FP16 nodes in float and drops the Casts between them. A Cast of ours would
    be dropped too and show values that were never rounded; the Identity keeps the tensor itself.
    """
    yield _node("Identity", [tensor], prefix + "narrow")
    yield _cast(prefix + "narrow", prefix + "wide", TensorProto.FLOAT)


def _node(op_type: str, inputs: Sequence[str], output: str) -> NodeProto:
    return NodeProto(op_type=op_type, input=inputs, output=[output])


def _cast(source: str, output: str, elem_type: int) -> NodeProto:
    return NodeProto(op_type="Cast", input=[source], output=[output], attribute=[_CAST_TO[elem_type]])


def _constant(tensor: TensorProto) -> NodeProto:
    return onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)

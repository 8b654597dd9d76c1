"""The nodes of one probe: they reduce a float tensor to a few short vectors.

A *quick* probe takes QUICK and tells everything of a tensor whose sum is not NaN and whose values lie
within FP16's range. ONNX Runtime's ReduceMax and ReduceMin drop a NaN that is not the first element;
a sum cannot lose one, whatever its order. (That it can be NaN or infinite for finite values costs a
detailed probe, and no truth.) A *detailed* probe takes DETAILED and tells everything of any tensor, at
several times the cost; a *native* one does so at the cost of one reduction (see overflow_fixer.native).

A large tensor is reduced in `rows` rows, for ONNX Runtime reduces rows in parallel and the whole of a
tensor in one thread. Only operators that are the same from opset 9 on, but for the axes of reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.native import DOMAIN

QUICK = ("max", "min", "sum", "size", "min_nonzero_abs")
"""A probe takes of these what is asked for."""
DETAILED = ("max", "min", "min_nonzero_abs", "size", "nan", "below", "finite", "high")
"""All but the last, which only a native probe takes: how many elements are over FP16's range above 0."""

ALL = "all"
"""The kind of vectors that native nodes tell everything in."""
_EACH_ONE = (1,) * len(DETAILED)
_COUNTS = frozenset({"size", "nan", "below", "finite"})
_AXES_ARE_INPUTS = {"ReduceMax": 18, "ReduceMin": 18, "ReduceSum": 13}
"""The opset from which on a reduction's axes are an input."""
_REDUCTIONS = {"max": "ReduceMax", "min": "ReduceMin", "sum": "ReduceSum"}
_TINY: dict[int, float] = {TensorProto.FLOAT: 2.0**-149, TensorProto.DOUBLE: 2.0**-1074}
"""The least magnitude that is not zero."""
_CAST_TO: dict[int, onnx.AttributeProto] = {
    elem_type: onnx.helper.make_attribute("to", elem_type)
    for elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT64)
}
_ROWS = onnx.helper.make_attribute("axes", [1])


@dataclass(frozen=True)
class Probe:
    """The probe of `tensor`, of ONNX element type `dtype`, one of graph.FLOAT_TYPES.

    Its tensors are named `prefix` and a word, the constants that all probes share `shared` and a word.
    `rows` must divide the number of elements. `rank` is that of a tensor that can be reduced as it is, to one
    number; None for one that is made a matrix of `rows` rows first. `takes` are those of QUICK that it
    takes; a detailed probe takes everything, in one row. One that `is_native` is detailed, and of no double; the smallest
    magnitude it takes only if that is in `takes`, for it would cost as much as all the rest, or if the tensor is `lasting`:
    the same while the number at that address is (see LastingProbe in probes.cpp). What it tells of a tensor that `is_empty` means nothing.
    """

    tensor: str
    dtype: int
    prefix: str
    shared: str
    opset: int
    rows: int
    rank: int | None
    is_detailed: bool
    takes: frozenset[str]
    is_native: bool = False
    is_empty: bool = False
    lasting: int | None = None

    @cached_property
    def statistics(self) -> str:
        """What a native one writes."""
        return self.prefix + "all"

    @property
    def is_small(self) -> bool:
        """Whether a native one takes the smallest magnitude."""
        return "min_nonzero_abs" in self.takes

    @property
    def is_one_node(self) -> bool:
        """Whether it is one native node that looks at the tensor itself, in each run."""
        is_itself = self.dtype == TensorProto.FLOAT and not self.is_empty
        return self.is_native and is_itself and self.lasting is None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What it takes, in order."""
        if self.is_detailed:
            return DETAILED if self.is_native else DETAILED[:-1]
        return tuple(word for word in QUICK if word in self.takes)

    @cached_property
    def vectors(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        """What is to be fetched, in the order of `words`: its name, its kind and the lengths of what it holds.

        Those of one kind can be joined. Sizes are dimensions to be multiplied; all others hold a number a row, to be
        reduced further, in as many dimensions as what was reduced. A native probe's one vector holds a number for each
        word.
        """
        if self.is_native:
            return ((self.statistics, ALL, _EACH_ONE),)
        return [self._vector(word) for word in self.words]

    def _vector(self, word: str) -> tuple[str, str, tuple[int, ...]]:
        rank = 2 if self.rank is None else self.rank
        if word == "size":
            return self.prefix + word, "sizes", (rank,)
        kind = "counts" if word in _COUNTS else f"values_{self._float}_{rank}"
        return self.prefix + word, kind, (self.rows,)

    def share(self, places: list[int]) -> Iterable[tuple[str, list[int]]]:
        """Each tensor that it tells of, with the place of each of DETAILED, or of QUICK, -1 for what it does not take.

        `places` are those of the segments of `vectors`, one after the other.
        """
        if self.is_native:
            return ((self.tensor, places),)
        place_of = dict(zip(self.words, places, strict=True))
        wanted = DETAILED if self.is_detailed else QUICK
        return ((self.tensor, [place_of.get(word, -1) for word in wanted]),)

    def nodes(self) -> Iterator[NodeProto]:
        source = self.tensor
        if self.dtype != self._float:
            yield from widen(self.tensor, self.prefix)
            source = self.prefix + "wide"
        if self.is_empty:  # ONNX Runtime 1.23 reduces it to nothing on CUDA, or fails
            source = self._constant("tiny")
        if self.is_native:
            yield self._native(source)
            return
        if self.rank is None:
            yield _node("Reshape", [source, f"{self.shared}rows_{self.rows}"], self.prefix + "flat")
            source = self.prefix + "flat"
        if "size" in self.words:
            yield _node("Shape", [source], self.prefix + "size")
        yield from self._detailed(source) if self.is_detailed else self._quick(source)

    def _native(self, source: str) -> NodeProto:
        output = self.statistics
        if self.lasting is not None:
            return onnx.helper.make_node(
                "LastingProbe", [source], [output], domain=DOMAIN, address=self.lasting
            )
        op_type = "SmallProbe" if self.is_small else "Probe"
        return NodeProto(op_type=op_type, domain=DOMAIN, input=[source], output=[output])

    def _quick(self, flat: str) -> Iterator[NodeProto]:
        for word, op_type in _REDUCTIONS.items():
            if word in self.takes:
                yield from self._reduce(op_type, flat, word)
        if "min_nonzero_abs" in self.takes:
            yield from self._min_nonzero_in_range(flat)

    def _reduce(self, op_type: str, source: str, word: str) -> Iterator[NodeProto]:
        """[rows, n] to [rows, 1], or all to one. CUDA reduces an empty tensor only if it keeps dimensions."""
        if self.rank is not None:
            yield _node(op_type, [source], self.prefix + word)
            return
        is_input = self.opset >= _AXES_ARE_INPUTS[op_type]
        inputs = [source, self.shared + "axis"] if is_input else [source]
        attributes = () if is_input else (_ROWS,)
        yield NodeProto(op_type=op_type, input=inputs, output=[self.prefix + word], attribute=attributes)

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
        yield from self._reduce("ReduceMin", p + "raised", "min_nonzero_abs")

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


@dataclass(frozen=True)
class Statistics:
    """What a native node tells in its last output, `tensor`, of others and what it reads, as native probes of them would.

    `tensors` are those, "" where nobody wants to know. It is used as a Probe is, but that it has no nodes.
    """

    tensor: str
    tensors: tuple[str, ...]

    @property
    def vectors(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        return ((self.tensor, ALL, _EACH_ONE * len(self.tensors)),)

    def share(self, places: list[int]) -> Iterable[tuple[str, list[int]]]:
        return _share_out(self.tensors, places)

    def nodes(self) -> Iterator[NodeProto]:
        yield from ()


@dataclass(frozen=True)
class SharedProbe:
    """One native node that looks at several float `tensors`, small ones, when the last of them is there.

    It tells of each, in `statistics`, what a native probe that takes the smallest magnitude would. It is used as a Probe is.
    """

    tensors: tuple[str, ...]
    statistics: str

    @property
    def tensor(self) -> str:
        """Behind whose producer it stands."""
        return self.tensors[-1]

    @property
    def vectors(self) -> Sequence[tuple[str, str, tuple[int, ...]]]:
        return ((self.statistics, ALL, _EACH_ONE * len(self.tensors)),)

    def share(self, places: list[int]) -> Iterable[tuple[str, list[int]]]:
        return _share_out(self.tensors, places)

    def nodes(self) -> Iterator[NodeProto]:
        yield NodeProto(op_type="SharedProbe", domain=DOMAIN, input=self.tensors, output=[self.statistics])


def _share_out(tensors: Iterable[str], places: list[int]) -> Iterator[tuple[str, list[int]]]:
    """To each as many as native probes tell numbers."""
    for i, name in enumerate(tensors):
        yield name, places[i * len(DETAILED) : (i + 1) * len(DETAILED)]


def shared_constants(shared: str, rows: Sequence[int]) -> Iterator[NodeProto]:
    """The constants of all probes. Nodes, for in old models an initializer must be an input too."""
    shapes = {"axis": [1], **{f"rows_{count}": [count, -1] for count in rows}}
    for word, shape in shapes.items():
        yield _constant(onnx.helper.make_tensor(shared + word, TensorProto.INT64, [len(shape)], shape))
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

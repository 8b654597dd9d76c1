"""ONNX nodes that compute a value inside a node from the tensors that the node reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.rows import Exponentials, Moments, Rows, Sums, Windows
from overflow_fixer.native import DOMAIN
from overflow_fixer.records import Dim

_AXES_ARE_INPUTS = {
    "ReduceSum": 13,
    **dict.fromkeys("ReduceL1 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare".split(), 18),
}
"""The opset from which on a reduction's axes are an input."""
_THEN = {"ReduceL1": "ReduceSum", "ReduceSumSquare": "ReduceSum"}
"""What adds up the results of a reduction."""
_SUMMED = {"ReduceSum": "sum", "ReduceL1": "magnitudes", "ReduceSumSquare": "squares"}
"""What of Sums a reduction gives."""
FEW = 512
"""ONNX Runtime adds up so many elements in FP32 to 1e-5 even where all are alike, and rounding goes one way."""
_LEAST_BLOCK = 64
_APART = 2
"""In how many numbers SumsApart is told of rows."""
_SLICES_LIVE_SINCE = 10
"""The opset from which on where a Slice ends is an input."""


_ReadRows = TypeVar("_ReadRows", Moments, Sums, Exponentials)


class Expression:
    """Collects the nodes for what is inside `node`; names of new tensors begin with `prefix`.

    `constants` are those of expressions before this one, by value; new ones are added. `shapes` are those that
    can be relied on. `is_native`: sums of rows may be left to the operators of overflow_fixer.native.
    """

    def __init__(
        self,
        graph: Graph,
        node: Node,
        prefix: str,
        constants: dict[object, str],
        shapes: Mapping[str, Sequence[Dim]],
        is_native: bool = False,
    ) -> None:
        self.graph = graph
        self.node = node
        self.nodes: list[NodeProto] = []
        self.extremes: tuple[str, str, str] | None = None
        """Of each row of `source`, whose rows hold all of it, the largest, the smallest, and what is NaN where one is."""
        self._shapes = shapes
        self._prefix = prefix
        self._constants = constants
        self._is_native = is_native
        self._told: dict[tuple[str, Rows], tuple[str, ...]] = {}

    @property
    def source(self) -> str:
        """The first tensor that the node reads."""
        return self.node.inputs[0]

    @cached_property
    def dims(self) -> Sequence[Dim] | None:
        """The dimensions of `source`; None where even their number is not known."""
        return self._shapes.get(self.source)

    @cached_property
    def rank(self) -> int | None:
        """Their number; it is often known where they would have to be inferred."""
        known = self._known_rank
        return len(self.dims) if known is None and self.dims is not None else known

    @property
    def _known_rank(self) -> int | None:
        return self.graph.ranks.get(self.source)

    def attribute(self, name: str, default: Any) -> Any:
        return self.node.value_of(name, default)

    def apply(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """One more node; the name of what it writes."""
        output = f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def repeat(self, node: Node, *inputs: str) -> str:
        """A node of the model once more, of other inputs."""
        output = self.apply(node.op_type, *inputs)
        self.nodes[-1].attribute.extend(node.proto.attribute)
        return output

    def integers(self, *values: int) -> str:
        """A constant int64 vector; the same for the same values."""
        return self._hold(TensorProto.INT64, values, (len(values),))

    def number(self, value: float) -> str:
        """A constant float scalar; the same for the same value."""
        return self.floats((value,), ())

    def floats(self, values: Sequence[float], shape: tuple[int, ...]) -> str:
        """A constant float tensor; the same for the same values and shape."""
        return self._hold(TensorProto.FLOAT, values, shape)

    def _hold(self, dtype: int, values: Sequence[float], shape: tuple[int, ...]) -> str:
        key = dtype, *values, shape
        if key not in self._constants:
            tensor = onnx.helper.make_tensor("", dtype, shape, values)
            self._constants[key] = self.apply("Constant", value=tensor)
        return self._constants[key]

    def rows(self, axes: Sequence[int], *, as_given: bool = False) -> Rows:
        """`source` along `axes`, negative ones too; along all of them where none is named.

        `as_given`: negative ones stay so, for a node that reduces the same axes. Of an empty tensor ONNX Runtime gives
        another shape for them, and where it shares the memory of two reductions that ought to be alike, it fails.
        """
        are_last = bool(axes) and sorted(axes) == list(range(-len(axes), 0))
        rank = self._known_rank if are_last and self._is_native else self.rank
        if rank is None and not axes:
            return self._whole()
        if rank is None:
            return Rows(self.source, tuple(axes), are_last=are_last)
        given = {axis % rank: axis for axis in axes} if rank else {}
        places = sorted(given) or range(rank)
        found = (given.get(place, place) if as_given else place for place in places)
        are_last = list(places) == list(range(rank - len(places), rank))
        return Rows(self.source, tuple(found), are_last=are_last)

    def lengths(self, rows: Rows) -> tuple[Dim, ...]:
        """The dimensions of the axes of `rows`, as far as they are sure."""
        if rows.lengths is not None:
            return rows.lengths
        dims = self.dims
        return tuple(None if dims is None else dims[axis] for axis in rows.axes)

    def rows_behind(self, axis: int) -> Rows:
        """`source` along `axis` and all axes behind it."""
        if axis < 0:
            return self.rows(range(axis, 0))
        if self.rank is not None:
            return self.rows(range(axis, self.rank))
        return self._flattened(axis)

    def _whole(self) -> Rows:
        """All elements of `source`, of which not even the number of axes is known, as one row."""
        return self._flattened(0)

    def _flattened(self, axis: int) -> Rows:
        return Rows(self.apply("Flatten", self.source, axis=axis), (1,), (None,), are_last=True)

    def cut_last(self, rows: Rows) -> Rows:
        """The rows of a last axis that is long as those of two axes, of which the last has at most 512 elements.

        As they are where the length is not known, has no divisor of such a size, or is none to cut.
        """
        length = self.lengths(rows)[0] if len(rows.axes) == 1 else None
        if rows.tensor != self.source or self.dims is None or not isinstance(length, int) or length <= FEW:
            return rows
        last = len(self.dims) - 1
        block = next((size for size in range(FEW, _LEAST_BLOCK - 1, -1) if length % size == 0), None)
        if block is None or rows.axes[0] % len(self.dims) != last:
            return rows
        shape = self.integers(*[0] * last, length // block, block)
        return Rows(self.apply("Reshape", self.source, shape), (last, last + 1), (length // block, block))

    def moments(self, rows: Rows) -> Moments | None:
        """All that the native operator tells of `rows`; None without it, and where the elements of one lie apart."""
        return self._tell(Moments, rows)

    def sums(self, rows: Rows) -> Sums | None:
        """The same, but for what is about the mean; elements that lie apart will do."""
        return self._tell(Sums, rows)

    def exponentials(self, rows: Rows) -> Exponentials | None:
        """The same of `rows` of a softmax."""
        return self._tell(Exponentials, rows)

    def _tell(self, operator: type[_ReadRows], rows: Rows) -> _ReadRows | None:
        """The outputs of one native node for the same rows, but for the last, which is of use to the probes alone."""
        where = self._locate(rows) if self._is_native else ()
        if not where or (operator is not Sums and len(where) == _APART):
            return None
        key: tuple[str, Rows] = operator.__name__, rows
        if key not in self._told:
            op_type = operator.__name__ if len(where) != _APART else "SumsApart"
            self._told[key] = self._add_native(op_type, rows.tensor, where, operator._fields)
        return operator(*self._told[key])

    def windows(self, form: Sequence[int]) -> Windows | None:
        """What the native operator tells of windows of `source`, of such a form (see probes.cpp); None without it."""
        if not self._is_native:
            return None
        return Windows(*self._add_native("Windows", self.source, form, Windows._fields))

    def _add_native(
        self, op_type: str, source: str, where: Sequence[int], words: Iterable[str]
    ) -> tuple[str, ...]:
        prefix = f"{self._prefix}{len(self.nodes)}_"
        outputs = tuple(prefix + word for word in words)
        inputs = [source, self.integers(*where)]
        told = (*outputs, prefix + "statistics")
        self.nodes.append(onnx.helper.make_node(op_type, inputs, told, domain=DOMAIN))
        return outputs

    def _locate(self, rows: Rows) -> tuple[int, ...]:
        """How a native operator is told of `rows`: see probes.cpp; nothing where their axes are no such ones.

        Axes of one element, of which there are sure to be no more, do not stand between others.
        """
        if rows.are_last:
            return (-len(rows.axes),)
        if self.rank is None or rows.tensor != self.source:
            return ()
        places = sorted(axis % self.rank for axis in rows.axes)
        if places != list(range(places[0], places[0] + len(places))):
            apart, places = places, self._fill_up(places)
            if not places:
                return self._locate_parts(apart)
        if places[-1] == self.rank - 1:
            return (-len(places),)
        return places[0], len(places)

    def _locate_parts(self, places: Sequence[int]) -> tuple[int, ...]:
        """The same of the last axes, and of others which are side by side too."""
        rank = self.rank or 0
        last = next(n for n, place in enumerate(reversed(places)) if place != rank - 1 - n)
        others = list(places[: len(places) - last])
        are_one_group = others == list(range(others[0], others[0] + len(others)))
        return (others[0], len(others), last) if last and are_one_group else ()

    def _fill_up(self, places: Sequence[int]) -> list[int]:
        """The same rows as the axes from a first one to a last one; none where other elements stand between theirs."""
        dims = self.dims or ()
        of_many = [place for place in range(len(dims)) if dims[place] != 1]
        reduced = [place for place in of_many if place in places]
        if not reduced or reduced != [place for place in of_many if reduced[0] <= place <= reduced[-1]]:
            return []
        is_last = reduced[-1] == of_many[-1]
        return list(range(reduced[0], len(dims) if is_last else reduced[-1] + 1))

    def find_best(self, count: int, rows: Rows, *, is_largest: bool) -> str:
        """The largest, or the least, of each of the `rows`, which have one axis and so many elements at least."""
        best, places = (f"{self._prefix}{len(self.nodes)}_{word}" for word in ("best", "places"))
        (axis,) = rows.axes
        inputs = [rows.tensor, self.integers(count)]
        node = onnx.helper.make_node("TopK", inputs, [best, places], axis=axis, largest=int(is_largest))
        self.nodes.append(node)
        return best

    def tell_count(self, rows: Rows) -> float:
        """The number of elements of one of the `rows`; inf, or NaN of none perhaps, where it shows in a run alone."""
        return math.prod(float(dim) if isinstance(dim, int) else math.inf for dim in self.lengths(rows))

    def count(self, rows: Rows) -> str:
        """The same as a tensor, whatever it is."""
        count = self.tell_count(rows)
        if math.isfinite(count):
            return self.number(count)
        lengths = self.sizes(rows.tensor, *rows.axes)
        return self.apply("Cast", self.reduce("ReduceProd", lengths, [0]), to=TensorProto.FLOAT)

    def sizes(self, tensor: str, *axes: int) -> str:
        """The dimensions of a tensor along these axes, as a vector."""
        return self.apply("Gather", self.apply("Shape", tensor), self.integers(*axes))

    def add_up(self, op_type: str, rows: Rows) -> str:
        """A sum or mean, of magnitudes or squares too, of each of the `rows`: right to 1e-5.

        Few elements at a time; those of an axis that is longer, or that may be, in FP64. Of several axes, of three
        dimensions or more, the last may be that of an image where it is not known: then a run tells, since FP64 costs as
        much as the rest of a scan.
        """
        sums = self.sums(rows) if op_type in _SUMMED else None
        if sums is not None:
            return str(getattr(sums, _SUMMED[op_type]))
        rows = self.cut_last(rows)
        found = rows.tensor
        for axes, length in _cut(rows.axes, self.lengths(rows)):
            may_be_image = found == rows.tensor and len(rows.axes) > 1 and self.rank != 2
            found = self._choose(length, may_be_image)(op_type, found, axes)
            op_type = _THEN.get(op_type, op_type)
        return found

    def _choose(self, length: float, may_be_image: bool) -> Callable[[str, str, Sequence[int]], str]:
        """What reduces so many elements right; inf: an unknown number."""
        if math.isinf(length) and may_be_image and self.graph.opset >= _SLICES_LIVE_SINCE:
            return self._reduce_by_length
        return self._reduce_wide if length > FEW else self.reduce

    def add_up_live(self, op_type: str, axes: str, **attributes: Any) -> str:
        """A sum of `source`, of magnitudes or squares too, over axes that the model computes."""
        wide = self.apply("Cast", self.source, to=TensorProto.DOUBLE)
        terms = {"ReduceL1": ("Abs", wide), "ReduceSumSquare": ("Mul", wide, wide)}.get(op_type)
        added = wide if terms is None else self.apply(*terms)
        return self.apply("Cast", self.apply("ReduceSum", added, axes, **attributes), to=TensorProto.FLOAT)

    def _reduce_by_length(self, op_type: str, source: str, axes: Sequence[int]) -> str:
        """The same as `reduce`, of one axis, in FP64 as well where a run shows it to be long; else FP64 gets one element."""
        axis = self.integers(*axes)
        length = self.sizes(source, *axes)
        is_long = self.apply("Less", self.integers(FEW), length)
        end = self.apply("Where", is_long, length, self.integers(1))
        if_long = self.apply("Slice", source, self.integers(0), end, axis)
        wide = self._reduce_wide(op_type, if_long, axes)
        return self.apply("Where", is_long, wide, self.reduce(op_type, source, axes))

    def _reduce_wide(self, op_type: str, source: str, axes: Sequence[int]) -> str:
        """The same as `reduce`, in FP64, in which ONNX Runtime has no ReduceL1."""
        if op_type == "ReduceL1":
            op_type, source = "ReduceSum", self.apply("Abs", source)
        wide = self.apply("Cast", source, to=TensorProto.DOUBLE)
        return self.apply("Cast", self.reduce(op_type, wide, axes), to=TensorProto.FLOAT)

    def reduce(self, op_type: str, source: str, axes: Sequence[int]) -> str:
        """A reduction over `axes`, over all where none is named, which keeps dimensions."""
        if not axes:
            return self.apply(op_type, source)
        if self.graph.opset < _AXES_ARE_INPUTS[op_type]:
            return self.apply(op_type, source, axes=list(axes))
        return self.apply(op_type, source, self.integers(*axes))


def _cut(axes: Sequence[int], lengths: Sequence[Dim]) -> Iterator[tuple[Sequence[int], float]]:
    """The axes, the last ones first, in groups that hold few elements if a single one does, and the number; inf: unknown."""
    group: list[int] = []
    held = 1.0
    for axis, dim in zip(reversed(axes), reversed(lengths), strict=True):
        length = float(dim) if isinstance(dim, int) else math.inf
        if group and held * length > FEW:
            yield group, held
            group, held = [], 1.0
        group.insert(0, axis)
        held *= length
    yield group, held

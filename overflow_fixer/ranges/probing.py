"""Which probe a tensor gets: how much is taken of it, and how it is reduced."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.derivations import Derivation
from overflow_fixer.ranges.probes import Probe
from overflow_fixer.records import Dim

_MOST_ROWS = 64
_MANY_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Probing:
    """What is taken of the tensors of a model, and how.

    Those in `detailed` get a detailed probe, which `is_native` says to be a native one, but of doubles; all others a
    quick one. Those in `small` tell their smallest magnitude as well, those in `unguarded` not whether they hold a NaN;
    of those in `words` no more than the words of probes.QUICK there is taken. `shapes` are those that can be relied on;
    of others the probe tells the size. `sources` are those of sources.find_sources. `in_rows`: reduce large tensors in rows.
    Those that are `lasting` stay the same as long as the number at that address does: in each run, where it is 0. Those
    `alone` have a probe of their own, whatever native nodes of the graph tell. `derivations` say, by the tensor,
    how one without a probe follows. `in_memory`: native nodes tell what they see there, and not by vectors that leave the run.
    """

    detailed: Collection[str] = ()
    small: Collection[str] = ()
    unguarded: Collection[str] = ()
    words: Mapping[str, Collection[str]] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[Dim]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    in_rows: bool = True
    is_native: bool = False
    lasting: Mapping[str, int] = field(default_factory=dict)
    alone: Collection[str] = ()
    derivations: Mapping[str, Derivation] = field(default_factory=dict)
    in_memory: bool = False

    def count(self, tensor: str) -> float:
        """How many elements it has; NaN where the probe tells that."""
        found = count_elements(self.shapes.get(tensor))
        return math.nan if found is None else found

    def may_share(self, graph: Graph, tensor: str) -> bool:
        """Whether its probe may be one with others': in memory alone, a node's many numbers cost no more than few."""
        is_looked_at = tensor in self.detailed and tensor not in self.lasting
        return self.in_memory and is_looked_at and graph.dtypes[tensor] == TensorProto.FLOAT

    def make_probe(self, graph: Graph, tensor: str, prefix: str, shared: str) -> Probe:
        """`prefix` is the probe's own, `shared` that of all."""
        is_detailed = tensor in self.detailed
        dims = None if is_detailed else self.shapes.get(tensor)  # which may have to be inferred
        count = count_elements(dims)
        rows = find_rows(dims) if self.in_rows and dims else 1
        is_flat = rows > 1 or not dims or not count
        wanted = self.words.get(tensor) or self._choose_words(tensor)
        return Probe(
            tensor=tensor,
            dtype=graph.dtypes[tensor],
            prefix=prefix,
            shared=shared,
            opset=graph.opset,
            rows=rows,
            rank=None if is_flat else len(dims or ()),
            is_detailed=is_detailed,
            takes=frozenset((*wanted, "size") if count is None else wanted),
            is_empty=count == 0,
            is_native=self.is_native and is_detailed and graph.dtypes[tensor] != TensorProto.DOUBLE,
            lasting=self.lasting.get(tensor),
        )

    def _choose_words(self, tensor: str) -> list[str]:
        guard = [] if tensor in self.unguarded else ["sum"]
        return ["max", "min", *guard, *(["min_nonzero_abs"] if tensor in self.small else [])]


def count_elements(dims: Sequence[Dim] | None) -> int | None:
    """How many elements a tensor of these dimensions has; None where one of them is not known."""
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        return None
    return math.prod(dim for dim in dims if isinstance(dim, int))


def find_rows(dims: Sequence[Dim] | None) -> int:
    """How many rows, at most 64, a tensor of these dimensions can always be cut into; 1 for a small one."""
    count, known = count_elements(dims), math.prod(dim for dim in dims or () if isinstance(dim, int))
    if known <= 1 or (count is not None and count < _MANY_ELEMENTS):
        return 1
    return next(rows for rows in range(_MOST_ROWS, 0, -1) if known % rows == 0)

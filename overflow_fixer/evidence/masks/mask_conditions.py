"""What a condition is at the first element of every row, whatever the sizes are: column <= row + past, of places counted from 0.

Models written by hand make causal masks of two Ranges that are compared, or cut them out of a triangle of booleans. Column 0
is no later than any row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.masks.mask_ends import find_kept, find_opened, keeps_first_column
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.constant_shapes import read_fill
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array

_INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32})
_SWITCHES = frozenset({TensorProto.BOOL, TensorProto.UINT8})
_COUNTS = frozenset("Shape Size ArgMax ArgMin NonZero".split())
"""Operators that write nothing below zero."""
_Decide = Callable[[float, float], bool]
_HOLDS: Mapping[str, tuple[_Decide, _Decide]] = {
    "LessOrEqual": (lambda first, least: first <= least, lambda first, least: False),
    "Less": (lambda first, least: first < least, lambda first, least: False),
    "Greater": (lambda first, least: False, lambda first, least: first <= least),
    "GreaterOrEqual": (lambda first, least: False, lambda first, least: first < least),
}
"""Of a number and the least of what it is compared with: whether that holds for all of it, and whether for none."""
_TURNED = {
    "LessOrEqual": "GreaterOrEqual",
    "Less": "Greater",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
}


@lru_cache(maxsize=1)
def find_decided(graph: Graph) -> Mapping[str, bool]:
    """By tensor, what it is at the first element of the last axis, in every row, whatever is fed: all 1 (true), or all 0.

    Of computed tensors alone, those of which that is known.
    """
    known = _Known(graph)
    for node in graph.nodes:
        known.learn(node)
    return known.decided


@dataclass(eq=False)
class _Known:
    """What is known of the tensors so far: `least`, which no element of integers is below, and what is first in every row.

    That is one of the numbers `starts`, or a switch that is `decided`.
    """

    graph: Graph
    least: dict[str, float] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    decided: dict[str, bool] = field(default_factory=dict)

    def learn(self, node: Node) -> None:
        decided = self._decide(node)
        if decided is not None:
            self.decided[node.outputs[0]] = decided
        for name in node.writes:
            if self.graph.dtypes.get(name) in _INTEGERS:
                self.least[name] = self._bound(node)
                self._start(node, name)

    def _start(self, node: Node, written: str) -> None:
        if node.standard_op == "Range" and self._read(node.inputs[0], _INTEGERS) is not None:
            self.starts[written] = self._find_least(node.inputs[0])
        elif _keeps_first(self.graph, node) and node.inputs[0] in self.starts:
            self.starts[written] = self.starts[node.inputs[0]]

    def _bound(self, node: Node) -> float:
        """What no element of the integers that it writes is below."""
        op = node.standard_op
        if op in _COUNTS:
            return 0.0
        if op == "Range":
            return self._find_least(node.inputs[0]) if self._find_least(node.inputs[2]) >= 0 else -math.inf
        if op in _BOUNDS:
            return _BOUNDS[op]([self._find_least(name) for name in node.inputs])
        return self._find_least(node.inputs[0]) if moves(node, 0) else -math.inf

    def _find_least(self, tensor: str) -> float:
        """-inf where nothing is known, as of what is no integer."""
        if tensor not in self.least:
            value = self._read(tensor, _INTEGERS)
            self.least[tensor] = float(value.min()) if value is not None and value.size else -math.inf
        return self.least[tensor]

    def _decide(self, node: Node) -> bool | None:
        op = node.standard_op
        if op in _HOLDS:
            return self._compare(node)
        if op in ("And", "Or"):
            sides = {self._find_decided(name) for name in node.inputs}
            ends_it = op == "Or"
            return ends_it if ends_it in sides else None if None in sides else not ends_it
        if op == "Trilu" and "first" in find_opened(self.graph, node):
            return False
        if op == "ConstantOfShape":
            return _agree(read_fill(self.graph, node.outputs[0]))
        is_kept = op == "Not" or _keeps_first(self.graph, node)
        inside = self._find_decided(node.inputs[0]) if is_kept else None
        return None if inside is None else inside != (op == "Not")

    def _find_decided(self, tensor: str) -> bool | None:
        if tensor in self.decided:
            return self.decided[tensor]
        value = self._read(tensor, _SWITCHES)
        return None if value is None else _agree(value[..., :1] if value.ndim else value)

    def _compare(self, node: Node) -> bool | None:
        turned = (node.inputs[::-1], _TURNED[node.standard_op])
        for (one, other), op in ((node.inputs, node.standard_op), turned):
            first, least = self.starts.get(one, math.nan), self._find_least(other)
            always, never = _HOLDS[op]
            if always(first, least) or never(first, least):
                return always(first, least)
        return None

    def _read(self, tensor: str, types: frozenset[int]) -> Array | None:
        return self.graph.read_fixed(tensor) if self.graph.dtypes.get(tensor) in types else None


def _keeps_first(graph: Graph, node: Node) -> bool:
    """Whether it moves what it reads, or makes another type of it, and the first element of rows stays that of rows."""
    if node.standard_op == "Trilu":
        return keeps_first_column(graph, node)
    return moves(node, 0) and "first" in find_kept(graph, node)


def _agree(value: Array | None) -> bool | None:
    """What all elements are, 0 or 1; None where they differ, are other numbers, or there is none."""
    if value is None or not value.size or not (value == value.flat[0]).all():
        return None
    return {0: False, 1: True}.get(value.flat[0])


def _multiply(least: list[float]) -> float:
    return math.prod(least) if min(least) >= 0 else -math.inf


_BOUNDS: Mapping[str, Callable[[list[float]], float]] = {
    "Add": sum,
    "Mul": _multiply,
    "Max": max,
    "Concat": min,
}
"""Of the least elements of what is read, that of what is written."""

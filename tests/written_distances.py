"""Squared distances written out, |x|² − 2xc + |c|²: `d` of rows `x` and `ct`, centres' columns, with `cc` their squares."""

from __future__ import annotations

from in_memory_calibration import node

DISTANCES = [
    node("Mul", "x x", "xx"),
    node("ReduceSum", "xx last", "a"),
    node("MatMul", "x ct", "c"),
    node("Mul", "c two", "c2"),
    node("Sub", "a c2", "t"),
    node("Add", "t cc", "d"),
]

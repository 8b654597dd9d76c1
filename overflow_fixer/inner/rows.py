"""Rows, whose elements belong together, and what native operators tell of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from overflow_fixer.records import Dim


@dataclass(frozen=True)
class Rows:
    """A tensor, and the axes along which elements belong together, all where none is named.

    `lengths` are the dimensions of the axes as far as they are sure; None for axes of what the node reads, which
    Expression.lengths looks up. `are_last`: they are the last ones, for sure, so that the elements of a row lie side
    by side.
    """

    tensor: str
    axes: tuple[int, ...]
    lengths: tuple[Dim, ...] | None = None
    are_last: bool = False


class Moments(NamedTuple):
    """Tensors of the native operator of that name, each with a number a row: see probes.cpp."""

    largest: str
    smallest: str
    deviation: str
    sum: str
    magnitudes: str
    squares: str
    spread: str


class Sums(NamedTuple):
    """The same of the operator Sums, which takes half as long."""

    largest: str
    smallest: str
    sum: str
    magnitudes: str
    squares: str


class Exponentials(NamedTuple):
    """The same of the operator Exponentials: nothing where rows are short."""

    sum: str


class Windows(NamedTuple):
    """The same of the operator Windows: a number for each window, of which only its statistics tell."""

    sum: str
    magnitudes: str

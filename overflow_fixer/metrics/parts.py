"""Parts of outputs, told as NumPy indexes them (`boxes[:, 4:]`), that are judged by themselves beside the whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from overflow_fixer.errors import ConfigError
from overflow_fixer.records import Dim, Tolerance

Index = tuple[int | slice | EllipsisType, ...]

_PART = re.compile(r"(?P<output>.+?)(?P<text>\[[^\[\]]+\])", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """What `index` takes of an output, `text` being how that was written ("[:, 4:]"). Text and index are empty for the whole."""

    output: str
    text: str = ""
    index: Index = ()

    @property
    def name(self) -> str:
        return self.output + self.text

    def take(self, value: Any) -> Any:
        """Of an array a view [as NumPy indexes]. Raises ConfigError where the value has no such part, or is no array."""
        if not self.text:
            return value
        if isinstance(value, np.ndarray):
            try:
                return np.asarray(value[self.index])
            except IndexError:
                raise self.refuse(f"is of shape {list(value.shape)}") from None
        raise self.refuse("is no tensor but a sequence or an optional")

    def check(self, shape: Sequence[Dim] | None) -> None:
        """Raise ConfigError where an output of this shape has no such part, or nothing in it; what is not known of it may be any."""
        if shape is not None and not self._is_within(shape):
            sizes = ("?" if size is None else str(size) for size in shape)
            raise self.refuse(f"is of shape [{', '.join(sizes)}]")

    def _is_within(self, shape: Sequence[Dim]) -> bool:
        axes = list(self.index if ... in self.index else (*self.index, ...))
        rest, place = len(shape) - (len(axes) - 1), axes.index(...)
        if rest < 0:
            return False
        axes[place : place + 1] = [slice(None)] * rest
        pairs = zip(axes, shape, strict=True)
        return all(_is_there(axis, size) for axis, size in pairs if isinstance(size, int))

    def refuse(self, found: str) -> ConfigError:
        """That the output has no such part, for what was found of it."""
        return ConfigError(
            f"There is no part {self.output}{self.text}: {self.output} {found}. Expected indices within it, as NumPy counts "
            "them, the batch axis first. Correct --part, or parts and per_output in the table [verify]."
        )


def _is_there(axis: int | slice | EllipsisType, size: int) -> bool:
    if isinstance(axis, int):
        return -size <= axis < size
    return size == 0 or not isinstance(axis, slice) or len(range(*axis.indices(size))) > 0


def find_parts(tolerance: Tolerance, outputs: Collection[str]) -> tuple[Part, ...]:
    """The parts that are to be judged: those asked for, and those with a limit of their own.

    Raises ConfigError for what is neither an output nor such a part: the limit that was meant for another would not hold.
    """
    asked = dict.fromkeys(tolerance.parts, "--part, or parts in the table [verify],")
    asked |= dict.fromkeys(tolerance.per_output, "[verify.per_output]")
    found = (_read(name, where, outputs) for name, where in asked.items())
    return tuple(part for part in found if part.text)


def _read(name: str, where: str, outputs: Collection[str]) -> Part:
    if name in outputs:
        return Part(name)
    written = _PART.fullmatch(name)
    if written is None or written["output"] not in outputs:
        raise ConfigError(
            f"{where} names {name!r}, which is no output of the model. Expected one of: {', '.join(sorted(outputs))}; or a "
            "part of one as NumPy indexes it, such as 'y[:, 4:]'. Nothing was judged."
        )
    return Part(written["output"], written["text"], _read_index(name, written["text"]))


def _read_index(name: str, text: str) -> Index:
    try:
        index = tuple(_read_axis(axis.strip()) for axis in text[1:-1].split(","))
    except ValueError:
        index = (..., ...)
    if index.count(...) > 1:
        raise ConfigError(
            f"The part {name!r} has an index that cannot be read. Expected whole numbers, ranges such as 4: or 0:4 or ::2, and "
            "at most one ..., with commas between, as NumPy has them. Nothing was judged."
        )
    return index


def _read_axis(text: str) -> int | slice | EllipsisType:
    """Raises ValueError for what is none of the three."""
    if text == "...":
        return ...
    bounds = [bound.strip() for bound in text.split(":")]
    if len(bounds) == 1:
        return int(text)
    numbers = [int(bound) if bound else None for bound in bounds]
    if len(numbers) > 3 or numbers[2:] == [0]:
        raise ValueError(text)
    return slice(*numbers)

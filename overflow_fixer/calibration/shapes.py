"""The shapes that calibration data has, input by input: what an engine must be built for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Array, Batch, ShapeRange

_MOST_VALUES = 64
Ints = tuple[int, ...]
Inputs = tuple[tuple[str, Ints], ...]
"""Every input by name, with its shape, or with the values it holds."""


def survey_shapes(batches: Iterable[Batch]) -> Mapping[str, ShapeRange]:
    """Each input's least, most usual and greatest shape over the batches, each dimension by itself.

    The most usual are those of one batch for all inputs at once (of equally usual ones the largest).
    Integer inputs of rank 0 or 1 with at most 64 elements, which may hold a shape, have their values
    told likewise, the usual ones from batches of the usual shapes, where all batches have the same
    number of them. Raises CalibrationError for an input whose number of dimensions changes.
    """
    seen: dict[Inputs, Counter[Inputs]] = {}
    for batch in batches:
        shapes = tuple(sorted((name, tuple(array.shape)) for name, array in batch.feeds.items()))
        seen.setdefault(shapes, Counter())[tuple(sorted(_held(batch)))] += 1
    if not seen:
        return {}
    _check_ranks(seen)
    usual = max(seen, key=lambda shapes: (seen[shapes].total(), _size(shapes)))
    values = [dict(held) for counts in seen.values() for held in counts]
    usual_values = dict(seen[usual].most_common(1)[0][0])
    return {
        name: ShapeRange(
            *_edges([dict(shapes)[name] for shapes in seen], shape),
            _value_range([held.get(name) for held in values], usual_values.get(name)),
        )
        for name, shape in usual
    }


def _check_ranks(seen: Iterable[Inputs]) -> None:
    ranks: dict[str, set[int]] = {}
    for shapes in seen:
        for name, shape in shapes:
            ranks.setdefault(name, set()).add(len(shape))
    for name, found in ranks.items():
        if len(found) > 1:
            raise CalibrationError(
                f"Input {name!r} has {' and '.join(map(str, sorted(found)))} dimensions in different batches. Expected one "
                "number of dimensions, since an engine is built for one. Split the data, and build an engine of each."
            )


def _held(batch: Batch) -> Iterable[tuple[str, Ints]]:
    for name, array in batch.feeds.items():
        if array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= _MOST_VALUES:
            yield name, _to_ints(array)


def _to_ints(array: Array) -> Ints:
    return tuple(int(value) for value in array.reshape(-1))


def _size(shapes: Inputs) -> int:
    return sum(math.prod(shape) for _, shape in shapes)


def _edges(seen: Sequence[Ints], usual: Ints) -> tuple[Ints, Ints, Ints]:
    """The least, the usual and the greatest, element by element; rank 0 has none."""
    return tuple(map(min, zip(*seen, strict=True))), usual, tuple(map(max, zip(*seen, strict=True)))


def _value_range(seen: Sequence[Ints | None], usual: Ints | None) -> tuple[Ints, Ints, Ints] | None:
    told = [values for values in seen if values is not None]
    if usual is None or len(told) < len(seen) or len({len(values) for values in told}) != 1:
        return None
    return _edges(told, usual)

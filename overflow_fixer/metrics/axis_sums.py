"""Energies of a tensor and of its error at each index of several axes, from one look at every element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from overflow_fixer.records import Array

_TILE_ELEMENTS = 1 << 15
"""What is worked out of so many stays in a core's cache."""
_SHORT = 128
"""Rows that are shorter take longer than to transpose them: numpy reduces them one by one."""


def reduce_to_axes(reference: Array, candidate: Array, axes: Sequence[int]) -> Mapping[int, Array]:
    """By axis [3, size], float64: at each index the sums of squares of reference and error, and the largest square of an error.

    Two arrays of floats of one shape, of two axes or more, not empty. Elements that are NaN or infinite on either side count
    as 0 on both. Squares over float64's range are inf. The arrays are read as a matrix whose rows are the first axes and
    whose columns are the others.
    """
    if not axes:
        return {}
    shape = reference.shape
    split = min(range(1, len(shape)), key=lambda axis: math.prod(shape[:axis]) + math.prod(shape[axis:]))
    height, width = math.prod(shape[:split]), math.prod(shape[split:])
    rows, columns = np.zeros((3, height)), np.zeros((3, width))
    left, right = (array.reshape(height, width) for array in (reference, candidate))
    wanted = any(axis < split for axis in axes), any(axis >= split for axis in axes)
    if width < _SHORT:
        _add_matrix(left.T, right.T, (columns, rows), (wanted[1], wanted[0]))
    else:
        _add_matrix(left, right, (rows, columns), wanted)
    return {
        axis: _reduce_to(rows, shape[:split], axis)
        if axis < split
        else _reduce_to(columns, shape[split:], axis - split)
        for axis in axes
    }


def _add_matrix(
    reference: Array, candidate: Array, to: tuple[Array, Array], are_wanted: tuple[bool, bool]
) -> None:
    """To rows [3, height] and columns [3, width], of which those are left that are not wanted."""
    rows, columns = to
    for down, across in _tile(*reference.shape):
        squares, errors = _square(reference[down, across], candidate[down, across])
        if are_wanted[0]:
            _add(rows[:, down], squares, errors, axis=1)
        if are_wanted[1]:
            _add(columns[:, across], squares, errors, axis=0)


def _tile(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """As wide as possible, unless all of the height is short."""
    down = height if height < _SHORT else max(_TILE_ELEMENTS // width, 1)
    across = max(_TILE_ELEMENTS // down, 1)
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield slice(top, top + down), slice(left, left + across)


def _square(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Of reference and error, float64, in C order."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = reference.astype(np.float64, order="C")
        errors = np.subtract(squares, candidate, out=np.empty_like(squares))
        np.square(squares, out=squares)
        np.square(errors, out=errors)
    if not errors.max() < math.inf:
        lost = ~(np.isfinite(reference) & np.isfinite(candidate))
        squares[lost] = errors[lost] = 0
    return squares, errors


def _add(to: Array, squares: Array, errors: Array, axis: int) -> None:
    """To [3, n], over this axis."""
    with np.errstate(over="ignore"):
        to[0] += squares.sum(axis)
        to[1] += errors.sum(axis)
    np.maximum(to[2], errors.max(axis), out=to[2])


def _reduce_to(found: Array, shape: Sequence[int], axis: int) -> Array:
    """[3, shape] to [3, size of the axis]."""
    parts = found.reshape(3, *shape)
    others = tuple(one for one in range(1, parts.ndim) if one != axis + 1)
    with np.errstate(over="ignore"):
        return np.stack([*parts[:2].sum(others), parts[2:].max(others)[0]])

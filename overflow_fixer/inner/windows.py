"""What an average pool adds up in a window before it divides."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import numpy_helper

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_average_pool(expression: Expression) -> Iterator[Found]:
    """The sum of a window, where it is no fixed multiple of the output, and that of the magnitudes in it."""
    if math.prod(expression.attribute("kernel_shape", [])) < 2:
        return
    add_up = _convolve if expression.attribute("ceil_mode", 0) else _pool
    if _divides_by_several(expression):
        yield "sum", add_up(expression, expression.source)
    yield "sum of magnitudes", add_up(expression, expression.apply("Abs", expression.source))


def _pool(expression: Expression, source: str) -> str:
    """By the mean of all places of a window, those beyond the edge too."""
    kernel = expression.attribute("kernel_shape", [])
    means = expression.apply(
        "AveragePool", source, kernel_shape=kernel, count_include_pad=1, **_find_windows(expression)
    )
    return expression.apply("Mul", means, expression.number(float(math.prod(kernel))))


def _convolve(expression: Expression, source: str) -> str:
    """By a convolution with ones, for which each channel is an image of its own: windows may end behind the edge."""
    kernel = expression.attribute("kernel_shape", [])
    dims = expression.apply("Shape", source)
    image = expression.apply("Gather", dims, expression.integers(*range(2, 2 + len(kernel))))
    shape = expression.apply("Concat", expression.integers(-1, 1), image, axis=0)
    images = expression.apply("Reshape", source, shape)
    ones = expression.apply("Constant", value=numpy_helper.from_array(np.ones([1, 1, *kernel], np.float32)))
    return expression.apply("Conv", images, ones, **_find_ceiled_windows(expression))


def _divides_by_several(expression: Expression) -> bool:
    """Whether windows reach over an edge that does not count, so that they are divided by fewer than they have places."""
    is_padded = any(expression.attribute("pads", [])) or expression.attribute("auto_pad", b"NOTSET") in (
        b"SAME_UPPER",
        b"SAME_LOWER",
    )
    counts_edge = expression.attribute("count_include_pad", 0)
    return bool(expression.attribute("ceil_mode", 0) or (is_padded and not counts_edge))


def _find_windows(expression: Expression) -> dict[str, Any]:
    """The attributes that say where the pool's windows are."""
    found = {name: expression.attribute(name, None) for name in ("strides", "dilations", "auto_pad", "pads")}
    return {name: value for name, value in found.items() if value is not None}


def _find_ceiled_windows(expression: Expression) -> dict[str, Any]:
    """The same with those that begin before the end."""
    kernel, given = expression.attribute("kernel_shape", []), _find_windows(expression)
    if given.get("auto_pad", b"NOTSET") == b"NOTSET":
        pads = given.get("pads") or [0] * (2 * len(kernel))
        steps = given.get("strides") or [1] * len(kernel)
        ends = (pad + step - 1 for pad, step in zip(pads[len(kernel) :], steps, strict=True))
        given["pads"] = [*pads[: len(kernel)], *ends]
    return given

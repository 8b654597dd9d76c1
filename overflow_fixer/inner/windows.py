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
    """The sum of a window, where it is no fixed multiple of the output, and that of the magnitudes in it.

    A window is added up by a convolution with ones, for which each channel is an image of its own.
    """
    kernel = expression.attribute("kernel_shape", [])
    if math.prod(kernel) < 2:
        return
    dims = expression.apply("Shape", expression.source)
    image = expression.apply("Gather", dims, expression.integers(*range(2, 2 + len(kernel))))
    shape = expression.apply("Concat", expression.integers(-1, 1), image, axis=0)
    images = expression.apply("Reshape", expression.source, shape)
    ones = expression.apply("Constant", value=numpy_helper.from_array(np.ones([1, 1, *kernel], np.float32)))
    if _divides_by_several(expression):
        yield "sum", expression.apply("Conv", images, ones, **_convolution(expression))
    magnitudes = expression.apply("Abs", images)
    yield "sum of magnitudes", expression.apply("Conv", magnitudes, ones, **_convolution(expression))


def _divides_by_several(expression: Expression) -> bool:
    """Whether windows reach over an edge that does not count, so that they are divided by fewer than they have places."""
    is_padded = any(expression.attribute("pads", [])) or expression.attribute("auto_pad", b"NOTSET") in (
        b"SAME_UPPER",
        b"SAME_LOWER",
    )
    counts_edge = expression.attribute("count_include_pad", 0)
    return bool(expression.attribute("ceil_mode", 0) or (is_padded and not counts_edge))


def _convolution(expression: Expression) -> dict[str, Any]:
    """The attributes of the convolution with the pool's windows; with ceil_mode those that begin before the end."""
    kernel = expression.attribute("kernel_shape", [])
    found = {name: expression.attribute(name, None) for name in ("strides", "dilations", "auto_pad", "pads")}
    given = {name: value for name, value in found.items() if value is not None}
    if expression.attribute("ceil_mode", 0) and given.get("auto_pad", b"NOTSET") == b"NOTSET":
        pads = given.get("pads") or [0] * (2 * len(kernel))
        steps = given.get("strides") or [1] * len(kernel)
        ends = (pad + step - 1 for pad, step in zip(pads[len(kernel) :], steps, strict=True))
        given["pads"] = [*pads[: len(kernel)], *ends]
    return given

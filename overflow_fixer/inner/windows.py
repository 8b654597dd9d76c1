"""What an average pool adds up in a window before it divides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from onnx import numpy_helper

from overflow_fixer.inner.expression import FEW, Expression
from overflow_fixer.inner.quantities import Found

_REACH = 4096
"""Over how many places along the last axis a window may reach for the native operator. As probes.cpp has it."""
_ADDED = 128
"""How many numbers it adds up in a row along that axis, at most: 64 by 64, as probes.cpp has it."""
_DILATED_SINCE = 19
"""The opset from which on an average pool may be dilated, and an Lp pool have windows like its own."""


def find_in_average_pool(expression: Expression) -> Iterator[Found]:
    """The sum of a window, where it is no fixed multiple of the output or that is not right to 1e-5, and that of the magnitudes in it."""
    places = math.prod(expression.attribute("kernel_shape", []))
    if places < 2:
        return
    form = _find_form(expression)
    native = expression.windows(form) if form else None
    if _divides_by_several(expression) or places > FEW:
        yield "sum", native.sum if native else _add_up(expression, expression.source)
    magnitudes = (
        native.magnitudes if native else _add_up(expression, expression.apply("Abs", expression.source))
    )
    yield "sum of magnitudes", magnitudes


def _find_form(expression: Expression) -> list[int]:
    """The pool's windows as the native operator is told of them; nothing of those that it cannot add up, or not to 1e-5."""
    found = _find_windows(expression)
    kernel, rank = found["kernel_shape"], len(found["kernel_shape"])
    ones, nothing = [1] * rank, [0] * (2 * rank)
    apart = found.get("dilations") or ones
    is_far = (kernel[-1] - 1) * apart[-1] >= _REACH
    if is_far or _is_same(expression) or math.prod(kernel[:-1]) + min(kernel[-1], _ADDED) > FEW:
        return []
    is_valid = found.get("auto_pad") == b"VALID"
    pads = nothing if is_valid else found.get("pads") or nothing
    of_axes = zip(kernel, found.get("strides") or ones, apart, pads[:rank], pads[rank:], strict=True)
    return [number for axis in of_axes for number in axis]


def _add_up(expression: Expression, source: str) -> str:
    """Large windows along one axis after the other: ONNX Runtime adds them up one by one, in FP32."""
    windows = _find_windows(expression)
    add_up = _choose(expression)
    is_small = math.prod(windows["kernel_shape"]) <= FEW
    for one in [windows] if is_small else take_apart(windows):
        source = add_up(expression, source, one)
    return source


def _choose(expression: Expression) -> Callable[[Expression, str, Mapping[str, Any]], str]:
    """What adds windows up; with ceil_mode they may end behind the edge."""
    if not expression.attribute("ceil_mode", 0):
        return _pool
    is_dilated = expression.graph.opset >= _DILATED_SINCE
    return _pool_magnitudes if is_dilated and _is_same(expression) else _convolve


def _pool(expression: Expression, source: str, windows: Mapping[str, Any]) -> str:
    """By the mean of all places of a window, those beyond the edge too."""
    means = expression.apply("AveragePool", source, count_include_pad=1, **windows)
    return expression.apply("Mul", means, expression.number(float(math.prod(windows["kernel_shape"]))))


def _convolve(expression: Expression, source: str, windows: Mapping[str, Any]) -> str:
    """By a convolution with ones, for which each channel is an image of its own: windows may end behind the edge."""
    kernel = windows["kernel_shape"]
    image = expression.sizes(source, *range(2, 2 + len(kernel)))
    shape = expression.apply("Concat", expression.integers(-1, 1), image, axis=0)
    images = expression.apply("Reshape", source, shape)
    ones = expression.apply("Constant", value=numpy_helper.from_array(np.ones([1, 1, *kernel], np.float32)))
    return expression.apply("Conv", images, ones, **windows)


def _pool_magnitudes(expression: Expression, source: str, windows: Mapping[str, Any]) -> str:
    """By sums of magnitudes: those of the positive elements twice, less all.

    Of dilated windows ONNX Runtime finds the padding of SAME as if they were not, and a convolution takes none.
    """
    magnitudes = expression.apply("Abs", source)
    twice = expression.apply("Add", source, magnitudes)
    pools = (expression.apply("LpPool", one, p=1, ceil_mode=1, **windows) for one in (twice, magnitudes))
    return expression.apply("Sub", *pools)


def take_apart(windows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Windows along each axis which together reach over these."""
    rank = len(windows["kernel_shape"])
    for axis in range(rank):
        one = {"auto_pad": windows.get("auto_pad", b"NOTSET")}
        for name, plain in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 0)):
            if name in windows:
                one[name] = [n if i % rank == axis else plain for i, n in enumerate(windows[name])]
        yield one


def _divides_by_several(expression: Expression) -> bool:
    """Whether windows reach over an edge that does not count, so that they are divided by fewer than they have places."""
    is_padded = any(expression.attribute("pads", [])) or _is_same(expression)
    counts_edge = expression.attribute("count_include_pad", 0)
    return bool(expression.attribute("ceil_mode", 0) or (is_padded and not counts_edge))


def _is_same(expression: Expression) -> bool:
    return expression.attribute("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER")


def read_windows(expression: Expression) -> dict[str, Any]:
    """The attributes that say where the pool's windows are, those that are given."""
    names = ("kernel_shape", "strides", "dilations", "auto_pad", "pads")
    found = {name: expression.attribute(name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _find_windows(expression: Expression) -> dict[str, Any]:
    """The same, with ceil_mode of those that begin before the end, too."""
    given = read_windows(expression)
    if expression.attribute("ceil_mode", 0) and not _is_same(expression):
        rank, is_valid = len(given["kernel_shape"]), given.pop("auto_pad", b"NOTSET") == b"VALID"
        pads = [0] * (2 * rank) if is_valid or not given.get("pads") else given["pads"]
        steps = given.get("strides") or [1] * rank
        ends = (pad + step - 1 for pad, step in zip(pads[rank:], steps, strict=True))
        given["pads"] = [*pads[:rank], *ends]
    return given

"""Every row of EXPRESSIONS against an independent computation in float64, by real scans in each way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from in_memory_calibration import InMemoryCalibration, ask, ints, make_model, node, save
from onnx import TensorProto
from ways_to_observe import Probes, scan_each_way, use_probes

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner import EXPRESSIONS, SIGNED, look_inside
from overflow_fixer.inner.decisions import COMPARES
from overflow_fixer.inner.quantities import DIVIDED_BY
from overflow_fixer.native import DOMAIN, LIBRARY
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, InnerRange, RangeTable
from overflow_fixer.rules.inner_value import find_large_inner_values

Axes = tuple[int, ...] | None
Values = dict[str, Array]


@dataclass(frozen=True)
class Case:
    """A model of one node that reads x, and what is inside in float64: `inside` is told x and `axes`."""

    op: str
    opset: int
    shape: tuple[int, ...]
    inside: Callable[[Array, Axes], Values]
    axes: Axes = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    live: Mapping[str, Array] = field(default_factory=dict)
    """Integers that are fed."""
    dims: Sequence[int | str | None] | None = None
    """The dimensions that the model tells of x, if not those it has."""

    def model(self) -> onnx.ModelProto:
        inputs: dict[str, Any] = {"x": list(self.shape if self.dims is None else self.dims)}
        inputs |= {name: (TensorProto.INT64, list(value.shape)) for name, value in self.live.items()}
        at = node(self.op, " ".join(["x", *self.constants, *self.live]), "y", **self.attributes)
        return make_model([at], inputs, "y", self.constants, self.opset)

    def __str__(self) -> str:
        told = [self.op, f"opset {self.opset}", "x".join(map(str, self.shape)) or "0-d"]
        told += [f"{name}={value}" for name, value in self.attributes.items()]
        told += [
            f"{name}={value.tolist()}" for name, value in self.constants.items() if value.dtype == np.int64
        ]
        told += [f"live {name}={value.tolist()}" for name, value in self.live.items()]
        return " ".join([*told, "dynamic" if self.dims is not None else ""]).strip()


def moments(x: Array, axes: Axes) -> Values:
    deviations = x - x.mean(axes, keepdims=True)
    squares = (deviations * deviations).sum(axes)
    return {"deviation": np.abs(deviations), "sum of squares": squares, "sum": x.sum(axes)}


def group_moments(groups: int) -> Callable[[Array, Axes], Values]:
    return lambda x, _: moments(x.reshape(len(x), groups, -1), (2,))


def squares(x: Array, axes: Axes) -> Values:
    return {"sum of squares": (x * x).sum(axes)}


def norm(x: Array, axes: Axes) -> Values:
    return {"norm": np.abs(x).sum(axes)}


def sums(x: Array, axes: Axes) -> Values:
    return {"sum": x.sum(axes), **magnitudes(x, axes)}


def magnitudes(x: Array, axes: Axes) -> Values:
    return {"sum of magnitudes": np.abs(x).sum(axes)}


def last_sum(x: Array, axes: Axes) -> Values:
    return {"last sum": x.sum(axes)}


def row_maximum(x: Array, axes: Axes) -> Values:
    return {"row maximum": x.max(axes)}


def exponentials(x: Array, axes: Axes) -> Values:
    shifted = x - x.max(axes, keepdims=True)
    return {**row_maximum(x, axes), "sum of exponentials": np.exp(shifted).sum(axes)}


def log_sum(x: Array, axes: Axes) -> Values:
    return {"output": np.log(x.sum(axes))}


def log_sum_exp(x: Array, axes: Axes) -> Values:
    return {"output": np.log(np.exp(x).sum(axes))}


def lp_norm(exponent: int) -> Callable[[Array, Axes], Values]:
    return lambda x, axes: {"output": (np.abs(x) ** exponent).sum(axes) ** (1 / exponent)}


def lp_pool(exponent: int, **attributes: Any) -> Callable[[Array, Axes], Values]:
    return lambda x, _: {"output": pool(np.abs(x) ** exponent, **attributes) ** (1 / exponent)}


def windows(is_measured: bool, **attributes: Any) -> Callable[[Array, Axes], Values]:
    """Sums of the pool's windows, each place looked up by itself."""

    def inside(x: Array, _: Axes) -> Values:
        added = {
            name: pool(values, **attributes)
            for name, values in (("sum", x), ("sum of magnitudes", np.abs(x)))
        }
        return added if is_measured else {"sum of magnitudes": added["sum of magnitudes"]}

    return inside


def pool(
    x: Array,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    auto_pad: str = "NOTSET",
    count_include_pad: int = 0,
) -> Array:
    rank, places = len(kernel_shape), []
    for axis, size in enumerate(kernel_shape):
        length, step = x.shape[axis + 2], (strides or [1] * rank)[axis]
        apart = (dilations or [1] * rank)[axis]
        reach = (size - 1) * apart + 1
        before, after = (pads[axis], pads[axis + rank]) if pads and auto_pad != "VALID" else (0, 0)
        if auto_pad.startswith("SAME"):
            missing = max((-(-length // step) - 1) * step + size - length, 0)
            before = (missing + (auto_pad == "SAME_LOWER")) // 2
            after = missing - before
        rounded = (
            -(-(length + before + after - reach) // step)
            if ceil_mode
            else (length + before + after - reach) // step
        )
        begins = [index * step - before for index in range(rounded + 1)]
        places.append([[b + k * apart for k in range(size) if 0 <= b + k * apart < length] for b in begins])
    sums = [x[(..., *np.ix_(*chosen))].sum(tuple(range(-rank, 0))) for chosen in itertools.product(*places)]
    return np.stack(sums)


def nothing(x: Array, axes: Axes) -> Values:
    return {}


ONES: Mapping[str, Array] = {"scale": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
IMAGE = (2, 4, 5, 6)
ANY4 = ("n", 4, "h", "w")


def _layer_norm(opset: int, shape: tuple[int, ...], axis: int, **kwargs: Any) -> Case:
    axes = tuple(range(axis % len(shape), len(shape)))
    weights = np.ones([shape[i] for i in axes], np.float32)
    constants = {"scale": weights, "bias": 0 * weights}
    return Case("LayerNormalization", opset, shape, moments, axes, {"axis": axis}, constants, **kwargs)


def _reduction(op: str, opset: int, axes: Axes, keepdims: int = 1, **kwargs: Any) -> Case:
    """With its axes where the opset has them."""
    inside = {"ReduceMean": sums, "ReduceSum": magnitudes, "ReduceL2": squares}[op]
    is_input = opset >= (13 if op == "ReduceSum" else 18)
    attributes: dict[str, Any] = {"keepdims": keepdims}
    if axes is not None and not is_input:
        attributes["axes"] = list(axes)
    constants = {"axes": ints(*axes)} if axes is not None and is_input else {}
    return Case(op, opset, kwargs.pop("shape", IMAGE), inside, axes, attributes, constants, **kwargs)


CASES = [
    *(_layer_norm(opset, (2, 3, 4), -1) for opset in (17, 18, 21)),
    *(_layer_norm(17, (2, 3, 4), axis) for axis in (0, 1, -2)),
    _layer_norm(17, (5,), -1),
    _layer_norm(17, (2, 70, 90), 1),
    _layer_norm(17, (2, 3, 4), -1, dims=("n", "s", 4)),
    _layer_norm(17, (2, 3, 4), 1, dims=(None, None, None)),
    *(
        Case("InstanceNormalization", opset, IMAGE, moments, (2, 3), {}, ONES, dims=dims)
        for opset, dims in ((9, None), (9, ANY4), (17, None), (18, ANY4), (22, None))
    ),
    Case("InstanceNormalization", 17, (2, 4, 7), moments, (2,), {}, ONES),
    Case("InstanceNormalization", 17, (1, 4, 3, 4, 5), moments, (2, 3, 4), {}, ONES),
    *(
        Case(
            "GroupNormalization",
            21,
            shape,
            group_moments(groups),
            None,
            {"num_groups": groups},
            ONES,
            dims=dims,
        )
        for groups in (1, 2, 4)
        for shape, dims in (
            (IMAGE, None),
            (IMAGE, ANY4),
            ((2, 4, 3), None),
            ((2, 4), None),
            (IMAGE, (None,) * 4),
        )
    ),
    Case(
        "GroupNormalization",
        18,
        IMAGE,
        group_moments(2),
        None,
        {"num_groups": 2},
        {name: value[:2] for name, value in ONES.items()},
    ),
    *(Case("MeanVarianceNormalization", opset, IMAGE, moments, (0, 2, 3)) for opset in (9, 13, 17, 18, 21)),
    *(
        Case("MeanVarianceNormalization", 13, IMAGE, moments, axes, {"axes": axes}, dims=dims)
        for axes, dims in (
            ((2, 3), None),
            ((0, 1, 2, 3), None),
            ((-1,), None),
            ((0, 2, 3), ANY4),
            ((1,), None),
            ((0, 1), ANY4),
        )
    ),
    *(
        Case(
            "RMSNormalization",
            23,
            (2, 3, 4),
            squares,
            (2,),
            {"axis": axis},
            {"scale": np.ones(4, np.float32)},
        )
        for axis in (-1, 2)
    ),
    Case(
        "RMSNormalization",
        23,
        (2, 3, 4),
        squares,
        (1, 2),
        {"axis": 1},
        {"scale": np.ones((3, 4), np.float32)},
    ),
    *(
        Case("LpNormalization", opset, IMAGE, inside, (axis % 4,), {"p": p, "axis": axis})
        for opset, axis in ((9, 1), (13, -1), (22, 1))
        for p, inside in ((1, norm), (2, squares))
    ),
    Case("LpNormalization", 17, IMAGE, squares, (3,), dims=ANY4),
    *(
        _reduction(op, opset, axes, keepdims)
        for op in ("ReduceMean", "ReduceSum")
        for opset in (9, 13, 18, 21)
        for axes, keepdims in (((2, 3), 1), ((1,), 0), (None, 1))
    ),
    *(
        _reduction(op, opset, axes, keepdims, dims=ANY4)
        for op in ("ReduceMean", "ReduceSum")
        for opset, axes, keepdims in (
            (13, (-2, 0), 1),
            (13, (3, 1), 0),
            (18, (-1,), 0),
            (18, (0, 1, 2, 3), 0),
        )
    ),
    *(
        _reduction(op, 18, axes, shape=shape)
        for op in ("ReduceMean", "ReduceSum", "ReduceL2")
        for shape, axes in (
            ((1, 5, 600), (0, 2)),  # axes of one element beside others, before, between and behind them
            ((5, 1, 600), (1, 2)),
            ((5, 600, 1), (0, 2)),
            ((3, 4, 1, 7), (1, 3)),
            ((3, 4, 2, 7), (1, 3)),
            ((3, 4, 1, 7, 1), (1, 2, 4)),
            ((1, 1, 1), (0, 2)),
        )
    ),
    *(_reduction(op, opset, None, shape=()) for op in ("ReduceMean", "ReduceSum") for opset in (13, 18)),
    _reduction("ReduceMean", 18, (-1,), dims=(None,) * 4),
    Case("ReduceSum", 13, IMAGE, magnitudes, (1, 3), live={"axes": ints(1, -1)}),
    Case("ReduceMean", 18, IMAGE, sums, (1, 3), live={"axes": ints(1, -1)}),
    Case("ReduceMean", 18, IMAGE, sums, (2,), {"noop_with_empty_axes": 1}, live={"axes": ints(2)}),
    Case("ReduceMean", 18, IMAGE, sums, None, {}, {"axes": ints()}),
    Case("ReduceMean", 18, IMAGE, nothing, None, {"noop_with_empty_axes": 1}, {"axes": ints()}),
    Case("ReduceSum", 13, IMAGE, nothing, None, {"noop_with_empty_axes": 1}),
    *(
        Case("GlobalAveragePool", opset, IMAGE, sums, (2, 3), dims=dims)
        for opset, dims in ((9, None), (9, ANY4), (17, None), (18, ANY4), (22, None))
    ),
    Case("GlobalAveragePool", 17, (2, 4, 7), sums, (2,)),
    *(
        Case(
            "CumSum", opset, IMAGE, last_sum, (axis % 4,), {"exclusive": 1, "reverse": reverse}, {"axis": at}
        )
        for opset, axis, reverse, at in (
            (11, 3, 0, np.asarray(-1, np.int64)),
            (14, 1, 1, np.asarray(1, np.int64)),
            (17, 3, 1, ints(-1)),
        )
    ),
    Case("CumSum", 14, IMAGE, last_sum, (2,), {"exclusive": 1}, live={"axis": np.asarray(2, np.int64)}),
    Case("CumSum", 14, IMAGE, nothing, None, {"exclusive": 0}, {"axis": np.asarray(1, np.int64)}),
    *(
        Case(op, opset, IMAGE, row_maximum, (axis % 4,), {"axis": axis}, dims=dims)
        for op in ("Softmax", "LogSoftmax")
        for opset, axis, dims in ((13, -1, None), (13, 1, ANY4), (18, 1, None), (21, -1, ANY4))
    ),
    *(
        Case(op, opset, IMAGE, row_maximum, tuple(range(axis, 4)), {"axis": axis})
        for op in ("Softmax", "LogSoftmax")
        for opset, axis in ((9, 1), (9, 3), (11, 2))
    ),
    Case("Softmax", 12, IMAGE, row_maximum, (1, 2, 3)),
    Case("Softmax", 13, IMAGE, row_maximum, (3,)),
    Case("Softmax", 11, IMAGE, row_maximum, (2, 3), {"axis": -2}, dims=ANY4),
]
LONG = [
    *(
        Case(op, opset, (2, 50176), inside, (1,), attributes, constants, dims=dims)
        for op, inside in (("ReduceMean", sums), ("ReduceSum", magnitudes))
        for opset, attributes, constants in (
            (11, {"axes": [1]}, {}),
            (18, {}, {"axes": ints(1)}),
        )
        for dims in (None, ("n", "length"))
        if op == "ReduceMean" or opset == 11
    ),
    Case("ReduceSum", 18, (2, 50176), magnitudes, (1,), live={"axes": np.asarray([1], np.int64)}),
    Case("ReduceMean", 18, (3, 70000, 2), sums, (1,), {}, {"axes": ints(1)}),
    Case("ReduceL2", 13, (2, 50176), squares, (1,), {"axes": [1]}),
    Case(
        "ReduceL2",
        18,
        (2, 3, 50176),
        squares,
        (1, 2),
        {"keepdims": 0},
        {"axes": ints(1, 2)},
        dims=("n", "c", 50176),
    ),
    Case("ReduceL2", 18, (2, 50176), squares, (1,), live={"axes": np.asarray([1], np.int64)}),
    Case("GlobalLpPool", 17, (1, 2, 300, 300), squares, (2, 3)),
    Case("ReduceL2", 13, (2, 512), squares, (1,), {"axes": [1]}),
    *(Case("GlobalLpPool", 17, (1, 2, 300, 300), lp_norm(p), (2, 3), {"p": p}) for p in (1, 3)),
    Case("GlobalLpPool", 17, (1, 2, 300, 300), lp_norm(3), (2, 3), {"p": 3}, dims=("n", "c", "h", "w")),
    Case("GlobalLpPool", 17, (1, 2, 8, 64), nothing, (2, 3), {"p": 3}),
    *(
        Case(op, opset, shape, inside, axes, attributes, constants, dims=dims)
        for op, inside in (("ReduceLogSum", log_sum), ("ReduceLogSumExp", log_sum_exp))
        for shape, axes, dims in (
            ((2, 60_000), (1,), None),
            ((2, 60_000), (1,), ("n", "length")),
            ((3, 70_000, 2), (1,), None),
            ((2, 3, 30_000), (0, 2), ("n", "c", "length")),
        )
        for opset, attributes, constants in (
            (13, {"axes": axes}, {}),
            (18, {"keepdims": 0}, {"axes": ints(*axes)}),
        )
        if op == "ReduceLogSumExp" or shape[-1] > 2  # whose rows may be negative as a whole
    ),
    *(Case(op, 17, (2, 512), nothing, (1,), {"axes": [1]}) for op in ("ReduceLogSum", "ReduceLogSumExp")),
    *(
        Case("LpPool", opset, (1, 4, 90, 80), inside, None, {"p": p, **attributes}, dims=ANY4)
        for p in (1, 2, 3)
        for opset, attributes in (
            (11, {"kernel_shape": [70, 70], "strides": [9, 7], "pads": [30, 0, 20, 10]}),
            (17, {"kernel_shape": [61, 40], "strides": [9, 7], "auto_pad": "SAME_LOWER"}),
            (18, {"kernel_shape": [31, 20], "strides": [4, 3], "dilations": [2, 3]}),
            (18, {"kernel_shape": [61, 40], "strides": [9, 7], "ceil_mode": 1}),
            (22, {"kernel_shape": [61, 40], "strides": [9, 7], "auto_pad": "VALID"}),
        )
        for inside in (lp_pool(p, **attributes),)
    ),
    Case("LpPool", 17, (1, 1, 90, 80), nothing, None, {"kernel_shape": [8, 64]}),
    Case("CumSum", 14, (2, 50176), last_sum, (1,), {"exclusive": 1}, {"axis": np.asarray(1, np.int64)}),
    Case("LpNormalization", 17, (2, 50176), norm, (1,), {"axis": 1, "p": 1}),
    Case("LpNormalization", 17, (2, 50176), squares, (1,), {"axis": 1, "p": 2}, dims=("n", "length")),
    Case("InstanceNormalization", 17, (1, 4, 80000), moments, (2,), {}, ONES, dims=("n", 4, "length")),
    _layer_norm(17, (3, 5000), -1),
    *(
        Case("AveragePool", opset, shape, windows(is_measured, **attributes), None, attributes)
        for opset, shape, is_measured, attributes in (
            (17, (1, 2, 224, 224), True, {"kernel_shape": [224, 224]}),
            (
                17,
                (1, 1, 90, 80),
                True,
                {"kernel_shape": [61, 40], "strides": [9, 7], "pads": [30, 0, 20, 10]},
            ),
            (
                13,
                (1, 1, 90, 80),
                True,
                {"kernel_shape": [61, 40], "strides": [9, 7], "auto_pad": "SAME_LOWER"},
            ),
            (17, (1, 1, 90, 80), True, {"kernel_shape": [61, 40], "strides": [9, 7], "ceil_mode": 1}),
            (
                17,
                (1, 1, 90, 80),
                True,
                {"kernel_shape": [61, 40], "strides": [9, 7], "ceil_mode": 1, "auto_pad": "VALID"},
            ),
            (19, (1, 1, 90, 80), True, {"kernel_shape": [31, 20], "dilations": [2, 3]}),
        )
    ),
    *(
        Case(
            "AveragePool",
            19,
            (1, 1, 90, 80),
            windows(True, **attributes),
            None,
            attributes,
            dims=("n", "c", "h", "w"),
        )
        for attributes in (
            {
                "kernel_shape": [31, 20],
                "strides": [4, 3],
                "dilations": [2, 3],
                "ceil_mode": 1,
                "auto_pad": "SAME_UPPER",
            },
        )
    ),
    Case("ReduceMean", 17, (3, 50_000), sums, (0, 1), dims=("n", "k")),
]
CASES += [
    Case("AveragePool", opset, shape, windows(is_measured, **attributes), None, attributes, dims=dims)
    for opset, shape, is_measured, attributes in (
        (11, (2, 4, 9, 8), False, {"kernel_shape": [3, 2]}),
        (17, (2, 4, 9, 8), False, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        (9, (2, 4, 9, 8), True, {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 2]}),
        (13, (2, 4, 9, 8), True, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        (13, (2, 4, 9, 8), True, {"kernel_shape": [4, 2], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
        (17, (2, 4, 9, 8), True, {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
        (
            17,
            (2, 4, 10, 8),
            True,
            {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
        ),
        (19, (2, 4, 9, 8), False, {"kernel_shape": [3, 2], "dilations": [2, 3]}),
        (17, (2, 4, 30), True, {"kernel_shape": [7], "pads": [3, 3]}),
        (19, (1, 2, 5000), True, {"kernel_shape": [3], "dilations": [2048], "ceil_mode": 1}),
        (19, (1, 2, 5000), True, {"kernel_shape": [2], "dilations": [4095], "ceil_mode": 1}),
        (17, (1, 2, 6, 5, 4), True, {"kernel_shape": [2, 3, 2], "pads": [1, 1, 1, 1, 1, 1]}),
    )
    for dims in (None, ("n", "c", *(f"d{axis}" for axis in range(len(shape) - 2))))
]
POOLS = [
    Case("AveragePool", opset, (2, 4, 7, 8), windows(True, **attributes), None, attributes, dims=ANY4)
    for opset in (9, 10, 11, 19, 22)
    for edge in (
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 0, 1], "count_include_pad": 1},
        {"auto_pad": "VALID"},
        {"auto_pad": "VALID", "pads": [1, 1, 1, 1]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "count_include_pad": 1},
    )
    for steps in ({"strides": [2, 3]}, {"strides": [2, 1], "dilations": [2, 2]}, {"dilations": [1, 3]})
    for mode in ({}, {"ceil_mode": 1})
    for attributes in ({"kernel_shape": [2, 3], **edge, **steps, **mode},)
    if opset >= (19 if "dilations" in steps else 10 if mode else 9)
    if opset < 19 or mode or "SAME" not in str(edge)
]
"""Without those of which ONNX Runtime 1.23 takes a wrong mean: from opset 19 on, padded more at one end than at the other."""
CASES += [
    Case(
        "SimplifiedLayerNormalization",
        17,
        IMAGE,
        squares,
        (3,),
        {"axis": -1},
        {"scale": np.ones(6, np.float32)},
    )
]
CASES += [
    Case(op, opset, shape, exponentials, axes, {"axis": axis}, dims=dims)
    for op in ("Softmax", "LogSoftmax")
    for opset, shape, axes, axis in (
        (13, (2, 5000), (1,), -1),
        (11, (2, 80, 70), (1, 2), 1),
        (9, (2, 4097), (1,), 1),
        (13, (4097, 3), (0,), 0),
    )
    for dims in (None, [*"abc"[: len(shape)]])
]
CASES += [
    Case(
        "CumSum",
        11,
        IMAGE,
        last_sum,
        (2,),
        {"exclusive": 1, "reverse": reverse},
        live={"axis": np.asarray(2, np.int64)},
    )
    for reverse in (0, 1)
]
CASES += [
    Case("ReduceLogSumExp", opset, IMAGE, log_sum_exp, (1, 3), attributes, constants, dims=ANY4)
    for opset, attributes, constants in ((13, {"axes": [1, -1]}, {}), (18, {}, {"axes": ints(1, -1)}))
]
UNKNOWN = [
    *(
        _reduction(op, opset, axes, keepdims, shape=shape, dims=dims)
        for op in ("ReduceMean", "ReduceSum", "ReduceL2")
        for opset, shape, axes, keepdims, dims in (
            (9, (2, 3, 100_000), (0, 2), 1, ("n", 3, "t")),
            (13, (2, 3, 100_000), (0, -1), 0, ("n", 3, "t")),
            (18, (2, 3, 50_000), (0, 2), 0, (None,) * 3),
            (18, (2, 3, 4, 30_000), (1, 3), 1, ("n", 3, "s", "t")),
            (18, (2, 3, 20_000, 2), (0, 2), 1, ("n", 3, "t", "k")),  # the last axis is kept
            (18, (2, 3, 4, 2, 5000), (0, 2, 4), 0, ("n", 3, "s", "k", "t")),  # in three parts
        )
    ),
    *(
        Case("MeanVarianceNormalization", opset, shape, moments, axes, {"axes": axes}, dims=dims)
        for opset in (9, 13)
        for shape, axes, dims in (
            ((2, 3, 100_000), (0, 2), ("n", 3, "t")),
            ((2, 3, 4, 50_000), (0, 2, 3), ("n", 3, "h", "w")),
            ((2, 3, 4, 2, 5000), (0, 2, 4), ("n", 3, "s", "k", "t")),
        )
    ),
    Case("InstanceNormalization", 17, (1, 4, 3, 50_000), moments, (2, 3), {}, ONES, dims=ANY4),
    Case("GlobalAveragePool", 17, (1, 4, 3, 50_000), sums, (2, 3), dims=ANY4),
    Case("GlobalLpPool", 17, (1, 4, 3, 50_000), squares, (2, 3), dims=ANY4),
]
"""Sums over several axes, the last of which may be that of an image for all that is known, and is longer."""
FIRST = list({case.op: case for case in reversed(CASES) if case.inside is not nothing}.values())
"""One for each operator."""
MOMENTS = [case for case in FIRST if "deviation" in case.inside(np.ones(case.shape), case.axes)]


def draw(case: Case, mean: float = 5.0, deviation: float = 30.0) -> Array:
    rng = np.random.default_rng(len(str(case)))
    return (mean + deviation * rng.standard_normal(case.shape)).astype(np.float32)


def scan(case: Case, folder: Path, *batches: Array) -> tuple[Graph, RangeTable]:
    """The model, and the ranges in each way of observing: those of the native probes."""
    graph = save(case.model(), folder)
    return graph, scan_each_way(graph, InMemoryCalibration(tuple({"x": x, **case.live} for x in batches)))


def measured(ranges: RangeTable, label: str | None = None) -> dict[str, InnerRange]:
    """What there is of values inside the node of that label, or the only one."""
    found = ranges.inner if label is None else ranges.inner_of[label].values()
    elsewhere = ("products", "row cancellation")  # test_product_sums and test_quiet_rows tell of these
    return {one.quantity: one for one in found if one.seen.element_count and one.quantity not in elsewhere}


def assert_right(found: Mapping[str, InnerRange], expected: Values, op: str = "") -> None:
    assert found.keys() == expected.keys()
    for quantity, values in expected.items():
        seen, most = found[quantity].seen, np.abs(values).max()
        assert seen.max_abs == pytest.approx(most, rel=1e-5), quantity
        if quantity in SIGNED:
            assert seen.max == pytest.approx(values.max(), abs=1e-5 * most), quantity
            assert seen.min == pytest.approx(values.min(), abs=1e-5 * most), quantity
        else:
            assert np.isnan(seen.min)
        if quantity not in DIVIDED_BY.get(op, ()):
            assert seen.min_nonzero_abs == -np.inf
        elif (small := values[(values > 0) & (values < 65520)]).size:
            assert seen.min_nonzero_abs == pytest.approx(small.min(), rel=1e-5)
        else:
            assert np.isnan(seen.min_nonzero_abs)


def test_every_operator_has_a_case() -> None:
    """But for those that read several tensors, and those of which some are measured."""
    others = {
        "Attention",
        "LSTM",
        "GRU",
        "RNN",
        "Mean",
        "Sum",
        "ArgMin",
        "ArgMax",
        "TopK",
        "Sub",
        "Exp",
        "Mul",
        "GridSample",
        *COMPARES,
    }
    assert {case.op for case in CASES + LONG if case.inside is not nothing} == EXPRESSIONS.keys() - others


@pytest.mark.parametrize("op", ["Mean", "Sum"])
@pytest.mark.parametrize("opset", [9, 13])
def test_partial_sums_of_inputs_are_bounded(op: str, opset: int, tmp_path: Path) -> None:
    """9000 eight times, then -9000: 72,000 on the way, and nothing in the end."""
    names = [f"x{number}" for number in range(16)]
    inputs = {name: ["n", 4] for name in names}
    feeds = {
        name: np.full((2, 4), 9000 if number < 8 else -9000, np.float32) for number, name in enumerate(names)
    }
    graph = save(make_model([node(op, " ".join(names), "y")], inputs, "y", {}, opset), tmp_path)
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)))
    assert measured(ranges)["sum of magnitudes"].seen.max_abs == 144000
    (found,) = ask(find_large_inner_values, graph, ranges)
    assert (found.value, found.limit, found.severity) == (144000, 65504, "low")


def test_two_terms_have_no_partial_sum(tmp_path: Path) -> None:
    graph = save(make_model([node("Mean", "x z", "y")], {"x": [2], "z": [2]}, "y"), tmp_path)
    feeds = {"x": np.ones(2, np.float32), "z": np.ones(2, np.float32)}
    assert not collect_ranges(graph, InMemoryCalibration((feeds,))).inner


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_inside_is_right(case: Case, tmp_path: Path) -> None:
    x = draw(case)
    _, ranges = scan(case, tmp_path, x)
    assert_right(measured(ranges), case.inside(x.astype(np.float64), case.axes), case.op)


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_windows_are_those_of_onnx_runtime(case: Case, tmp_path: Path) -> None:
    """The largest sums are where windows end behind the edge, if there are such."""
    x = draw(case)
    x[..., -1, :] *= 10
    x[..., -1] *= 10
    members, wide = find_members(case), x.astype(np.float64)
    added = case.inside(wide, case.axes)
    images = wide.reshape(8, -1)
    expected = {"sum": images @ members.T, "sum of magnitudes": np.abs(images) @ members.T}
    for name, values in expected.items():
        assert np.abs(values).max() == pytest.approx(np.abs(added[name]).max())
    _, ranges = scan(case, tmp_path, x)
    found = measured(ranges)
    if "sum" not in found:  # the output times the places of a window
        most = ranges.by_tensor["y"].max_abs * math.prod(case.attributes["kernel_shape"])
        assert most == pytest.approx(np.abs(expected.pop("sum")).max())
    assert_right(found, expected)


def find_members(case: Case) -> Array:
    """[window, place]: whether ONNX Runtime's pool reads it there, by an image for each place that is 0 elsewhere."""
    places = math.prod(case.shape[2:])
    images = np.eye(places, dtype=np.float32).reshape(places, 1, *case.shape[2:])
    session = onnxruntime.InferenceSession(
        Case(**{**vars(case), "dims": [None] * 4}).model().SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    (means,) = session.run(None, {"x": images})
    return (means > 0).reshape(places, -1).T.astype(np.float64)


@pytest.mark.parametrize("case", MOMENTS, ids=str)
@pytest.mark.parametrize("deviation", [1, 30, 100])
def test_a_large_mean_takes_no_digits_of_small_deviations(
    case: Case, deviation: float, tmp_path: Path
) -> None:
    x = draw(case, 9000, deviation)
    _, ranges = scan(case, tmp_path, x)
    assert_right(measured(ranges), case.inside(x.astype(np.float64), case.axes), case.op)


@pytest.mark.parametrize("case", MOMENTS, ids=str)
@pytest.mark.parametrize(("mean", "deviation"), [(9999, 0.3), (1000.7, 3e-4)])
def test_squares_of_deviations_near_the_rounding_of_the_mean(
    case: Case, mean: float, deviation: float, tmp_path: Path
) -> None:
    """Nothing of what the mean was rounded by is left in them: of 1000.7 up to 3e-5."""
    rng = np.random.default_rng(0)
    x = (mean + deviation * rng.standard_normal(case.shape)).astype(np.float32)
    graph = save(case.model(), tmp_path)
    ranges = scan_each_way(graph, InMemoryCalibration(({"x": x},)))
    wide = case.inside(x.astype(np.float64), case.axes)
    found = measured(ranges)["sum of squares"].seen
    assert found.max_abs == pytest.approx(np.abs(wide["sum of squares"]).max(), rel=1e-5)


@pytest.mark.parametrize("length", [4096, 4097])
@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, -1), (13, -1), (17, -1)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_rows_of_a_softmax_are_long_or_not_as_the_data_show(
    op: str, opset: int, axis: int, length: int, tmp_path: Path
) -> None:
    """Not even how many dimensions the tensor has is known before."""
    nodes = [node("Reshape", "x shape", "r"), node(op, "r", "y", axis=axis)]
    inputs = {"x": ["n"], "shape": (TensorProto.INT64, ["rank"])}
    graph = save(make_model(nodes, inputs, "y", {}, opset), tmp_path)
    x = draw(Case(op, opset, (3, length), exponentials, (1,)))
    feeds = {"x": x.reshape(-1), "shape": np.array(x.shape)}
    ranges = scan_each_way(graph, InMemoryCalibration((feeds,)))
    inside = exponentials if length > 4096 else row_maximum
    assert_right(measured(ranges), inside(x.astype(np.float64), (1,)))


def test_a_long_row_of_a_softmax_with_a_nan_counts_as_one(tmp_path: Path) -> None:
    case = Case("Softmax", 17, (3, 5000), exponentials, (1,))
    x = np.zeros(case.shape, np.float32)
    x[1, 7] = np.nan
    _, ranges = scan(case, tmp_path, x)
    found = measured(ranges)["sum of exponentials"].seen
    assert (found.max_abs, found.element_count, found.nan_count) == (pytest.approx(5000), 3, 1)


@pytest.mark.parametrize(
    "case",
    [
        Case("InstanceNormalization", 17, (1, 4, 900, 900), moments, (2, 3), {}, ONES),
        Case("GroupNormalization", 21, (1, 4, 700, 700), group_moments(2), None, {"num_groups": 2}, ONES),
        Case("ReduceMean", 17, (2, 1000, 1000), sums, (1, 2), {"axes": [1, 2]}, dims=("n", "h", "w")),
        Case("GlobalAveragePool", 17, (1, 2, 900, 900), sums, (2, 3)),
    ],
    ids=str,
)
def test_many_elements_take_no_digits(case: Case, tmp_path: Path) -> None:
    x = draw(case)
    _, ranges = scan(case, tmp_path, x)
    assert_right(measured(ranges), case.inside(x.astype(np.float64), case.axes), case.op)


@pytest.mark.parametrize("case", LONG, ids=str)
@pytest.mark.parametrize("is_signed", [False, True])
def test_many_elements_that_are_alike_take_no_digits(case: Case, is_signed: bool, tmp_path: Path) -> None:
    """Where all are 1.1 rounding goes one way: 50,000 in one FP32 sum lose 4e-4."""
    x = np.full(case.shape, 1.1, np.float32)
    if is_signed:  # half of each row, so that the sum is not near zero
        x[..., ::4] *= -1
    _, ranges = scan(case, tmp_path, x)
    expected = case.inside(x.astype(np.float64), case.axes)
    if (
        "deviation" in expected and not is_signed
    ):  # the mean of equal numbers is not that number, to the last digit
        expected, found = {"sum": expected["sum"]}, {"sum": measured(ranges)["sum"]}
    else:
        found = measured(ranges)
    assert_right(found, expected, case.op)


def _alternate(values: tuple[float, float], shape: tuple[int, ...]) -> Array:
    """The two in turn, as np.resize has them, which makes a list of a million arrays first."""
    return np.float32(values)[np.arange(math.prod(shape)) % 2].reshape(shape)


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
@pytest.mark.parametrize("probes", ["native", "operators"])
@pytest.mark.parametrize("values", [(1.1, 1.1), (3.3, 4.0)])
def test_rows_of_unknown_length_take_no_digits(
    case: Case, probes: Probes, values: tuple[float, float], tmp_path: Path
) -> None:
    x = _alternate(values, case.shape)
    with use_probes(probes):
        ranges = collect_ranges(save(case.model(), tmp_path), InMemoryCalibration(({"x": x},)))
    expected, found = case.inside(x.astype(np.float64), case.axes), measured(ranges)
    if "deviation" in expected and len(set(values)) == 1:  # as above
        expected, found = {"sum": expected["sum"]}, {"sum": found["sum"]}
    assert_right(found, expected, case.op)


@pytest.mark.parametrize("probes", ["native", "operators"])
def test_a_row_is_long_or_not_as_the_batch_shows(probes: Probes, tmp_path: Path) -> None:
    case = _reduction("ReduceMean", 18, (0, 2), dims=("n", "c", "t"))
    batches = [np.full((2, 3, length), 1.1, np.float32) for length in (1, 512, 0, 513, 100_000)]
    with use_probes(probes):
        data = InMemoryCalibration(tuple({"x": x} for x in batches))
        found = measured(collect_ranges(save(case.model(), tmp_path), data))
    expected = [float(x[:, 0].astype(np.float64).sum()) if x.size else np.nan for x in batches]
    for quantity in ("sum", "sum of magnitudes"):
        np.testing.assert_allclose(found[quantity].batch_max_abs, expected, rtol=1e-5)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
@pytest.mark.parametrize(("size", "length"), [(3000, 10_000), (4096, 4096)])
def test_long_windows_take_no_digits_natively(size: int, length: int, tmp_path: Path) -> None:
    attributes = {"kernel_shape": [size], "strides": [100]}
    inside = windows(True, **attributes)
    case = Case("AveragePool", 17, (1, 2, length), inside, None, attributes, dims=("n", 2, "t"))
    x = np.resize(np.float32([3.3, 4.0]), case.shape)
    ranges = collect_ranges(save(case.model(), tmp_path), InMemoryCalibration(({"x": x},)))
    assert_right(measured(ranges), case.inside(x.astype(np.float64), None))


@pytest.mark.parametrize("case", FIRST, ids=str)
@pytest.mark.parametrize(("bad", "place"), [(np.nan, -1), (np.inf, 0), (-np.inf, -1)])
def test_nothing_is_told_of_what_is_not_finite(case: Case, bad: float, place: int, tmp_path: Path) -> None:
    x = draw(case, -2e5, 1e3)
    (tmp_path / "finite").mkdir()
    assert ask(find_large_inner_values, *scan(case, tmp_path / "finite", x))
    x.flat[place] = bad
    graph, ranges = scan(case, tmp_path, draw(case), x)
    takes_masks = ("Softmax", "LogSoftmax", "ReduceLogSumExp")  # of whose other elements the same is told
    is_told = bad == -np.inf and case.op in takes_masks
    assert bool(ask(find_large_inner_values, graph, ranges)) == is_told


@pytest.mark.parametrize("case", FIRST, ids=str)
@pytest.mark.parametrize("axis", range(4))
def test_an_empty_batch_changes_nothing(case: Case, axis: int, tmp_path: Path) -> None:
    """As far as ONNX Runtime runs the node on one."""
    shape = list(case.shape)
    dims = ["any" if i == axis else length for i, length in enumerate(shape)]
    shape[min(axis, len(shape) - 1)] = 0
    dynamic = Case(**{**vars(case), "dims": dims})
    if not _runs(dynamic, np.zeros(shape, np.float32)):
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} runs no {case.op} of {shape}")
    x = draw(case)
    (tmp_path / "with").mkdir()
    graph, alone = scan(dynamic, tmp_path, x)
    _, found = scan(dynamic, tmp_path / "with", np.zeros(shape, np.float32), x)
    for quantity, one in measured(alone).items():
        if quantity != "row maximum":  # that of an empty row is -inf
            assert measured(found)[quantity].seen.max_abs == one.seen.max_abs
    if np.isfinite(found.by_tensor["y"].max_abs):  # the logarithm of the sum of nothing is -inf
        said = [
            [at.reason for at in ask(find_large_inner_values, graph, ranges)] for ranges in (alone, found)
        ]
        assert said[0] == said[1]


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_an_empty_batch_by_a_negative_axis_ends_no_scan(op: str, opset: int, tmp_path: Path) -> None:
    """Of it, ONNX Runtime gives another shape than by the same axis counted from the front."""
    case = _reduction(op, opset, (-1,), shape=(2, 4), dims=("n", "m"))
    graph, ranges = scan(case, tmp_path, np.zeros((2, 0), np.float32), draw(case))
    assert_right(measured(ranges), case.inside(draw(case).astype(np.float64), case.axes), case.op)
    assert not ask(find_large_inner_values, graph, ranges)


def _runs(case: Case, x: Array) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        model = case.model().SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.run(None, {"x": x, **case.live})
    except Exception:
        return False
    return True


@pytest.mark.parametrize("case", FIRST, ids=str)
@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_precisions_are_not_looked_into(case: Case, elem_type: int, tmp_path: Path) -> None:
    model = case.model()
    for info in (*model.graph.input, *model.graph.output):
        if info.name in "xy":
            info.type.tensor_type.elem_type = elem_type
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name)
            )
    assert look_inside(save(model, tmp_path)).values == ()


def test_another_domain_is_not_looked_into(tmp_path: Path) -> None:
    model = make_model([node("Softmax", "x", "y", domain="com.microsoft")], {"x": [2]}, "y")
    model.graph.output[0].type.CopyFrom(model.graph.input[0].type)
    assert look_inside(save(model, tmp_path)).values == ()


def test_shapes_that_the_model_tells_wrong_are_not_relied_on(tmp_path: Path) -> None:
    """An input was made dynamic, and what was recorded of inner tensors is of before."""
    nodes = [node("Relu", "x", "r"), node("InstanceNormalization", "r scale bias", "y")]
    model = make_model(nodes, {"x": [1, 4, "h", "w"]}, "y", ONES)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 4, 2, 2]))
    graph = save(model, tmp_path)
    x = np.random.default_rng(0).random((1, 4, 5, 6)).astype(np.float32)
    found = measured(collect_ranges(graph, InMemoryCalibration(({"x": x},))))
    assert_right(found, moments(x.astype(np.float64), (2, 3)))


def test_where_the_rank_is_unknown_rows_are_flattened(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x shape", "r"),
        node("InstanceNormalization", "r scale bias", "a"),
        node("GroupNormalization", "r scale bias", "b", num_groups=2),
        node("GlobalAveragePool", "r", "c"),
        node("LayerNormalization", "r scale", "d", axis=-1),
        node("Softmax", "r", "e"),
    ]
    inputs = {"x": [48], "shape": (TensorProto.INT64, ["rank"])}
    graph = save(make_model(nodes, inputs, "a b c d e", ONES, opset=21), tmp_path)
    x = 5 + np.random.default_rng(0).standard_normal((1, 4, 3, 4)).astype(np.float32)
    feeds = {"x": x.reshape(-1), "shape": ints(*x.shape)}
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)))
    wide = x.astype(np.float64)
    expected = {
        "InstanceNormalization_a": moments(wide, (2, 3)),
        "GroupNormalization_b": group_moments(2)(wide, None),
        "GlobalAveragePool_c": sums(wide, (2, 3)),
        "LayerNormalization_d": moments(wide, (3,)),
        "Softmax_e": row_maximum(wide, (3,)),
    }
    assert ranges.inner_of.keys() == expected.keys()
    for label, values in expected.items():
        assert_right(measured(ranges, label), values)


@pytest.mark.parametrize(
    ("op", "opset"), [(op, opset) for op in ("ReduceMean", "ReduceSum", "ReduceL2") for opset in (13, 18)]
)
@pytest.mark.parametrize("shape", [(40, 300, 300), (50_000,), (), (0, 3)])
@pytest.mark.parametrize("is_inside", [False, True])
def test_where_the_rank_is_unknown_a_sum_of_everything_takes_no_digits(
    op: str, opset: int, shape: tuple[int, ...], is_inside: bool, tmp_path: Path
) -> None:
    """In a branch nothing is known of the shape of what it captures."""
    reduction = node(op, "r", "s", keepdims=0)
    nodes = [node("Reshape", "x shape", "r"), reduction]
    if is_inside:
        result = onnx.helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
        branches = [onnx.helper.make_graph([reduction], name, [], [result]) for name in ("a", "b")]
        nodes[1] = node("If", "c", "s", then_branch=branches[0], else_branch=branches[1])
    inputs: dict[str, Any] = {"x": ["n"], "shape": (TensorProto.INT64, ["rank"]), "c": (TensorProto.BOOL, [])}
    nodes.append(node("Identity", "s", "y"))
    graph = save(make_model(nodes, inputs, "y", {}, opset=opset), tmp_path)
    x = np.full(shape, 1.1, np.float32)
    feeds = {"x": x.reshape(-1), "shape": np.array(shape, np.int64), "c": np.array(True)}
    ranges = scan_each_way(graph, InMemoryCalibration((feeds,)))
    found = [one for one in ranges.inner if one.quantity.startswith("sum of") and one.seen.element_count]
    wide = x.astype(np.float64)
    expected = np.square(wide).sum() if op == "ReduceL2" else np.abs(wide).sum()
    assert [one.seen.max_abs for one in found if x.size] == [pytest.approx(expected, rel=1e-5)] * bool(x.size)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_native_operators_need_no_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inferring them takes longer than a batch of a small model."""
    nodes = [
        node("Reshape", "x shape", "r"),
        node("LayerNormalization", "r scale", "a", axis=-1),
        node("MatMul", "a x", "b"),
        node("Softmax", "b", "c", axis=-1),
        node("ReduceL2", "c", "d", axes=[-1]),
    ]
    inputs = {"x": [4, 4], "shape": (TensorProto.INT64, ["rank"])}
    graph = save(make_model(nodes, inputs, "c d", ONES), tmp_path)
    feeds = {"x": draw(Case("Softmax", 17, (4, 4), row_maximum, (1,))), "shape": ints(1, 4, 4)}
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *_, **__: pytest.fail("inferred"))
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)))
    expected = {"LayerNormalization_a": 3, "Softmax_c": 1, "ReduceL2_d": 1, "MatMul_b": 0}
    assert {label: len(measured(ranges, label)) for label in ranges.inner_of} == expected


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
@pytest.mark.parametrize(
    ("dims", "axes", "expected"),
    [
        ([1, 5, 6], (0, 2), "Sums"),
        ([5, 6, 1, 7], (1, 3), "Sums"),
        ([5, 6, 1, 7, 8], (1, 3), "SumsApart"),
        ([5, 6, 7, 1], (1, 3), "SumsApart"),
        (["n", 6, 7], (0, 2), "Sums"),
        ([5, 6, 7], (0, 2), "Sums"),
        (["n", 6, "t", 8], (0, 1, 3), "Sums"),
        (["n", 6, "t", 8], (0, 2), ""),
        (["n", 6, "t", 8, "k"], (0, 2, 4), ""),
    ],
)
def test_axes_of_one_element_and_parts_are_no_obstacle_to_native_sums(
    dims: list[int | str], axes: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    at = node("ReduceSum", "x axes", "y")
    graph = save(make_model([at], {"x": dims}, "y", {"axes": ints(*axes)}, 18), tmp_path)
    added = look_inside(graph, is_native=True).graph.nodes
    assert [node.op_type for node in added if node.domain == DOMAIN] == [expected] * bool(expected)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
@pytest.mark.parametrize(
    ("attributes", "is_native"),
    [
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1, "strides": [2, 2]}, True),
        ({"kernel_shape": [3, 3], "auto_pad": "VALID"}, True),
        ({"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, False),
        ({"kernel_shape": [16, 496]}, True),
        ({"kernel_shape": [17, 496]}, True),
        ({"kernel_shape": [384, 4096]}, True),
        ({"kernel_shape": [385, 4096]}, False),  # more than 512 numbers one after the other
        ({"kernel_shape": [2, 2], "dilations": [5000, 4095]}, True),
        ({"kernel_shape": [2, 2], "dilations": [1, 4096]}, False),  # farther than 4096 places
    ],
)
def test_windows_are_added_up_natively_where_that_is_right(
    attributes: dict[str, Any], is_native: bool, tmp_path: Path
) -> None:
    at = node("AveragePool", "x", "y", **attributes)
    graph = save(make_model([at], {"x": [1, 2, "h", "w"]}, "y", opset=19), tmp_path)
    added = {node.op_type for node in look_inside(graph, is_native=True).graph.nodes} - {"Constant"}
    assert (added == {"AveragePool", "Windows"}) == is_native


def test_an_empty_list_of_axes_means_all(tmp_path: Path) -> None:
    at = node("ReduceMean", "x", "y")
    at.attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    graph = save(make_model([at], {"x": [2, 3]}, "y", opset=13), tmp_path)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    ranges = collect_ranges(graph, InMemoryCalibration(({"x": x},)))
    assert_right(measured(ranges), sums(x.astype(np.float64), None))


def test_nodes_that_share_a_source_and_constants(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", "x axes", "a", noop_with_empty_axes=1),
        node("LayerNormalization", "x scale", "b"),
        node("LayerNormalization", "x scale", "c", axis=-1),
        node("InstanceNormalization", "x scale bias", "d"),
        node("CumSum", "x zero", "e", exclusive=1),
    ]
    constants = {**ONES, "axes": ints(), "zero": np.asarray(2, np.int64)}
    graph = save(make_model(nodes, {"x": [2, 4, 4]}, "a b c d e", constants, opset=18), tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32) * 9 + 4
    ranges = collect_ranges(graph, InMemoryCalibration(({"x": x},)))
    found = {label: measured(ranges, label) for label in ranges.inner_of}
    wide = x.astype(np.float64)
    assert found.keys() == {f"LayerNormalization_{c}" for c in "bc"} | {"InstanceNormalization_d", "CumSum_e"}
    for label in ("LayerNormalization_b", "LayerNormalization_c", "InstanceNormalization_d"):
        assert_right(found[label], moments(wide, (2,)))
    assert_right(found["CumSum_e"], last_sum(wide, (2,)))

"""A mask is clamped only where the outputs stay the same bit for bit; each refusal says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.masks.mask_verdicts import MASK_MAGNITUDE, MaskVerdict, judge_masks
from overflow_fixer.graph.constant_shapes import clip_fill
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, PlanPolicy, RangeTable
from overflow_fixer.sessions.marking import mark_outputs
from overflow_fixer.sessions.session import open_session, run_session

MIN = float(np.finfo(np.float32).min)
BOOL = TensorProto.BOOL
SHAPE = (2, 3, 4, 4)
CAUSAL = np.triu(np.ones((4, 4), bool), 1)
ROW_GONE = np.eye(4, dtype=bool) | (np.arange(4) == 2)[:, None]
FIRST_HALF = np.zeros((3, 1, 4), bool)
FIRST_HALF[0, 0, :2] = True
LIMIT = 10000


def pattern_of(masked: np.ndarray, value: float) -> np.ndarray:
    return np.where(masked, np.float32(value), np.float32(0))


@dataclass
class Attention:
    """Scores x under masks: nodes from x to the output y, and what they read.

    The switches c, d (bool) and m (0 or 1) are off in the calibration data.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    opset: int = 17
    extra_outputs: str = ""
    x: float = 100.0
    switches: dict[str, Any] = field(default_factory=dict)
    recorded: dict[str, list[int]] = field(default_factory=dict)

    def scan(self, folder: Path) -> tuple[Graph, RangeTable]:
        used = {name for n in self.nodes for name in n.input}
        inputs = {"x": [*SHAPE], "c": (BOOL, [*SHAPE]), "d": (BOOL, [2, 1, 1, 4]), "m": [2, 1, 1, 4]}
        inputs = {name: kind for name, kind in inputs.items() if name in used}
        outputs = f"{self.nodes[-1].output[0]} {self.extra_outputs}"
        model = make_model(self.nodes, inputs, outputs, self.constants, self.opset)
        model.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in self.recorded.items()
        )
        return scan(model, folder, self.feeds(np.random.default_rng(0), 0.0, inputs))

    def feeds(self, rng: np.random.Generator, share: float, used: Any) -> dict[str, np.ndarray]:
        """Scores of at most `x`; a share of switches on, whole rows among them when it is not 0."""
        whole = rng.random((*SHAPE[:3], 1)) < share / 2
        feeds = {
            "x": (self.x * rng.uniform(-1, 1, SHAPE)).astype(np.float32),
            "c": (rng.random(SHAPE) < share) | whole,
            "d": (rng.random((2, 1, 1, 4)) < share) | (rng.random((2, 1, 1, 1)) < share / 2),
            "m": ((rng.random((2, 1, 1, 4)) < share) | (rng.random((2, 1, 1, 1)) < share / 2)).astype(
                np.float32
            ),
        }
        return {name: value for name, value in feeds.items() if name in used}


def verdicts(graph: Graph, ranges: RangeTable, **policy: Any) -> dict[str, MaskVerdict]:
    found = judge_masks(graph, ranges, PlanPolicy(**policy))
    return {verdict.origin.tensor: verdict for verdict in found}


def clamped_model(graph: Graph, clamped: list[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in clamped:
            value = np.clip(onnx.numpy_helper.to_array(tensor), -MASK_MAGNITUDE, MASK_MAGNITUDE)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    for made in model.graph.node:
        if made.op_type == "ConstantOfShape" and made.output[0] in clamped:
            clip_fill(made, MASK_MAGNITUDE)
    return model


def assert_clamping_changes_nothing(attention: Attention, graph: Graph, found: list[MaskVerdict]) -> None:
    """Bit-equal outputs on unseen switches, whole masked rows included, and finite FP16 on the way.

    Where only the data of the scan vouch for the rows, their switches are all off.
    """
    clamps = [verdict.clamp for verdict in found if verdict.clamp is not None]
    covers = sorted({name for clamp in clamps for name in clamp.covers})
    shares = (0.0,) if any("the calibration data" in v.reason for v in found) else (0.0, 0.3, 0.8, 1.0)
    clamped = clamped_model(graph, [clamp.tensor for clamp in clamps])
    mark_outputs(clamped, covers)
    before, after = open_session(graph.path, graph.folder), open_session(clamped, graph.folder)
    rng = np.random.default_rng(1)
    used = [spec.name for spec in graph.inputs]
    for share in shares:
        batch = Batch("b", attention.feeds(rng, share, used))
        expected = run_session(before, list(graph.outputs), batch)
        found_values = run_session(after, list(graph.outputs), batch)
        for one, other in zip(expected, found_values, strict=True):
            assert one.tobytes() == other.tobytes()
        if len(clamps) == len(found):
            inside = run_session(after, covers, batch)
            assert all(np.abs(value).max() < 65504 for value in inside)


SOFTMAX = node("Softmax", "s", "y", axis=-1)
PROVED: dict[str, Attention] = {
    "Where by data": Attention([node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(MIN)}),
    "Where, the other way round": Attention([node("Where", "c x k", "s"), SOFTMAX], {"k": scalar(-1e9)}),
    "Where, any axis": Attention(
        [node("Where", "c k x", "s"), node("Softmax", "s", "y", axis=1)], {"k": scalar(MIN)}
    ),
    "Where, all axes of opset 11": Attention(
        [node("Where", "c k x", "s"), node("Softmax", "s", "y", axis=1)], {"k": scalar(MIN)}, opset=11
    ),
    "Where, then moved": Attention(
        [
            node("Where", "c k x", "w"),
            node("Reshape", "w shape", "r"),
            node("Transpose", "r", "t"),
            node("Identity", "t", "s"),
            SOFTMAX,
        ],
        {"k": scalar(MIN), "shape": ints(6, 16)},
    ),
    "Where, a mask that is expanded first": Attention(
        [
            node("Unsqueeze", "k axes", "k1"),
            node("Expand", "k1 shape", "k2"),
            node("Where", "c k2 x", "s"),
            SOFTMAX,
        ],
        {"k": scalar(MIN), "axes": ints(0), "shape": ints(4)},
    ),
    "two of one value replace": Attention(
        [node("Where", "c k x", "w"), node("Where", "d k2 w", "s"), SOFTMAX],
        {"k": scalar(MIN), "k2": scalar(MIN)},
    ),
    "scores beside masked ones": Attention(
        [node("Where", "c k x", "w"), node("Concat", "w x", "s", axis=-1), SOFTMAX], {"k": scalar(MIN)}
    ),
    "causal, added": Attention(
        [node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, MIN).reshape(1, 1, 4, 4)}
    ),
    "causal of -inf, added": Attention(
        [node("Add", "k x", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, -math.inf)}
    ),
    "causal of -1e9 with biases, added": Attention(
        [node("Add", "x k", "s"), SOFTMAX], {"k": np.where(CAUSAL, -1e9, -3.0).astype(np.float32)}
    ),
    **{
        f"causal of {value:g}, added": Attention(
            [node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, value)}
        )
        for value in (-65504, -65519, -30000)
    },
    "-65504 in place of scores by data": Attention(
        [node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(-65504)}
    ),
    "causal of -1e9 and -30000, added": Attention(
        [node("Add", "x k", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, -1e9) + pattern_of(CAUSAL.T & CAUSAL[::-1], -30000)},
    ),
    "causal, made of constants in the graph": Attention(
        [
            node("Expand", "k shape", "full"),
            node("Trilu", "full one", "tri", upper=1),
            node("Unsqueeze", "tri axes", "mask"),
            node("Add", "x mask", "s"),
            SOFTMAX,
        ],
        {"k": scalar(MIN), "shape": ints(4, 4), "one": np.asarray(1, np.int64), "axes": ints(0, 1)},
    ),
    "causal of -inf, replacing by a constant condition": Attention(
        [node("Where", "t k x", "s"), SOFTMAX], {"k": scalar(-math.inf), "t": CAUSAL}
    ),
    "0 or -inf by a constant condition, added": Attention(
        [node("Where", "t k zero", "mask"), node("Add", "x mask", "s"), SOFTMAX],
        {"k": scalar(-math.inf), "t": CAUSAL, "zero": scalar(0)},
    ),
    "causal, added, then a bias": Attention(
        [node("Add", "x k", "a"), node("Add", "a b", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, MIN), "b": np.linspace(-9, 9, 48, dtype=np.float32).reshape(3, 4, 4)},
    ),
    "causal, added, then a Reshape that keeps rows": Attention(
        [node("Add", "x k", "a"), node("Reshape", "a shape", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, MIN), "shape": ints(6, 4, 4)},
    ),
    "two causal masks, added up": Attention(
        [node("Add", "x k", "a"), node("Add", "a k2", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, MIN), "k2": pattern_of(CAUSAL, -1e9)},
    ),
    "opset 11 softmax over several axes": Attention(
        [node("Add", "x k", "s"), node("Softmax", "s", "y", axis=2)], {"k": pattern_of(CAUSAL, MIN)}, opset=11
    ),
    "an axis counted from the front": Attention(
        [node("Add", "x k", "s"), node("Softmax", "s", "y", axis=3)], {"k": pattern_of(CAUSAL, MIN)}
    ),
    "another axis than the last": Attention(
        [node("Add", "x k", "s"), node("Softmax", "s", "y", axis=-2)], {"k": pattern_of(CAUSAL.T, -math.inf)}
    ),
    "two joined replace": Attention(
        [node("Concat", "k k2", "mask", axis=0), node("Where", "c mask x", "s"), SOFTMAX],
        {"k": floats(MIN), "k2": floats(MIN, MIN, MIN)},
    ),
    "joined with zeros, added": Attention(
        [node("Concat", "zeros k", "mask", axis=0), node("Add", "x mask", "s"), SOFTMAX],
        {"k": floats(MIN), "zeros": floats(0, 0, 0)},
    ),
    "causal by a factor of 0 and 1, added": Attention(
        [node("Mul", "k t", "mask"), node("Add", "x mask", "s"), SOFTMAX],
        {"k": scalar(MIN), "t": CAUSAL.astype(np.float32)},
    ),
}
TRIANGLE = {"square": ints(4, 4), "one": np.asarray(1, np.int64)}
INFINITE_TRIANGLE = [
    node("ConstantOfShape", "square", "full", value=onnx.numpy_helper.from_array(floats(-math.inf))),
    node("Trilu", "full one", "tri", upper=1),
]
INFINITE: dict[str, Attention] = {
    "times 1": Attention(
        [
            node("Where", "d k zero", "w"),
            node("Mul", "w one", "mask"),
            node("Add", "x mask", "s"),
            SOFTMAX,
        ],
        {"k": scalar(-math.inf), "zero": scalar(0), "one": scalar(1)},
    ),
    "in place of scores by data": Attention([node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(-math.inf)}),
    "0 or -inf by data, added": Attention(
        [node("Where", "d k zero", "w"), node("Add", "x w", "s"), SOFTMAX],
        {"k": scalar(-math.inf), "zero": scalar(0)},
    ),
    "a row is masked as a whole": Attention(
        [node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(ROW_GONE, -math.inf)}
    ),
    "by data onto causal": Attention(
        [node("Where", "d k zero", "w"), node("Add", "k2 w", "mask"), node("Add", "x mask", "s"), SOFTMAX],
        {"k": scalar(-math.inf), "k2": pattern_of(CAUSAL, -math.inf), "zero": scalar(0)},
    ),
    "by data here first, and causal there": Attention(
        [
            *(node("Where", "c k x", "s"), SOFTMAX),
            *(node("Where", "t k x", "a"), node("Where", "t k2 a", "b"), node("Softmax", "b", "z")),
        ],
        {"k": scalar(-math.inf), "k2": scalar(-math.inf), "t": CAUSAL},
        extra_outputs="y",
    ),
    "by data here and causal there": Attention(
        [
            *(node("Where", "t k x", "a"), node("Where", "t k2 a", "b"), node("Softmax", "b", "z")),
            *(node("Where", "c k x", "s"), SOFTMAX),
        ],
        {"k": scalar(-math.inf), "k2": scalar(-math.inf), "t": CAUSAL},
        extra_outputs="z",
    ),
    "a triangle of a ConstantOfShape": Attention(
        [*INFINITE_TRIANGLE, node("Add", "x tri", "s"), SOFTMAX], TRIANGLE
    ),
    "a triangle of a ConstantOfShape, and by data": Attention(
        [*INFINITE_TRIANGLE, node("Add", "x tri", "a"), node("Where", "c k a", "s"), SOFTMAX],
        {"k": scalar(-math.inf), **TRIANGLE},
    ),
}
"""Masks of -inf of which not constants show that every row keeps an element."""
LEFT: dict[str, Attention] = {
    "causal, added": Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, -10000)}),
    "causal and a bias, added": Attention(
        [node("Add", "x k", "s"), SOFTMAX], {"k": np.where(CAUSAL, -20000, -4000).astype(np.float32)}
    ),
    "a bias, added to the mask before": Attention(
        [node("Add", "k b", "mask"), node("Add", "x mask", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, -10000), "b": scalar(4000)},
    ),
    "in place of scores by data": Attention(
        [node("Where", "c k x", "w"), node("Add", "w b", "s"), SOFTMAX],
        {"k": scalar(-10000), "b": floats(0, -5, 5, 1)},
    ),
    "computed by data, added": Attention(
        [
            node("Sub", "one m", "off"),
            node("Sub", "one off", "on"),
            node("Mul", "on k", "w"),
            node("Add", "x w", "s"),
            SOFTMAX,
        ],
        {"k": scalar(-10000), "one": scalar(1)},
    ),
    "computed by data onto causal": Attention(
        [node("Mul", "m k", "w"), node("Add", "x k2", "a"), node("Add", "a w", "s"), SOFTMAX],
        {"k": scalar(-10000), "k2": pattern_of(CAUSAL, -12000)},
    ),
}
"""Masks that FP16 holds. Where the data decide, the data of the scan hide nothing."""
UNPROVED: dict[str, tuple[Attention, str]] = {
    "a row is masked as a whole": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(ROW_GONE, -10000)}),
        "masks a row as a whole",
    ),
    "a row of -65504 is masked as a whole": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(ROW_GONE, -65504)}),
        "masks a row as a whole",
    ),
    "a bias hides that a row is masked as a whole": (
        Attention(
            [node("Add", "k b", "mask"), node("Add", "x mask", "s"), SOFTMAX],
            {"k": pattern_of(ROW_GONE, -10000), "b": scalar(4000)},
        ),
        "masks a row as a whole",
    ),
    "the data mask a row as a whole": (
        Attention(
            [node("Sub", "one m", "on"), node("Mul", "on k", "w"), node("Add", "x w", "s"), SOFTMAX],
            {"k": scalar(-10000), "one": scalar(1)},
        ),
        "the calibration data mask a row as a whole",
    ),
    "scores that come near it": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, -10000)}, x=4800),
        "so near to a mask of -10000 that it may not vanish in Softmax",
    ),
    "one out of range by data beside it": (
        Attention(
            [node("Mul", "m k2", "w"), node("Add", "x k", "a"), node("Add", "a w", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, -10000), "k2": scalar(MIN)},
        ),
        "not proved to leave an element of every row",
    ),
}
REFUSED: dict[str, tuple[Attention, str]] = {
    "added, by data": (
        Attention([node("Mul", "m k", "w"), node("Add", "x w", "s"), SOFTMAX], {"k": scalar(MIN)}),
        "added to the scores, and is not proved to leave an element of every row",
    ),
    "0 or the constant by data, added": (
        Attention(
            [node("Where", "d k zero", "w"), node("Add", "x w", "s"), SOFTMAX],
            {"k": scalar(MIN), "zero": scalar(0)},
        ),
        "added to the scores, and is not proved to leave an element of every row",
    ),
    "-inf by data beside a finite one": (
        Attention(
            [node("Add", "x k", "a"), node("Where", "d k2 a", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "k2": scalar(-math.inf)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "-inf by data, which meets elsewhere what is clamped": (
        Attention(
            [
                *(node("Where", "t k2 x", "a"), node("Where", "t k a", "b"), node("Softmax", "b", "z")),
                *(node("Where", "c k2 x", "s"), SOFTMAX),
            ],
            {"k": scalar(MIN), "k2": scalar(-math.inf), "t": CAUSAL},
            extra_outputs="z",
        ),
        "it meets a mask of -inf that is left as it is, and one that is clamped",
    ),
    "beside -inf of a ConstantOfShape, by data": (
        Attention(
            [
                *INFINITE_TRIANGLE,
                node("Add", "x tri", "a"),
                node("Where", "d k zero", "w"),
                node("Add", "a w", "s"),
                SOFTMAX,
            ],
            {"k": scalar(MIN), "zero": scalar(0), **TRIANGLE},
        ),
        "added to the scores, and is not proved to leave an element of every row",
    ),
    "a row is masked as a whole": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(ROW_GONE, MIN)}),
        "masks a row as a whole",
    ),
    "rows along another axis": (
        Attention(
            [node("Add", "x k", "s"), node("Softmax", "s", "y", axis=-2)], {"k": pattern_of(ROW_GONE.T, MIN)}
        ),
        "masks a row as a whole",
    ),
    "one number for each row": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL[:, 1:2], MIN)}),
        "masks a row as a whole",
    ),
    "one number": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": scalar(MIN)}),
        "masks a row as a whole",
    ),
    "causal, then a Reshape that breaks rows": (
        Attention(
            [node("Add", "x k", "a"), node("Reshape", "a shape", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "shape": ints(48, 2)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "causal, then a Reshape that breaks rows, of which the model records whole ones": (
        Attention(
            [node("Add", "x k", "a"), node("Reshape", "a shape", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "shape": ints(48, 2)},
            recorded={"s": [24, 4]},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "causal, then a Reshape that breaks rows, of shapes that are not known before or behind": (
        Attention(
            [
                node("NonZero", "dims", "places"),
                node("Gather", "dims places", "chosen"),
                node("Reshape", "chosen flat", "whole"),
                node("Gather", "halves places", "split"),
                node("Reshape", "split flat", "parts"),
                node("Reshape", "x whole", "r"),
                node("Add", "r k", "a"),
                node("Reshape", "a parts", "s"),
                SOFTMAX,
            ],
            {
                "k": pattern_of(CAUSAL, MIN),
                "dims": ints(*SHAPE),
                "halves": ints(2, 3, 8, 2),
                "flat": ints(-1),
            },
        ),
        "added to the scores, and is not proved to leave",
    ),
    "rows along an axis that is the last one by the recorded shape": (
        Attention(
            [node("Add", "x k", "s"), node("Softmax", "s", "y", axis=1)],
            {"k": pattern_of(CAUSAL, MIN)},
            recorded={"s": [24, 4]},
        ),
        "masks a row as a whole",
    ),
    "causal, then a Transpose": (
        Attention(
            [node("Add", "x k", "a"), node("Transpose", "a", "s", perm=[0, 1, 3, 2]), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "a row is masked as a whole, which a bias hides": (
        Attention(
            [node("Add", "k b", "mask"), node("Add", "x mask", "s"), SOFTMAX],
            {"k": pattern_of(ROW_GONE, -65520), "b": scalar(4)},
        ),
        "masks a row as a whole",
    ),
    "two masks that leave nothing together": (
        Attention(
            [node("Add", "x k", "a"), node("Add", "a k2", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "k2": pattern_of(CAUSAL.T | np.eye(4, dtype=bool), MIN)},
        ),
        "masks a row as a whole",
    ),
    "two that leave nothing together where a Reshape lays the rows of one upon others": (
        Attention(
            [
                node("Add", "x k", "a"),
                node("Reshape", "a shape", "b"),
                node("Add", "b k2", "s"),
                SOFTMAX,
            ],
            {
                "k": pattern_of(FIRST_HALF, MIN),
                "k2": pattern_of(np.roll(FIRST_HALF, (1, 2), (0, 2)), MIN),
                "shape": ints(4, 3, 2, 4),
            },
        ),
        "masks a row as a whole",
    ),
    "causal, and another by data": (
        Attention(
            [node("Add", "x k", "a"), node("Where", "d k2 a", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "k2": scalar(MIN)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "scores that can carry what no sample showed": (
        Attention(
            [
                node("Cast", "d", "on", to=TensorProto.INT64),
                node("Mul", "on large", "i"),
                node("Cast", "i", "f", to=TensorProto.FLOAT),
                node("Add", "x f", "a"),
                node("Add", "a k", "s"),
                SOFTMAX,
            ],
            {"k": pattern_of(CAUSAL, MIN), "large": np.asarray(-(10**9), np.int64)},
        ),
        "a, which it meets, can hold a constant out of range as well",
    ),
    "different values by data": (
        Attention(
            [node("Where", "c k x", "w"), node("Where", "d k2 w", "s"), SOFTMAX],
            {"k": scalar(MIN), "k2": scalar(-1e9)},
        ),
        "masks of different values meet",
    ),
    "different values in one": (
        Attention(
            [node("Where", "c k x", "s"), SOFTMAX],
            {"k": np.asarray([MIN, -1e9, MIN, -1e9], np.float32)},
        ),
        "masks of different values meet",
    ),
    "replaced, then a bias": (
        Attention(
            [node("Where", "c k x", "w"), node("Add", "w b", "s"), SOFTMAX],
            {"k": scalar(MIN), "b": np.arange(4, dtype=np.float32)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "more than two added up": (
        Attention(
            [node("Add", "x k", "a"), node("Add", "a k", "b"), node("Add", "b k", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN)},
        ),
        "more than 2 masks are added up",
    ),
    "large scores": (
        Attention([node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(MIN)}, x=20000),
        "x, which it meets, has max |x|",
    ),
    "large biases": (
        Attention(
            [node("Add", "x k", "a"), node("Add", "a b", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "b": scalar(9950)},
        ),
        "the scores may reach",
    ),
    "an element neither masked nor a score": (
        Attention([node("Add", "x k", "s"), SOFTMAX], {"k": np.where(CAUSAL, MIN, 30000).astype(np.float32)}),
        "it holds 30000 as well",
    ),
    "it reaches an output": (
        Attention([node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(MIN)}, extra_outputs="s"),
        "it reaches the output s",
    ),
    "something else reads it": (
        Attention([node("Where", "c k x", "s"), SOFTMAX, node("Max", "x k", "z")], {"k": scalar(MIN)}),
        "Max Max_z reads it",
    ),
    "something else reads the scores": (
        Attention([node("Where", "c k x", "s"), SOFTMAX, node("ReduceSum", "s", "z")], {"k": scalar(MIN)}),
        "ReduceSum ReduceSum_z reads it",
    ),
    "LogSoftmax": (
        Attention([node("Where", "c k x", "s"), node("LogSoftmax", "s", "y")], {"k": scalar(MIN)}),
        "LogSoftmax LogSoftmax_y reads it",
    ),
    "no Softmax": (
        Attention([node("Where", "c k x", "w"), node("Sigmoid", "w", "y")], {"k": scalar(MIN)}),
        "Sigmoid Sigmoid_y reads it",
    ),
    "scaled": (
        Attention(
            [node("Where", "c k x", "w"), node("Mul", "w half", "s"), SOFTMAX],
            {"k": scalar(MIN), "half": scalar(0.5)},
        ),
        "Mul Mul_s scales it",
    ),
    "scaled by an input that is no switch": (
        Attention([node("Mul", "x k", "w"), node("Where", "c w x", "s"), SOFTMAX], {"k": scalar(MIN)}),
        "Mul Mul_w scales it",
    ),
    **{
        f"times {factor:g}": (
            Attention(
                [node("Mul", "k f", "w"), node("Add", "x w", "s"), SOFTMAX],
                {"k": pattern_of(CAUSAL, MIN), "f": floats(factor)},
            ),
            "Mul Mul_w scales it by other numbers than 0 and 1",
        )
        for factor in (0.5, 1.5, math.nan)
    },
    "times an input that was 1": (
        Attention(
            [node("Sub", "one m", "f"), node("Mul", "k f", "w"), node("Add", "x w", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, MIN), "one": scalar(1)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    **{
        f"causal by a factor of 0 and {factor:g}": (
            Attention(
                [node("Mul", "k t", "w"), node("Add", "x w", "s"), SOFTMAX],
                {"k": scalar(MIN), "t": np.where(CAUSAL, np.float32(factor), np.float32(0))},
            ),
            "Mul Mul_w scales it by other numbers than 0 and 1",
        )
        for factor in (0.001, -1, 2)
    },
    "switched by what was NaN": (
        Attention(
            [
                node("Add", "m gone", "switch"),
                node("Mul", "switch k", "w"),
                node("Add", "x w", "s"),
                SOFTMAX,
            ],
            {"k": scalar(MIN), "gone": floats(0, math.nan, 0, 0)},
        ),
        "Mul Mul_w scales it by other numbers than 0 and 1",
    ),
    "switched by what may be larger than any sample showed": (
        Attention(
            [
                node("Where", "d large m", "switch"),
                node("Mul", "switch k", "w"),
                node("Add", "x w", "s"),
                SOFTMAX,
            ],
            {"k": scalar(MIN), "large": scalar(1e9)},
        ),
        "Mul Mul_w scales it by other numbers than 0 and 1",
    ),
    "joined with scores": (
        Attention(
            [node("Concat", "x k", "s", axis=-1), SOFTMAX],
            {"k": np.full((*SHAPE[:3], 1), MIN, np.float32)},
        ),
        "Concat Concat_s joins it with what is no mask",
    ),
    "by data the constant, or it and a bias": (
        Attention(
            [
                node("Add", "k b", "w"),
                node("Where", "d k w", "mask"),
                node("Where", "c mask x", "s"),
                SOFTMAX,
            ],
            {"k": scalar(MIN), "b": np.arange(4, dtype=np.float32)},
        ),
        "added to the scores, and is not proved to leave",
    ),
    "scores that were NaN": (
        Attention(
            [node("Add", "x gone", "a"), node("Where", "c k a", "s"), SOFTMAX],
            {"k": scalar(MIN), "gone": floats(0, math.nan, 0, 0)},
        ),
        "a, which it meets, has max |x|",
    ),
    "half precision on the way": (
        Attention(
            [
                node("Where", "c k x", "w"),
                node("Cast", "w", "h", to=TensorProto.FLOAT16),
                node("Cast", "h", "s", to=TensorProto.FLOAT),
                SOFTMAX,
            ],
            {"k": scalar(MIN)},
        ),
        "Cast Cast_h makes something else of it",
    ),
    "float64": (
        Attention(
            [
                node("Cast", "k", "k32", to=TensorProto.FLOAT),
                node("Where", "c k32 x", "s"),
                SOFTMAX,
            ],
            {"k": np.asarray(-1e300)},
        ),
        "it is no FP32 initializer",
    ),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_is_proved_is_clamped_and_changes_no_bit(name: str, tmp_path: Path) -> None:
    graph, ranges = PROVED[name].scan(tmp_path)
    found = verdicts(graph, ranges)
    assert set(found) == {key for key in PROVED[name].constants if key in ("k", "k2")}
    assert all(verdict.clamp is not None for verdict in found.values()), found
    assert all("clamped to -25000" in verdict.reason for verdict in found.values())
    assert_clamping_changes_nothing(PROVED[name], graph, list(found.values()))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    attention, reason = REFUSED[name]
    graph, ranges = attention.scan(tmp_path)
    found = verdicts(graph, ranges)
    assert found
    assert all(verdict.clamp is None for verdict in found.values())
    refusals = ("not clamped as a mask: ", "not proved as a mask: ")  # the latter of what is fed
    is_fed = {key: key in {spec.name for spec in graph.inputs} for key in found}
    assert all(verdict.reason.startswith(refusals[is_fed[key]]) for key, verdict in found.items())
    assert reason in found["k"].reason


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def scores_of(graph: Graph, attention: Attention, share: float) -> np.ndarray:
    model = load_graph(graph.path).model
    mark_outputs(model, ["s"])
    feeds = attention.feeds(np.random.default_rng(1), share, [spec.name for spec in graph.inputs])
    return run_session(open_session(model, graph.folder), ["s"], Batch("b", feeds))[0].astype(np.float64)


@pytest.mark.parametrize("name", LEFT)
def test_a_mask_that_fp16_holds_is_left_and_hides_there_too(name: str, tmp_path: Path) -> None:
    """Rounded to FP16, what is masked is zero behind Softmax, wherever a row has an element that is not."""
    graph, ranges = LEFT[name].scan(tmp_path)
    found = verdicts(graph, ranges)
    assert set(found) == {key for key in LEFT[name].constants if key in ("k", "k2")}
    assert all(
        verdict.clamp is None and verdict.is_left and "s" in verdict.held for verdict in found.values()
    ), found
    assert "is left as it is: Softmax gives 0 either way" in found["k"].reason
    scores = scores_of(graph, LEFT[name], 0.3)
    rows = scores.max(axis=-1, keepdims=True) > -5000
    masked = rows & (scores < -5000)
    assert masked.any()
    assert not softmax(scores)[masked].any()
    assert not softmax(scores.astype(np.float16).astype(np.float64))[masked].any()
    assert np.isfinite(scores.astype(np.float16)).all()


@pytest.mark.parametrize("name", INFINITE)
def test_a_mask_of_infinity_is_left_and_is_the_same_in_fp16(name: str, tmp_path: Path) -> None:
    """Rounded to FP16, the scores have -inf in the same places, and so have the probabilities zero, or NaN in the whole row."""
    graph, ranges = INFINITE[name].scan(tmp_path)
    found = verdicts(graph, ranges)
    assert set(found) == {
        key for key in ("k", "k2", "full") if key in (*INFINITE[name].constants, *graph.dtypes)
    }
    assert all(verdict.clamp is None and verdict.is_left for verdict in found.values()), found
    assert all("is left as it is: FP16 holds -inf too" in verdict.reason for verdict in found.values())
    assert all("s" in found[key].held for key in found if key != "k2" or "z" not in graph.outputs)
    scores = scores_of(graph, INFINITE[name], 0.3)
    whole = np.isneginf(scores).all(axis=-1)
    with np.errstate(invalid="ignore"):
        right, rounded = (softmax(some) for some in (scores, scores.astype(np.float16).astype(np.float64)))
    assert np.isneginf(scores).any()
    assert np.array_equal(np.isnan(right), np.isnan(rounded))
    assert np.array_equal(np.isnan(right).all(axis=-1), whole)
    assert np.array_equal(right == 0, rounded == 0)


@pytest.mark.parametrize("name", INFINITE)
def test_a_mask_of_infinity_pins_nothing(name: str, tmp_path: Path) -> None:
    """Nor does the NaN of a row that is masked as a whole, which FP16 has as well."""
    graph, ranges = INFINITE[name].scan(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == ()
    assert (name == "a row is masked as a whole") == any(seen.nan_count for seen in ranges.ranges)
    assert {finding.action for finding in plan.considered} == {"none"}
    assert plan.clamps == ()


FED_ADDED = [node("Add", "x m", "s"), SOFTMAX]
FED: dict[str, tuple[Attention, float, str]] = {
    "-inf": (Attention(FED_ADDED, {}), -math.inf, "left as it is: FP16 holds -inf too"),
    "-10000": (
        Attention(FED_ADDED, {}),
        -10000,
        "left as it is: Softmax gives 0 either way, and the calibration",
    ),
    "-65504": (
        Attention(FED_ADDED, {}),
        -65504,
        "left as it is: Softmax gives 0 either way, and the calibration",
    ),
    "-65520": (
        Attention(FED_ADDED, {}),
        -65520,
        "not proved as a mask: m is no constant that could be clamped",
    ),
    "the lowest": (
        Attention(FED_ADDED, {}),
        MIN,
        "not proved as a mask: m is no constant that could be clamped",
    ),
    "beside a causal one": (
        Attention(
            [node("Add", "k m", "mask"), node("Add", "x mask", "s"), SOFTMAX],
            {"k": pattern_of(CAUSAL, -12000)},
        ),
        -10000,
        "left as it is: Softmax gives 0 either way, and the calibration",
    ),
    "beside a clamped one": (
        Attention(
            [node("Add", "k m", "mask"), node("Add", "x mask", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, MIN)}
        ),
        -10000,
        "not proved as a mask: m is no constant",
    ),
    "read by another": (
        Attention([node("Sigmoid", "m", "z"), *FED_ADDED], {}, extra_outputs="z"),
        -math.inf,
        "not proved as a mask: Sigmoid Sigmoid_z reads it",
    ),
}
"""Masks m that are fed: 0, and a number."""


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("whole", [False, True])
def test_a_mask_that_is_fed(name: str, whole: bool, tmp_path: Path) -> None:
    attention, value, reason = FED[name]
    fed = np.where(np.arange(4) >= (0 if whole else 2), value, 0).astype(np.float32) * np.ones((2, 1, 1, 1))
    graph, _ = attention.scan(tmp_path)
    feeds = attention.feeds(np.random.default_rng(0), 0.0, [spec.name for spec in graph.inputs])
    feeds["m"] = fed.astype(np.float32)
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)))
    verdict = verdicts(graph, ranges)["m"]
    if whole and math.isfinite(value) and "left" in reason:
        reason = "not proved as a mask: the calibration data mask a row as a whole"
    assert reason in verdict.reason
    assert verdict.clamp is None
    assert verdict.is_left == reason.startswith("left")
    assert (", which is all that was fed there but 0," in verdict.reason) == verdict.is_left
    pins = plan_precision(graph, ranges, PlanPolicy()).pins
    assert bool(pins) == (not verdict.is_left or whole)


@pytest.mark.parametrize("other", [-9000.0, 1.0, -20000.0, 10000.0, math.nan])
def test_what_is_fed_besides_makes_it_no_mask(other: float, tmp_path: Path) -> None:
    attention = Attention(FED_ADDED, {})
    graph, _ = attention.scan(tmp_path)
    feeds = attention.feeds(np.random.default_rng(0), 0.0, ["x", "m"])
    feeds["m"][0, 0, 0, 0], feeds["m"][0, 0, 0, 1] = -10000, other
    assert verdicts(graph, collect_ranges(graph, InMemoryCalibration((feeds,)))) == {}


def test_scores_over_the_threshold_under_infinity_are_not_left(tmp_path: Path) -> None:
    attention = Attention([node("Where", "c k x", "s"), SOFTMAX], {"k": scalar(-math.inf)}, x=3000)
    assert verdicts(*attention.scan(tmp_path))["k"].is_left
    found = verdicts(*attention.scan(tmp_path), threshold=2000)["k"]
    assert "over the threshold by themselves" in found.reason


def test_the_users_word_clamps_infinity_where_a_constant_holds_it(tmp_path: Path) -> None:
    by_data = verdicts(*INFINITE["0 or -inf by data, added"].scan(tmp_path), masks="clamp")["k"]
    assert by_data.clamp is not None
    made = verdicts(*INFINITE["a triangle of a ConstantOfShape"].scan(tmp_path), masks="clamp")["full"]
    assert made.clamp is None
    assert made.is_left
    assert "FP16 holds -inf too" in made.reason


@pytest.mark.parametrize("name", UNPROVED)
def test_a_mask_that_fp16_holds_is_not_left_where_it_is_not_proved(name: str, tmp_path: Path) -> None:
    attention, reason = UNPROVED[name]
    graph, ranges = attention.scan(tmp_path)
    found = verdicts(graph, ranges)
    assert all(verdict.clamp is None and not verdict.is_left for verdict in found.values())
    assert "as a mask: " in found["k"].reason
    assert reason in found["k"].reason


def test_a_row_that_is_masked_as_a_whole_is_another_in_fp16(tmp_path: Path) -> None:
    """Why the rows matter where FP16 holds the mask: its step at -10000 is 8, and of scores within it nothing is left."""
    attention, _ = UNPROVED["the data mask a row as a whole"]
    attention.x = 3.0
    graph, _ = attention.scan(tmp_path)
    scores = scores_of(graph, attention, 0.0)
    assert (scores < -9000).all()
    right, rounded = (softmax(some) for some in (scores, scores.astype(np.float16).astype(np.float64)))
    assert np.abs(right - rounded).max() > 0.3


@pytest.mark.parametrize(
    ("threshold", "value", "x", "is_proved"),
    [(5000, -5000, 100, True), (5000, -5000, 3000, False), (20000, -20000, 100, True), (5, -1000, 4, True)],
)
def test_a_threshold_of_the_users(
    threshold: float, value: float, x: float, is_proved: bool, tmp_path: Path
) -> None:
    attention = Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, value)}, x=x)
    found = verdicts(*attention.scan(tmp_path), threshold=threshold)["k"]
    assert found.is_left == is_proved, found


@pytest.mark.parametrize(("value", "is_judged"), [(-1000, True), (-999, False), (-6, False)])
def test_what_is_not_far_below_zero_is_a_bias_under_any_threshold(
    value: float, is_judged: bool, tmp_path: Path
) -> None:
    attention = Attention([node("Add", "x k", "s"), SOFTMAX], {"k": pattern_of(CAUSAL, value)}, x=4)
    assert bool(verdicts(*attention.scan(tmp_path), threshold=5)) == is_judged


def test_scores_over_the_threshold_with_their_bias_are_not_left(tmp_path: Path) -> None:
    nodes = [node("Add", "x k", "a"), node("Add", "a b", "s"), SOFTMAX]
    attention = Attention(nodes, {"k": pattern_of(CAUSAL, -9000), "b": scalar(1500)}, x=1000)
    found = verdicts(*attention.scan(tmp_path), threshold=2000)["k"]
    assert "the scores may reach 24" in found.reason
    assert "over the threshold by themselves" in found.reason


def test_a_weight_is_no_mask_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x k", "s"), SOFTMAX]
    graph, ranges = Attention(nodes, {"k": np.full((4, 4), -12000, np.float32)}).scan(tmp_path)
    assert verdicts(graph, ranges) == {}


def test_covers_are_the_tensors_that_differ_by_design(tmp_path: Path) -> None:
    attention = PROVED["Where, a mask that is expanded first"]
    graph, ranges = attention.scan(tmp_path)
    clamp = verdicts(graph, ranges)["k"].clamp
    assert clamp is not None
    assert (clamp.magnitude, clamp.covers) == (25000, ("k1", "k2", "s"))
    model = clamped_model(graph, ["k"])
    names = [name for n in graph.nodes for name in n.writes]
    mark_outputs(model, names)
    plain = load_graph(graph.path).model
    mark_outputs(plain, names)
    batch = Batch("b", attention.feeds(np.random.default_rng(0), 0.5, ["x", "c"]))
    runs = [run_session(open_session(m, graph.folder), names, batch) for m in (plain, model)]
    differ = {n for n, one, other in zip(names, *runs, strict=True) if not np.array_equal(one, other)}
    assert differ == set(clamp.covers)


def test_one_refused_mask_refuses_those_it_meets(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c k x", "w"),
        node("Where", "d k2 w", "s"),
        SOFTMAX,
        node("Sigmoid", "k2", "other"),
    ]
    graph, ranges = Attention(nodes, {"k": scalar(MIN), "k2": scalar(MIN)}).scan(tmp_path)
    found = verdicts(graph, ranges)
    assert "Sigmoid Sigmoid_other reads it" in found["k2"].reason
    assert found["k"].reason == "not clamped as a mask: k2 meets it at Softmax_y and is not clamped"


def test_the_users_word_clamps_what_is_not_proved(tmp_path: Path) -> None:
    graph, ranges = REFUSED["added, by data"][0].scan(tmp_path)
    found = verdicts(graph, ranges, masks="clamp")["k"]
    assert found.clamp is not None
    assert found.clamp.covers == ("s", "w")
    assert "you asked for it" in found.reason


@pytest.mark.parametrize(
    "name",
    [
        "it reaches an output",
        "LogSoftmax",
        "large scores",
        "more than two added up",
        "causal by a factor of 0 and 0.001",
        "switched by what was NaN",
        "switched by what may be larger than any sample showed",
        "joined with scores",
        "scores that were NaN",
    ],
)
def test_the_users_word_does_not_make_a_mask_of_what_is_none(name: str, tmp_path: Path) -> None:
    graph, ranges = REFUSED[name][0].scan(tmp_path)
    assert verdicts(graph, ranges, masks="clamp")["k"].clamp is None


def test_pin_judges_nothing(tmp_path: Path) -> None:
    graph, ranges = PROVED["Where by data"].scan(tmp_path)
    assert verdicts(graph, ranges, masks="pin") == {}


@pytest.mark.parametrize(
    "constant", [scalar(1e9), np.asarray([-1e9, 1e9], np.float32), np.asarray(-(10**9)), scalar(-9999)]
)
def test_what_is_not_negative_floats_over_the_threshold_is_not_judged(
    constant: np.ndarray, tmp_path: Path
) -> None:
    nodes = [node("Cast", "k", "k32", to=TensorProto.FLOAT), node("Add", "x k32", "s"), SOFTMAX]
    constant = np.resize(constant, 4).astype(constant.dtype)
    graph, ranges = Attention(nodes, {"k": constant}).scan(tmp_path)
    assert verdicts(graph, ranges) == {}


# ---------------------------------------------------------------- anything that is clamped is right


VALUES = st.sampled_from([MIN, MIN, -1e9, -65520.0, -math.inf, -65504.0, -30000.0, -10000.0])
MASKED = st.one_of(
    st.just(np.ones((), bool)),
    st.just(CAUSAL),
    st.lists(st.booleans(), min_size=16, max_size=16).map(lambda bits: np.asarray(bits).reshape(4, 4)),
    st.lists(st.booleans(), min_size=4, max_size=4).map(np.asarray),
    st.lists(st.booleans(), min_size=4, max_size=4).map(lambda bits: np.asarray(bits).reshape(4, 1)),
)
Step = Callable[[str, str, dict[str, np.ndarray]], list[onnx.NodeProto]]


def _lay(kind: str, value: float, masked: np.ndarray, number: int) -> Step:
    def lay(source: str, target: str, constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        k, t, w = f"k{number}", f"t{number}", f"w{number}"
        constants[k] = pattern_of(masked, value)
        if kind == "where by data":
            return [node("Where", f"{'cd'[number % 2]} {k} {source}", target)]
        if kind == "where by a constant":
            constants[t] = CAUSAL
            return [node("Where", f"{t} {k} {source}", target)]
        if kind == "scaled":
            return [node("Mul", f"m {k}", w), node("Add", f"{source} {w}", target)]
        return [node("Add", f"{source} {k}", target)]

    return lay


def _move(kind: str, number: int) -> Step:
    def move(source: str, target: str, constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
        constants.update(
            flat=ints(-1, 4), square=ints(2, 3, 4, 4), halves=ints(12, 8), bias=np.arange(4, dtype=np.float32)
        )
        if kind == "there and back":
            middle = f"r{number}"
            return [node("Reshape", f"{source} flat", middle), node("Reshape", f"{middle} square", target)]
        if kind == "transpose":
            return [node("Transpose", source, target, perm=[0, 1, 3, 2])]
        if kind == "broken":
            middle = f"r{number}"
            return [node("Reshape", f"{source} halves", middle), node("Reshape", f"{middle} square", target)]
        return [node("Add", f"{source} bias", target)]

    return move


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["where by data", "where by a constant", "scaled", "add", "add"]), VALUES, MASKED
        ),
        st.sampled_from(["there and back", "transpose", "broken", "bias"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.sampled_from([-1, -2, 1, 3]), st.sampled_from([11, 17]), st.booleans())
def test_no_clamp_ever_changes_an_output(steps: list[Any], axis: int, opset: int, is_extreme: bool) -> None:
    constants: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    source = "x"
    for number, step in enumerate(steps):
        make = _move(step, number) if isinstance(step, str) else _lay(*step, number)
        nodes += make(source, f"s{number}", constants)
        source = f"s{number}"
    nodes.append(node("Softmax", source, "y", axis=axis))
    attention = Attention(nodes, constants, opset, x=LIMIT - 12.0 if is_extreme else 5.0)
    with TemporaryDirectory() as folder:
        graph, ranges = attention.scan(Path(folder))
        found = list(judge_masks(graph, ranges, PlanPolicy()))
        clamped = [verdict for verdict in found if verdict.clamp is not None]
        event(f"{len(clamped)} of {len(found)} clamped")
        if clamped:
            assert_clamping_changes_nothing(attention, graph, found)


SIZES = {"two": ints(2), "end": ints(4), "k": np.asarray(1, np.int64)}


def _fill(value: float) -> list[onnx.NodeProto]:
    """A tensor full of the value, as high and as wide as the scores, whose sizes the data decide."""
    number = onnx.numpy_helper.from_array(floats(value))
    return [
        node("Shape", "x", "dims"),
        node("Slice", "dims two end", "square"),
        node("ConstantOfShape", "square", "full", value=number),
    ]


ADDED = [node("Add", "x tri", "s"), SOFTMAX]
FILLED: dict[str, Attention] = {
    **{
        f"a triangle of {value:g}": Attention(
            [*_fill(value), node("Trilu", "full k", "tri", upper=1), *ADDED], SIZES
        )
        for value in (MIN, -1e9, -65504)
    },
    "two diagonals further": Attention(
        [*_fill(MIN), node("Trilu", "full k", "tri"), *ADDED], SIZES | {"k": np.asarray(3, np.int64)}
    ),
    "the lower one without the diagonal, of sizes that follow": Attention(
        [*_fill(MIN), node("Trilu", "full k", "tri", upper=0), *ADDED],
        SIZES | {"k": np.asarray(-1, np.int64)},
    ),
    "expanded from one number": Attention(
        [
            *_fill(MIN)[:2],
            node("ConstantOfShape", "none", "full", value=onnx.numpy_helper.from_array(floats(MIN))),
            node("Expand", "full square", "wide"),
            node("Trilu", "wide k", "tri"),
            *ADDED,
        ],
        SIZES | {"none": ints()},
    ),
    "switched by a boolean, and moved": Attention(
        [
            *_fill(MIN),
            node("Trilu", "full k", "upper"),
            node("Cast", "d", "on", to=TensorProto.FLOAT),
            node("Mul", "upper on", "some"),
            node("Slice", "some zero end last", "tri"),
            *ADDED,
        ],
        SIZES | {"zero": ints(0), "last": ints(-1)},
    ),
    "onto a constant": Attention(
        [
            *_fill(MIN),
            node("Trilu", "full k", "tri"),
            node("Add", "x c1", "b"),
            node("Add", "b tri", "s"),
            SOFTMAX,
        ],
        SIZES | {"c1": np.linspace(-9, 9, 16, dtype=np.float32).reshape(4, 4)},
    ),
    "in place of scores by data": Attention([*_fill(MIN), node("Where", "c full x", "s"), SOFTMAX], SIZES),
}
KEPT_IN_FP32: dict[str, Attention] = {
    "with the diagonal": Attention(
        [*_fill(MIN), node("Trilu", "full k", "tri"), *ADDED], SIZES | {"k": np.asarray(0, np.int64)}
    ),
    "the lower one with the diagonal": Attention(
        [*_fill(MIN), node("Trilu", "full k", "tri", upper=0), *ADDED], SIZES | {"k": np.asarray(0, np.int64)}
    ),
    "rows along another axis": Attention(
        [*_fill(MIN), node("Trilu", "full k", "tri"), ADDED[0], node("Softmax", "s", "y", axis=-2)], SIZES
    ),
    "without the first column": Attention(
        [
            *_fill(MIN),
            node("Trilu", "full k", "upper"),
            node("Slice", "upper one two last", "tri"),
            *ADDED,
        ],
        SIZES | {"one": ints(1), "last": ints(-1)},
    ),
    "turned": Attention(
        [*_fill(MIN), node("Trilu", "full k", "t"), node("Transpose", "t", "tri", perm=[1, 0]), *ADDED], SIZES
    ),
    "switched by an input": Attention(
        [*_fill(MIN), node("Trilu", "full k", "t"), node("Mul", "t m", "tri"), *ADDED], SIZES
    ),
    "beside one that hides the first": Attention(
        [
            *_fill(MIN),
            node("Trilu", "full k", "tri"),
            node("Where", "d low x", "a"),
            node("Add", "a tri", "s"),
            SOFTMAX,
        ],
        SIZES | {"low": scalar(MIN)},
    ),
    "added as a whole": Attention([*_fill(MIN), node("Add", "x full", "s"), SOFTMAX], SIZES),
    "given out": Attention([*_fill(MIN), node("Trilu", "full k", "tri"), *ADDED], SIZES, extra_outputs="tri"),
}


@pytest.mark.parametrize("name", FILLED)
def test_what_a_constantofshape_makes_is_clamped_and_changes_no_bit(name: str, tmp_path: Path) -> None:
    graph, ranges = FILLED[name].scan(tmp_path)
    found = verdicts(graph, ranges)
    assert set(found) == {"full"}
    assert found["full"].clamp is not None, found
    assert_clamping_changes_nothing(FILLED[name], graph, list(found.values()))


@pytest.mark.parametrize("name", KEPT_IN_FP32)
def test_what_a_constantofshape_makes_is_not_where_a_row_may_be_hidden(name: str, tmp_path: Path) -> None:
    found = verdicts(*KEPT_IN_FP32[name].scan(tmp_path))["full"]
    assert found.clamp is None
    assert found.reason.startswith("not clamped as a mask")


PLACES = [
    node("Shape", "x", "dims"),
    node("Gather", "dims two", "q"),
    node("Range", "zero q one", "places"),
    node("Unsqueeze", "places front", "columns"),
    node("Unsqueeze", "places back", "rows"),
]
COUNTED = {
    "k": scalar(MIN),
    "plain": scalar(0),
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.int64(2),
    "front": ints(0),
    "back": ints(1),
}
COMPARED: dict[str, Attention] = {
    "chosen, and added": Attention(
        [*PLACES, node("LessOrEqual", "columns rows", "g"), node("Where", "g plain k", "tri"), *ADDED],
        COUNTED,
    ),
    "chosen the other way round": Attention(
        [*PLACES, node("Greater", "columns rows", "g"), node("Where", "g k plain", "tri"), *ADDED], COUNTED
    ),
    "in a tensor of zeros": Attention(
        [
            *PLACES,
            node("Shape", "x", "size"),
            node("ConstantOfShape", "size", "full"),
            node("Less", "rows columns", "g"),
            node("Where", "g k full", "tri"),
            *ADDED,
        ],
        COUNTED,
    ),
    "as a factor": Attention(
        [
            *PLACES,
            node("Less", "rows columns", "g"),
            node("Cast", "g", "on", to=TensorProto.FLOAT),
            node("Mul", "on k", "tri"),
            *ADDED,
        ],
        COUNTED,
    ),
    "in place of scores, and added to": Attention(
        [
            *PLACES,
            node("Less", "rows columns", "g"),
            node("Where", "g k x", "s"),
            node("Add", "s x", "t"),
            node("Softmax", "t", "y", axis=-1),
        ],
        COUNTED,
    ),
    "beside another of the kind": Attention(
        [
            *PLACES,
            node("Less", "rows columns", "g"),
            node("Where", "g k plain", "a"),
            node("Where", "g k x", "b"),
            node("Add", "a b", "s"),
            SOFTMAX,
        ],
        COUNTED,
    ),
}
NOT_COMPARED: dict[str, Attention] = {
    "the diagonal, too": Attention(
        [*PLACES, node("Less", "columns rows", "g"), node("Where", "g plain k", "tri"), *ADDED], COUNTED
    ),
    "what comes later alone": Attention(
        [*PLACES, node("LessOrEqual", "columns rows", "g"), node("Where", "g k plain", "tri"), *ADDED],
        COUNTED,
    ),
    "what comes later alone, in place of scores": Attention(
        [
            *PLACES,
            node("LessOrEqual", "columns rows", "g"),
            node("Where", "g k x", "s"),
            node("Add", "s x", "t"),
            node("Softmax", "t", "y", axis=-1),
        ],
        COUNTED,
    ),
    "what comes later alone, on the other side": Attention(
        [
            *PLACES,
            node("Greater", "columns rows", "g"),
            node("Where", "g x k", "s"),
            node("Add", "s x", "t"),
            node("Softmax", "t", "y", axis=-1),
        ],
        COUNTED,
    ),
    "what comes later alone, as a factor": Attention(
        [
            *PLACES,
            node("LessOrEqual", "columns rows", "g"),
            node("Cast", "g", "on", to=TensorProto.FLOAT),
            node("Mul", "on k", "tri"),
            *ADDED,
        ],
        COUNTED,
    ),
    "with the data": Attention(
        [
            *PLACES,
            node("LessOrEqual", "columns rows", "g"),
            node("And", "c g", "both"),
            node("Where", "both plain k", "tri"),
            *ADDED,
        ],
        COUNTED,
    ),
    "rows along another axis": Attention(
        [
            *PLACES,
            node("LessOrEqual", "columns rows", "g"),
            node("Where", "g plain k", "tri"),
            ADDED[0],
            node("Softmax", "s", "y", axis=-2),
        ],
        COUNTED,
    ),
}


@pytest.mark.parametrize("name", COMPARED)
def test_a_mask_of_places_that_are_compared_is_clamped_and_changes_no_bit(name: str, tmp_path: Path) -> None:
    graph, ranges = COMPARED[name].scan(tmp_path)
    found = verdicts(graph, ranges)
    assert set(found) == {"k"}
    assert found["k"].clamp is not None, found
    assert plan_precision(graph, ranges, PlanPolicy()).pins == ()
    assert_clamping_changes_nothing(COMPARED[name], graph, list(found.values()))


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_one_that_may_hide_a_row_is_not(name: str, tmp_path: Path) -> None:
    found = verdicts(*NOT_COMPARED[name].scan(tmp_path))["k"]
    assert found.clamp is None
    assert "is not proved to leave an element of every row" in found.reason


def test_a_triangle_of_minus_10000_is_left_as_it_is(tmp_path: Path) -> None:
    attention = Attention([*_fill(-10000), node("Trilu", "full k", "tri"), *ADDED], SIZES)
    found = verdicts(*attention.scan(tmp_path))["full"]
    assert found.is_left
    assert found.clamp is None


def test_minus_infinity_of_a_constantofshape_beside_a_finite_one_is_clamped_with_it(tmp_path: Path) -> None:
    attention = Attention(
        [*INFINITE_TRIANGLE, node("Add", "x tri", "a"), node("Add", "a k", "s"), SOFTMAX],
        {"k": pattern_of(CAUSAL, MIN), **TRIANGLE},
    )
    graph, ranges = attention.scan(tmp_path)
    found = verdicts(graph, ranges)
    assert {name for name, verdict in found.items() if verdict.clamp is not None} == {"full", "k"}
    assert_clamping_changes_nothing(attention, graph, list(found.values()))

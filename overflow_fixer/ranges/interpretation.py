"""If, Loop and Scan run in Python, as ONNX Runtime runs them: which bodies run, how often, and on what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.graph.nodes import Node
from overflow_fixer.ranges.carried import Values
from overflow_fixer.records import Array

Step = Callable[[Values], Values]
"""Runs the body once on its inputs, by name, and gives the values of what it carries on."""


def find_carried(body: Body) -> tuple[str, ...]:
    """The outputs of the body that its next run depends on, in order: Loop's condition, and the states."""
    if body.node.op_type == "If":
        return ()
    count = 1 if body.node.op_type == "Loop" else _count_scanned(body.node)
    return body.outputs[: len(body.inputs) - count]


def interpret(body: Body, values: Values, step: Step) -> None:
    """Call `step` for each run of the body, where its node reads `values` (by name)."""
    _INTERPRETERS[body.node.op_type](body, values, step)


def _take_branch(body: Body, values: Values, step: Step) -> None:
    if _is_true(values[body.node.inputs[0]]) == (body.attribute == "then_branch"):
        step({})


def _loop(body: Body, values: Values, step: Step) -> None:
    """The body's condition ends the loop even where the node has none: so ONNX Runtime, unlike the specification."""
    trips, condition, *initial = body.node.inputs
    limit = int(values[trips].reshape(-1)[0]) if trips else math.inf
    goes_on = _is_true(values[condition]) if condition else True
    carried = [values[name] for name in initial]
    done = 0
    while goes_on and done < limit:
        first = _scalar(body, 0, np.int64(done)), _scalar(body, 1, np.bool_(True))
        found = step(dict(zip(body.inputs, (*first, *carried), strict=True)))
        flag, *carried = (found[name] for name in find_carried(body))
        goes_on = _is_true(flag)
        done += 1


def _scan(body: Body, values: Values, step: Step) -> None:
    count = _count_scanned(body.node)
    states, scanned = body.node.inputs[:-count], body.node.inputs[-count:]
    axes = _integers(body.node, "scan_input_axes", count)
    directions = _integers(body.node, "scan_input_directions", count)
    carried = [values[name] for name in states]
    slices = map(_slice, (values[name] for name in scanned), axes, directions)
    for parts in zip(*slices, strict=True):
        found = step(dict(zip(body.inputs, (*carried, *parts), strict=True)))
        carried = [found[name] for name in find_carried(body)]


_INTERPRETERS = {"If": _take_branch, "Loop": _loop, "Scan": _scan}


def _slice(array: Array, axis: int, is_backward: int) -> Iterator[Array]:
    """The elements along the axis, which goes."""
    places = range(array.shape[axis])
    for place in reversed(places) if is_backward else places:
        yield np.asarray(np.take(array, place, axis))


def _count_scanned(node: Node) -> int:
    return _integers(node, "num_scan_inputs", 1)[0]


def _integers(node: Node, name: str, count: int) -> Sequence[int]:
    """The value or values of an attribute; zeros where it is left out."""
    found = node.attribute(name)
    if found is None:
        return (0,) * count
    return (found.i,) if found.type == onnx.AttributeProto.INT else found.ints


def _scalar(body: Body, place: int, value: Any) -> Array:
    """The number in the rank that the body declares for its input at `place`: 0 or 1."""
    rank = len(body.proto.input[place].type.tensor_type.shape.dim)
    return np.full((1,) * rank, value)


def _is_true(condition: Array) -> bool:
    return bool(condition.reshape(-1)[0])

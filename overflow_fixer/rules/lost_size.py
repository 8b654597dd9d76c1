"""Floats that decide a shape or an index, where FP16 may change what they are computed from.

1333 / 800 is 1.66625, of which FP16 makes 1.666; a Resize by it gives another shape, as does a Range of another
step. What computes such a float stays in FP32, back to the integers, constants and inputs that it is made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.integers.coordinates import find_coordinates
from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch

_DECIDING = {
    "Range": {0: "start", 1: "limit", 2: "delta"},
    "OneHot": {0: "indices", 1: "depth"},
    "Resize": {1: "roi", 2: "scales"},
    "Upsample": {1: "scales"},
    "NonMaxSuppression": {3: "iou_threshold", 4: "score_threshold"},
    "MelWeightMatrix": {3: "lower_edge_hertz", 4: "upper_edge_hertz"},
}
"""Operators that read floats by which they choose a shape or indices: at which slots, and as what."""
_READ_IN_FP32 = frozenset("Resize Upsample NonMaxSuppression".split())
"""Those that get them in FP32 whatever they run in themselves."""


def find_lost_sizes(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for a float that decides a shape or an index, and that the node computes or decides by.

    `tensor` is what FP16 is not known to hold, the float itself or what it is made of; `value` is its max |x|,
    `limit` what FP16 makes of that. Where a node is concerned by several, the first that is read is told.
    """
    told = _evidence(graph, ranges).get(node.label)
    if told is not None:
        lost, use = told
        seen = ranges.by_tensor[lost]
        limit = float(round_to_fp16(np.asarray(seen.max_abs)))
        reason = f"{use}, and FP16 is not known to hold every value of {lost}, up to {seen.max_abs:.9g}"
        batch = find_worst_batch(graph, ranges, lost)
        yield Finding("lost_size", node.label, lost, seen.max_abs, limit, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, tuple[str, str]]:
    """For each node concerned, a tensor that FP16 may not hold, and in words what it decides."""
    sizes = [(node, *found) for node in graph.nodes for found in _find_sizes(graph, node)]
    lost_of = _find_lost(graph, ranges, {size for _, size, _ in sizes}) if sizes else {}
    found: dict[str, tuple[str, str]] = {}
    traced: set[str] = set()
    for reader, size, role in sizes:
        if size in lost_of:
            told = lost_of[size], f"{reader.op_type} {reader.label} takes its {role} from {size}"
            for node in _find_concerned(graph, reader, size, traced):
                found.setdefault(node.label, told)
    return found


def _find_sizes(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The FP32 tensors by which the node decides, and as what."""
    is_resize = node.standard_op == "Resize"
    slots = _slots_of_resize(graph, node) if is_resize else _DECIDING.get(node.standard_op, {})
    for slot, role in slots.items():
        if slot < len(node.inputs) and graph.dtypes.get(node.inputs[slot]) == TensorProto.FLOAT:
            yield node.inputs[slot], role


def _slots_of_resize(graph: Graph, node: Node) -> dict[int, str]:
    """Below opset 11 the scales come second; the roi is read in one mode alone."""
    if graph.opset < 11:
        return {1: "scales"}
    is_cropped = node.value_of("coordinate_transformation_mode", b"half_pixel") == b"tf_crop_and_resize"
    return {slot: role for slot, role in _DECIDING["Resize"].items() if role != "roi" or is_cropped}


def _find_lost(graph: Graph, ranges: RangeTable, sizes: Collection[str]) -> dict[str, str]:
    """Of each of the sizes, and of what they may be made of, an FP32 tensor in it with values that FP16 may not hold."""
    multiples, makers = find_multiples(graph, ranges), _find_makers(graph, sizes)
    found: dict[str, str] = {}

    def note(name: str, parts: Collection[str]) -> None:
        is_told = graph.dtypes.get(name) == TensorProto.FLOAT and ranges.get(name) is not None
        if is_told and not multiples.is_held(name) and not _is_moved(graph, name):
            found[name] = name
        else:
            found.update((name, found[part]) for part in parts if part in found and name not in found)

    for name in makers:
        if name in graph.constants or name not in graph.producers:
            note(name, ())
    for node in graph.nodes:
        for name in node.writes if node.op_type != "Constant" else ():
            if name in makers:
                note(name, _find_parts(graph, node))
    return found


def _find_makers(graph: Graph, sizes: Collection[str]) -> dict[str, None]:
    """The sizes, and every float that they are made of and that is no data: nothing of a model's weights is among them."""
    found: dict[str, None] = {}
    pending = list(sizes)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found[name] = None
        node = graph.producers.get(name)
        pending += [] if node is None or name in graph.constants else _find_parts(graph, node)
    return found


def _find_parts(graph: Graph, node: Node) -> list[str]:
    """The floats that the node reads and that are no data."""
    coordinates = find_coordinates(graph)
    return [name for name in node.reads if name in coordinates and graph.is_float(name)]


def _is_moved(graph: Graph, tensor: str) -> bool:
    """Whether it holds values of others alone, none of them data, in another shape or order; a Cast from double rounds."""
    node = graph.producers.get(tensor)
    parts = [] if node is None else [name for slot, name in enumerate(node.inputs) if moves(node, slot)]
    is_narrow = all(graph.dtypes.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16) for name in parts)
    return bool(parts) and node is not None and is_narrow and set(_find_parts(graph, node)).issuperset(parts)


def _find_concerned(graph: Graph, reader: Node, size: str, traced: set[str]) -> Iterator[Node]:
    """The nodes that compute the FP32 tensors that it is made of, and the one that decides by it where it might read it in FP16.

    Those behind tensors that were `traced` before are left out; the set grows, in place.
    """
    if reader.standard_op not in _READ_IN_FP32:
        yield reader
    pending = [size]
    while pending:
        name = pending.pop()
        node = None if name in graph.constants else graph.producers.get(name)
        if node is None or name in traced:
            continue
        traced.add(name)
        pending += _find_parts(graph, node)
        if graph.dtypes[name] == TensorProto.FLOAT:
            yield node

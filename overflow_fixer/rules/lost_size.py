"""Floats that decide a shape or an index, where FP16 may change what they are computed from.

1333 / 800 is 1.66625, of which FP16 makes 1.666; a Resize by it gives another shape, as does a Range of another
step. What computes such a float stays in FP32, back to the integers, constants and inputs that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.coordinates import find_coordinates
from overflow_fixer.rules.multiples import find_multiples
from overflow_fixer.rules.semantics import moves

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
    """A finding for each float that decides a shape or an index, and that the node computes or decides by.

    `tensor` is what FP16 is not known to hold, the float itself or what it is made of; `value` is its max |x|,
    `limit` what FP16 makes of that.
    """
    for lost, use in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[lost]
        limit = float(round_to_fp16(np.asarray(seen.max_abs)))
        reason = f"{use}, and FP16 is not known to hold every value of {lost}, up to {seen.max_abs:.9g}"
        batch = ranges.worst_batch_of(seen) if lost not in graph.constants else None
        yield Finding("lost_size", node.label, lost, seen.max_abs, limit, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, str]]:
    """For each node concerned, the tensors that FP16 may not hold, and in words what each decides."""
    found: dict[str, dict[str, str]] = {}
    for reader in graph.nodes:
        for size, role in _find_sizes(graph, reader):
            way = _trace_back(graph, size)
            lost = _find_lost(graph, ranges, way)
            if lost is not None:
                use = f"{reader.op_type} {reader.label} takes its {role} from {size}"
                for node in _find_concerned(graph, reader, way):
                    found.setdefault(node.label, {}).setdefault(lost, use)
    return found


def _find_sizes(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The FP32 tensors by which the node decides, and as what."""
    slots = _DECIDING.get(node.standard_op, {})
    if node.op_type == "Resize":
        slots = _slots_of_resize(graph, node)
    for slot, role in slots.items():
        if slot < len(node.inputs) and graph.dtypes.get(node.inputs[slot]) == TensorProto.FLOAT:
            yield node.inputs[slot], role


def _slots_of_resize(graph: Graph, node: Node) -> dict[int, str]:
    """Below opset 11 the scales come second; the roi is read in one mode alone."""
    if graph.opset < 11:
        return {1: "scales"}
    mode = node.attribute("coordinate_transformation_mode")
    is_cropped = mode is not None and mode.s == b"tf_crop_and_resize"
    return {slot: role for slot, role in _DECIDING["Resize"].items() if role != "roi" or is_cropped}


def _trace_back(graph: Graph, size: str) -> list[str]:
    """The tensor, and the floats that it is made of, as far as these are no data."""
    coordinates = find_coordinates(graph)
    way, seen = [size], {size}
    for name in way:
        node = None if name in graph.constants else graph.producers.get(name)
        for part in () if node is None else node.reads:
            if part not in seen and part in coordinates and graph.is_float(part):
                seen.add(part)
                way.append(part)
    return way


def _find_lost(graph: Graph, ranges: RangeTable, way: list[str]) -> str | None:
    """The nearest FP32 tensor with values that FP16 may not hold; what is moved is asked for where it comes from."""
    multiples, known = find_multiples(graph, ranges), set(way)
    for name in way:
        is_told = graph.dtypes.get(name) == TensorProto.FLOAT and ranges.get(name) is not None
        if is_told and not multiples.is_held(name) and not _is_moved(graph, name, known):
            return name
    return None


def _is_moved(graph: Graph, tensor: str, known: set[str]) -> bool:
    """Whether it holds values of `known` tensors alone, in another shape or order."""
    node = graph.producers.get(tensor)
    parts = [] if node is None else [name for slot, name in enumerate(node.inputs) if moves(node, slot)]
    return bool(parts) and known.issuperset(parts)


def _find_concerned(graph: Graph, reader: Node, way: list[str]) -> Iterator[Node]:
    """The nodes that compute the FP32 tensors, and the one that decides by them where it might read them in FP16."""
    if reader.op_type not in _READ_IN_FP32:
        yield reader
    for name in way:
        node = graph.producers.get(name)
        if node is not None and name not in graph.constants and graph.dtypes[name] == TensorProto.FLOAT:
            yield node

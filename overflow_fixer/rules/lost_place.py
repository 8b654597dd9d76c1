"""A GridSample at places that FP16 rounds by so much that the sample is another: optical flow over a large image.

Places are told from −1 to 1. FP16's steps are 2^-11 from a half on: of 1920 pixels that is half of one. What a sample
loses by it depends on how rough the image is, which the scan measures. So the grid stays in FP32, with what it is
made of, back to what FP16 holds, and the sampling. So it does of a mask, ones that are sampled and then compared with a
number: its edge is decided by the places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.measured import are_finite, list_inner, read_maxima
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import step_at
from overflow_fixer.graph.comparisons import find_number_comparisons
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, InnerRange, PlanPolicy, RangeTable
from overflow_fixer.rules.by_node import list_by_node

LARGEST_LOSS = 2.0**-5
"""Of the rms of what is sampled: 30 dB. Half of it where the grid is computed, since what it is made of is rounded as well."""
_EDGE_LOSS = 2.0**-5
"""Of a mask: where places are rounded to 2^-11 of a size one element in 1,000 is on the other side of an edge, whatever the size."""
_EDGE = 1 - 2.0**-11
"""Places outside of what is sampled are at its edge, or give what does not change with them."""


class _Places(NamedTuple):
    """Those of `nodes`, of which the first samples there; in that batch, up to `most`, rounding loses `loss` of the sample, over `limit`.

    `is_mask`: by elements that are on the other side of an edge.
    """

    nodes: tuple[Node, ...]
    most: float
    loss: float
    limit: float
    batch: str
    is_mask: bool


def find_lost_places(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each grid that the node samples by, or makes or helps to make.

    `tensor` is the grid, `value` the rms of what the sample loses as a share of the rms of what is sampled, in the `batch`
    where it is largest, `limit` 1/32, or 1/64 where a node computes the grid. None of a grid or an image with NaN or
    infinities, and of places that FP16 is known to hold.
    """
    for places in _evidence(graph, ranges).get(node.label, ()):
        grid = places.nodes[0].inputs[1]
        how = "at the edge of a mask" if places.is_mask else "as rough as that is"
        reason = (
            f"GridSample {places.nodes[0].label} samples at {grid}, up to {places.most:.3g} of half a size, where FP16's steps are "
            f"{step_at(places.most):.3g}; rounded, these places lose {places.loss:.3g} of what is sampled, {how}"
        )
        yield Finding("lost_place", node.label, grid, places.loss, places.limit, reason, places.batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> Mapping[str, list[_Places]]:
    found = (_find_places(graph, ranges, *sampled) for sampled in list_inner(graph, ranges, "sampling loss"))
    return list_by_node(places for places in found if places is not None and places.loss > places.limit)


def _find_places(graph: Graph, ranges: RangeTable, node: Node, inner: InnerRange) -> _Places | None:
    """Those of the batch that loses most; None where that is no half of what is too much."""
    image, grid = node.inputs[:2]
    if not are_finite(graph, ranges, image, grid):
        return None
    is_mask = _samples_a_mask(graph, ranges, node)
    least = _EDGE_LOSS if is_mask else 0.0
    losses = np.fmax(inner.batch_max_abs.astype(np.float64), least)  # NaN: nothing was sampled in the batch
    worst = int(losses.argmax())
    loss, most = float(losses[worst]), min(float(read_maxima(ranges, grid)[worst]), _EDGE)
    if not loss > LARGEST_LOSS / 2:
        return None
    origins = tuple(find_origins(graph, ranges, grid, most * LARGEST_LOSS / loss / 2))
    limit = LARGEST_LOSS if all(moves(one, 0) for one in origins) else LARGEST_LOSS / 2
    return _Places((node, *origins), most, loss, limit, ranges.batch_names[worst], is_mask)


def _samples_a_mask(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether one number throughout is sampled, with zeros around it, there too, and what comes of that is compared with a number between."""
    image, grid = ranges.by_tensor[node.inputs[0]], ranges.by_tensor[node.inputs[1]]
    is_padded = node.value_of("padding_mode", b"zeros") == b"zeros" and grid.max_abs > 1
    if not is_padded or image.min != image.max:
        return False
    numbers = (one.number for one in find_number_comparisons(graph) if one.tensor == node.outputs[0])
    return any(0 < number / image.max < 1 for number in numbers if image.max)

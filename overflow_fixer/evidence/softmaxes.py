"""Softmax and LogSoftmax, as one operator or written out: what they are of, and how far that is from zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.evidence.measured import find_inner
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.softmax import find_softmax
from overflow_fixer.patterns.tracing import is_same
from overflow_fixer.records import Range, RangeTable


class Softmax(NamedTuple):
    """What `node` makes of `logits`: of one that is written out it subtracts something from them, row by row.

    `rows` are the largest logits of the rows, or their log-sum-exp where that is subtracted; None where they were not measured.
    `kind` is "Softmax" or "LogSoftmax", and `output` its result; what an Exp makes of a LogSoftmax is a Softmax.
    """

    kind: str
    node: Node
    logits: str
    output: str
    rows: Range | None

    @property
    def is_written_out(self) -> bool:
        return self.node.standard_op == "Sub"


def find_softmaxes(graph: Graph, ranges: RangeTable) -> Iterator[Softmax]:
    """Each, and behind each LogSoftmax what an Exp makes of it."""
    for found in (*_find_operators(graph, ranges), *_find_written_out(graph, ranges)):
        yield found
        for reader in graph.consumers.get(found.output, ()) if found.kind == "LogSoftmax" else ():
            if reader.standard_op == "Exp":
                yield found._replace(kind="Softmax", output=reader.outputs[0])


def _find_operators(graph: Graph, ranges: RangeTable) -> Iterator[Softmax]:
    for node in graph.nodes:
        if node.standard_op in ("Softmax", "LogSoftmax"):
            inner = find_inner(ranges, node, "row maximum")
            rows = None if inner is None else inner.seen
            yield Softmax(node.standard_op, node, node.inputs[0], node.outputs[0], rows)


def _find_written_out(graph: Graph, ranges: RangeTable) -> Iterator[Softmax]:
    """Those that subtract something from what they are of; none that is a part of another, as a Softmax under a Log is."""
    regions = list(find_softmax(graph))
    inside = {region.nodes[:-1] for region in regions if region.kind == "LogSoftmax"}
    for region in regions:
        node = None if region.nodes in inside else _find_subtraction(graph, region)
        if node is not None:
            yield Softmax(region.kind, node, region.source, region.output, ranges.get(node.inputs[1]))


def _find_subtraction(graph: Graph, region: Region) -> Node | None:
    """The first node that subtracts something from the source."""
    nodes = (graph.by_label[label] for label in region.nodes)
    return next(
        (one for one in nodes if one.standard_op == "Sub" and is_same(graph, one.inputs[0], region.source)),
        None,
    )

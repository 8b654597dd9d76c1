"""What a scan observes of a model, level by level: the rows of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from overflow_fixer.graph.body_graphs import Body, find_bodies
from overflow_fixer.graph.model import Graph
from overflow_fixer.inner import Inside, look_inside
from overflow_fixer.ranges.coverage import observed_tensors
from overflow_fixer.ranges.recording import Inner, name_runs


@dataclass(frozen=True, eq=False)
class Row:
    """What one row of a recording is about: the tensor `name` of a graph, or a value inside a node."""

    graph: Graph
    name: str
    about: str | Inner
    """The tensor by its name in the recording, or the value."""

    @property
    def is_constant(self) -> bool:
        return isinstance(self.about, str) and self.name in self.graph.constants

    def put_under(self, prefix: str) -> Row:
        """The same in a graph in which names of this one begin with `prefix`."""
        if isinstance(self.about, str):
            return replace(self, about=prefix + self.about)
        return replace(self, about=replace(self.about, node=prefix + self.about.node))


@dataclass(frozen=True, eq=False)
class Level:
    """What a scan observes of one graph, and of the bodies of its nodes.

    The first `own_count` of `tensors` have rows here; the others are constants of the outer graph.
    """

    graph: Graph
    inside: Inside
    tensors: tuple[str, ...]
    own_count: int
    bodies: tuple[tuple[Body, Level], ...]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """In the order in which they are observed: those of the graph, then of each body how often it ran, and its own."""
        return tuple(self._find_rows())

    def _find_rows(self) -> Iterator[Row]:
        yield from (Row(self.graph, name, name) for name in self.tensors[: self.own_count])
        yield from (self._inner(value.node, value.quantity, value.is_bound) for value in self.inside.values)
        yield from (self._inner(product.node.label, "products", True) for product in self.inside.products)
        for body, level in self.bodies:
            yield self._inner(*name_runs(body.node.label, body.node.op_type, body.attribute), False)
            yield from (row.put_under(body.prefix) for row in level.rows)

    def _inner(self, node: str, quantity: str, is_bound: bool) -> Row:
        return Row(self.graph, "", Inner(node, quantity, is_bound))


def find_level(graph: Graph, is_native: bool = False, hidden: frozenset[str] = frozenset()) -> Level:
    """What there is to observe from this graph on. `hidden` are constants that belong to the outer one."""
    observed = observed_tensors(graph)
    own = [name for name in observed if name not in hidden]
    rest = [name for name in observed if name in hidden]
    bodies = tuple(
        (body, find_level(body.graph, is_native, body.captured_constants)) for body in find_bodies(graph).read
    )
    return Level(graph, look_inside(graph, is_native), (*own, *rest), len(own), bodies)

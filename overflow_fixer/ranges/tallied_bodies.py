"""Bodies that are observed in the midst of the model's own run, by native nodes in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.interleaving import Instead
from overflow_fixer.ranges.level_walk import LevelWalk, count_runs
from overflow_fixer.ranges.levels import Level
from overflow_fixer.ranges.midst import Midst
from overflow_fixer.ranges.observers import is_native
from overflow_fixer.ranges.openings import Opening, Select, Settings, open_by_itself, select_all
from overflow_fixer.ranges.summaries import Summaries, no_summaries
from overflow_fixer.ranges.tallies import Tally
from overflow_fixer.ranges.unchanged import find_unchanged
from overflow_fixer.ranges.walk import Walk
from overflow_fixer.ranges.wanted import Wanted
from overflow_fixer.records import Batch


def can_tally(level: Level, settings: Settings) -> bool:
    """Whether there are native nodes for the bodies of the level, at any depth, which look at float32 alone.

    ONNX Runtime computes FP16 in float; what it would hand from run to run was never rounded.
    """
    return (
        settings.observe == "reductions" and is_native("reductions", settings.provider) and _is_plain(level)
    )


def _is_plain(level: Level) -> bool:
    """Whether the bodies hold no other floats than float32."""
    inner = [one for _, one in level.bodies]
    types = {one.graph.dtypes[name] for one in inner for name in one.tensors}
    return types <= {TensorProto.FLOAT} and all(map(_is_plain, inner))


def open_tallied(level: Level, settings: Settings) -> LevelWalk:
    """One session for the graph and its bodies."""
    midst = Midst()
    lasting = frozenset(level.graph.tensors)
    bodies = [_TalliedBody(*one, settings, midst, select_all, lasting) for one in level.bodies]
    opening = open_by_itself(level.graph, settings, midst, _put_in(bodies))
    return LevelWalk(level, Walk(level.graph, level.tensors, level.inside, settings, opening), bodies)


class _TalliedBody:
    """A BodyWalk. `select` gives what a batch feeds to the outer graph, of which the tensors `lasting` have one value in a run of
    the model.
    """

    def __init__(
        self,
        body: Body,
        level: Level,
        settings: Settings,
        midst: Midst,
        select: Select,
        lasting: frozenset[str],
    ) -> None:
        self.body, self._count = body, 1 + len(level.rows)
        self._select: Select = lambda batch: _select_captured(body, select(batch))
        lasting = _find_lasting(body, lasting)
        inner = [_TalliedBody(*one, settings, midst, self._select, lasting) for one in level.bodies]
        instead = _put_in(inner)
        tallies: list[Tally] = []

        def open_tally(graph: Graph, wanted: Wanted) -> Tally:
            tallies.append(Tally(body, graph, wanted, instead, lasting))
            return tallies[0]

        opening = Opening(
            open=open_tally,
            midst=midst,
            has_watches=True,
            in_pieces=False,
            is_run_once=True,
            is_tallied=True,
            select=self._select,
        )
        walk = Walk(level.graph, level.tensors, level.inside, settings, opening)
        self._walk = LevelWalk(level, walk, inner)
        (self.tally,) = tallies

    def observe(self, batch: Batch, values: Values) -> Summaries:
        if not self.tally.runs:
            return no_summaries(self._count)
        found, _ = self._walk.observe(self._select(batch))
        return np.concatenate([count_runs(self.tally.runs), found])


def _find_lasting(body: Body, lasting: frozenset[str]) -> frozenset[str]:
    """What has one value in all of the body's runs, where the tensors `lasting` of the outer graph have one."""
    handed_on = (name for name, given in find_unchanged(body).items() if given in lasting)
    return lasting.intersection(body.captured).union(handed_on)


def _select_captured(body: Body, batch: Batch) -> Batch:
    feeds = {name: array for name, array in batch.feeds.items() if name in body.captured}
    return Batch(batch.name, feeds)


def _put_in(bodies: Sequence[_TalliedBody]) -> Instead:
    """The control-flow nodes with what is to stand in them."""
    found: dict[str, NodeProto] = {}
    for one in bodies:
        node = one.body.node
        made = found.setdefault(node.label, _copy(node.proto))
        attribute = next(attribute for attribute in made.attribute if attribute.name == one.body.attribute)
        attribute.g.CopyFrom(one.tally.proto)
    return found


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy

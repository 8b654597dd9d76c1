"""What is observed of a body in the midst of the run of the model: native nodes in it add what they see to memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.graph.model import Graph
from overflow_fixer.native import DOMAIN
from overflow_fixer.ranges.instrument import Probed, add_probes
from overflow_fixer.ranges.interleaving import Instead
from overflow_fixer.ranges.lasting import find_lasting
from overflow_fixer.ranges.probes import DETAILED
from overflow_fixer.ranges.probing import Probing
from overflow_fixer.ranges.readings import read_detailed
from overflow_fixer.ranges.wanted import Held, Look, Observed, Wanted
from overflow_fixer.records import Array, Batch

_CONDITION, _TIMES, _LISTED, _FOLLOWS, _TOLD = 0, 1, 2, 4, 5
"""Where in a row of the totals is which tensor must hold more than so many times what this one does, where in the memory and in
how many places it stands which FP16 must be able to hold, the least magnitude as it follows, and what is told."""
_RUNS, _EPOCH = 0, 1
"""In the first row: how often the body ran, and of how many runs of the model these are the last."""
_NOTHING = (-np.inf, np.inf, np.inf, 0, 0, 0, 0, 0)
"""DETAILED of no elements."""
_SMALL = DETAILED.index("min_nonzero_abs")


class Tally:
    """Observes what is `wanted` of a body, all of it float32, over the runs since the run of the model that it is part of began.

    `graph` is the body's own, `proto` what is to stand in the model: the body with a native probe for each tensor, and with
    other nodes `instead` of its control flow. Tensors that are `lasting` are the same in all of those runs, and looked at in
    the first. It has nobody to run, so that it carries nothing.
    """

    def __init__(
        self, body: Body, graph: Graph, wanted: Wanted, instead: Instead, lasting: Collection[str]
    ) -> None:
        held = Held.of(graph, wanted, wanted.looks)
        native = (node for node in graph.nodes if node.domain == DOMAIN)
        room = len(held.tensors) + sum(len(node.outputs) for node in native)
        self._totals, self._listed = _make_room(room, sum(len(look.held) for look in wanted.looks.values()))
        address, epoch = self._totals.ctypes.data, self._totals[0, _EPOCH:].ctypes.data
        in_each = dict.fromkeys(find_lasting(graph, lasting).union(lasting), epoch)
        told = {**in_each, **dict.fromkeys(find_lasting(graph), 0)}
        watched = {held.sources[name] for watch in wanted.watches for name in watch.reads}
        how = Probing(
            frozenset(held.tensors),
            held.small,
            sources=held.sources,
            is_native=True,
            lasting=told,
            alone=watched,
        )
        probed = add_probes(graph, held.tensors, how, watches=wanted.watches, instead=instead)
        rows = 1 + probed.detailed[:, 0] // len(DETAILED)
        self._rows = rows[held.rows]
        self._is_taken = np.array([name in wanted.small for name in wanted.tensors], np.bool_)
        self._set_conditions(held, dict(zip(held.tensors, rows.tolist(), strict=True)), wanted.looks)
        self.proto = _build_body(body, probed, address)
        wanted.midst.before_each(self._begin)

    @property
    def runs(self) -> int:
        """How often the body ran."""
        return int(self._totals[0, _RUNS])

    def observe(self, batch: Batch) -> Observed:
        """Of nothing, where it did not run."""
        totals = self._totals[self._rows]
        small = np.where(self._is_taken, totals[:, _TOLD + _SMALL], totals[:, _FOLLOWS])
        totals[:, _TOLD + _SMALL] = small
        found = read_detailed(totals[:, _TOLD:].T)
        found["min_nonzero_abs"][np.isneginf(small)] = -np.inf
        return Observed(found, {})

    def _set_conditions(self, held: Held, rows: Mapping[str, int], looks: Mapping[str, Look]) -> None:
        """What is inside a node counts in the runs in which the node reads more than Look.longest_untold, and as Look.held says."""
        self._totals[1:, _CONDITION] = np.arange(len(self._totals) - 1)
        listed: list[int] = []
        for name, look in looks.items():
            self._totals[rows[name], _CONDITION] = rows[held.sources.get(look.guard or "", name)] - 1
            self._totals[rows[name], _TIMES] = look.longest_untold
            self._totals[rows[name], _LISTED:_FOLLOWS] = self._totals.size + len(listed), len(look.held)
            listed += [rows[held.sources[other]] - 1 for other in look.held]
        self._listed[:] = listed

    def _begin(self, batch: Batch) -> None:
        self._totals[0, _RUNS], self._totals[1:, _FOLLOWS:] = 0, (np.inf, *_NOTHING)
        self._totals[0, _EPOCH] += 1


def _make_room(rows: int, listed: int) -> tuple[Array, Array]:
    """For totals of so many rows behind the first, and in the same memory behind them for what is listed."""
    width = _TOLD + len(DETAILED)
    memory = np.zeros((1 + rows) * width + listed)
    return memory[: len(memory) - listed].reshape(-1, width), memory[len(memory) - listed :]


def _build_body(body: Body, probed: Probed, address: int) -> GraphProto:
    """The body with the probes, what they tell added to the totals at the address (see probes.cpp)."""
    proto = body.proto
    made = GraphProto(
        name=proto.name,
        input=proto.input,
        output=proto.output,
        initializer=proto.initializer,
        value_info=proto.value_info,
    )
    made.node.extend(probed.nodes())
    made.node.extend(_add_up(probed, address))
    return made


def _add_up(probed: Probed, address: int) -> Iterator[NodeProto]:
    """A node for all the vectors; where there is none, it counts the runs."""
    name, fetches = probed.prefix + "told", probed.fetches
    if fetches:
        yield onnx.helper.make_node("Concat", fetches, [name], axis=0)
    else:
        nothing = onnx.helper.make_tensor(name, TensorProto.DOUBLE, [0], [])
        yield onnx.helper.make_node("Constant", [], [name], value=nothing)
    yield onnx.helper.make_node("Tally", [name], [probed.prefix + "tally"], domain=DOMAIN, address=address)

"""What FP16 costs each node alone, when it is fed with right values.

Comparing an artifact's tensors with FP32 shows where things have gone wrong; behind that, everything
is. Here each node is run a second time beside the FP32 model, in FP32, on FP32 values of which those that
the artifact stores in FP16 are rounded. So every node that loses shows, however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from overflow_fixer.errors import RunError
from overflow_fixer.evidence.constants.repeated import find_repeated
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.copies import copy_shell
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.records import Array, Batch, RangeTable
from overflow_fixer.repair.chunks import Chunks
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.simulation.roundings import Roundings, computes_plainly, list_floats
from overflow_fixer.simulation.sigmoids import GivenSigmoids


@dataclass(frozen=True)
class Loss:
    """The SNR, in dB, that rounding leaves of a node's output.

    `read_db` is of what it computes from rounded inputs, `written_db` of its right output rounded;
    inf where nothing is rounded or there is nothing to lose, -inf where values are not finite any more.
    """

    read_db: float
    written_db: float

    @property
    def worst_db(self) -> float:
        return min(self.read_db, self.written_db)


_NOTHING = Loss(math.inf, math.inf)


def measure_losses(
    graph: Graph,
    ranges: RangeTable,
    fp16_nodes: Collection[str],
    batch: Batch,
    exact: Collection[str] = (),
) -> dict[str, Loss]:
    """The loss of each node that computes FP32 floats from plain tensors, by label.

    fp16_nodes: labels of the nodes that run in FP16; tensors are stored in their writer's type. The
    tensors `exact` (clamped masks) are not rounded. What only repeats a constant loses nothing as long as it stays finite: its
    digits show in what reads it rounded. Runs the batch once for each chunk of tensors.
    """
    probe = _Probe(Roundings(graph, frozenset(fp16_nodes), frozenset(exact)))
    owners = {
        name: node
        for node in graph.nodes
        if computes_plainly(graph, node)
        for name in list_floats(graph, node)
    }
    chunks = Chunks(ranges)
    losses: dict[str, Loss] = {}
    for names in chunks.cut(list(owners)):
        found, size_bytes = _run_in_halves(probe, {name: owners[name] for name in names}, batch)
        chunks.note(names, size_bytes)
        for name, loss in found.items():
            if name in find_repeated(graph) and loss.worst_db > -math.inf:
                loss = _NOTHING
            known = losses.get(owners[name].label, loss)
            worst = Loss(min(known.read_db, loss.read_db), min(known.written_db, loss.written_db))
            losses[owners[name].label] = worst
    return losses


@dataclass(eq=False)
class _Probe:
    """Runs the FP32 model with twins of some nodes beside it, which read rounded values."""

    roundings: Roundings

    @property
    def graph(self) -> Graph:
        return self.roundings.graph

    @cached_property
    def given_sigmoids(self) -> GivenSigmoids:
        return GivenSigmoids(self.graph)

    def run(
        self, owners: Mapping[str, Node], batch: Batch
    ) -> tuple[dict[str, tuple[Array, Array | None]], int]:
        """Each tensor's right value and what its owner's twin computes (None: it reads nothing rounded).

        The number is the bytes that all of these take.
        """
        model = copy_shell(self.graph)
        measured = set(owners.values())
        last = max(node.index for node in measured)
        views: dict[str, str] = {}
        for node in (one for one in self.graph.run_order if one.index <= last):
            model.graph.node.extend(self.given_sigmoids.compute(node, node.proto))
            if node in measured:
                self._add_twin(model.graph, node, views)
        made = {name for node in model.graph.node for name in node.output}
        asked = [*owners, *(twin for name in owners if (twin := self.roundings.name(name, "twin")) in made)]
        model.graph.output.extend(make_tensor_value_info(name, TensorProto.FLOAT, None) for name in asked)
        found = run_session(open_session(model, self.graph.folder, by_priority=True), asked, batch)
        values = dict(zip(asked, found, strict=True))
        pairs = {name: (values[name], values.get(self.roundings.name(name, "twin"))) for name in owners}
        return pairs, sum(array.nbytes for array in found)

    def _add_twin(self, graph: onnx.GraphProto, node: Node, views: dict[str, str]) -> None:
        """Append the node's twin, and the views that it reads; none if it reads nothing rounded."""
        twin = onnx.NodeProto()
        twin.CopyFrom(node.proto)
        twin.name = ""
        for slot, name in enumerate(node.inputs):
            if self.roundings.is_rounded(node, slot):
                if name not in views:
                    views[name] = self.roundings.add_view(graph, name)
                twin.input[slot] = views[name]
        twin.output[:] = [self.roundings.name(name, "twin") if name else "" for name in node.outputs]
        if list(twin.input) != list(node.inputs):
            graph.node.extend(self.given_sigmoids.compute(node, twin))


def _run_in_halves(probe: _Probe, owners: Mapping[str, Node], batch: Batch) -> tuple[dict[str, Loss], int]:
    """The losses, and the bytes that took. A twin that cannot be run, such as a Range up to what overflowed, loses everything."""
    try:
        values, size_bytes = probe.run(owners, batch)
    except RunError:
        if len(owners) == 1:
            return dict.fromkeys(owners, Loss(-math.inf, math.inf)), 0
        names, half = list(owners), len(owners) // 2
        parts = [
            _run_in_halves(probe, {name: owners[name] for name in some}, batch)
            for some in (names[:half], names[half:])
        ]
        return {**parts[0][0], **parts[1][0]}, max(size_bytes for _, size_bytes in parts)
    are_half = {name: probe.roundings.is_stored_rounded(owners[name], name) for name in owners}
    return {name: _measure(*pair, are_half[name]) for name, pair in values.items()}, size_bytes


def _measure(right: Array, computed: Array | None, is_half: bool) -> Loss:
    read_db = math.inf if computed is None else _snr_db(right, computed)
    return Loss(read_db, _snr_db(right, round_to_fp16(right)) if is_half else math.inf)


def _snr_db(right: Array, found: Array) -> float:
    """The SNR, -inf with values that are not finite though they should be, inf where there is no signal."""
    meter = ErrorMeter("")
    meter.add(right, found, "")
    error = meter.result()
    if error.mismatched > error.reference_nan:
        return -math.inf
    return error.snr_db if error.compared and error.max_abs_reference else math.inf

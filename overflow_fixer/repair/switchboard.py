"""What a choice of nodes in FP16 makes of the outputs, without an artifact: one session, in which each node has a switch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_value_info

from overflow_fixer.errors import RunError
from overflow_fixer.graph.copies import copy_shell
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.metrics.output_meters import OutputMeters
from overflow_fixer.metrics.parts import Part
from overflow_fixer.records import Array, Batch, TensorError, Tolerance
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.simulation.roundings import Roundings, computes_plainly, list_floats
from overflow_fixer.simulation.sigmoids import GivenSigmoids

_FIRST_WITH_PLAIN_INITIALIZERS = 4
"""Of the IR versions: in the branches of an If, an initializer had to be an input before."""
_MOST_PACKED = 1 << 27
"""So many elements of weights, half a GiB: packed, they lie in memory twice, as the branches that round them read them, too."""


class Switchboard:
    """The FP32 model, in which each of `nodes` is in FP16 or not, run by run.

    A node in FP16 reads its FP32 floats rounded to FP16 and computes in FP32, and what it writes is rounded: as an artifact
    is simulated. `nodes` [label] are those of `fp16_nodes`, in order, that compute FP32 floats from plain tensors; all others
    stay as they are. `outputs` are what is compared. Tensors `exact` are never rounded. Raises ModelError where it does not open.
    """

    def __init__(
        self, graph: Graph, fp16_nodes: Collection[str], outputs: Sequence[str], exact: Collection[str] = ()
    ) -> None:
        switched = [one for one in graph.nodes if one.label in fp16_nodes and computes_plainly(graph, one)]
        self.nodes = tuple(one.label for one in switched)
        self.outputs = tuple(outputs)
        writer = _Writer(Roundings(graph, frozenset(self.nodes), frozenset(exact)))
        self._switches = writer.roundings.name(graph.outputs[0], "switches")
        model = writer.write(switched, self._switches, self.outputs)
        elements = sum(math.prod(weight.dims) for weight in graph.constants.values())
        packs = elements <= _MOST_PACKED
        self._session = open_session(model, graph.folder, by_priority=True, pack_weights=packs)

    def run(self, batch: Batch, in_fp16: Collection[str] = ()) -> dict[str, Array]:
        """The outputs with these nodes in FP16. Raises RunError where that cannot be run."""
        chosen = frozenset(in_fp16)
        switches = np.array([label in chosen for label in self.nodes], np.bool_)
        switched = Batch(batch.name, {**batch.feeds, self._switches: switches})
        return dict(zip(self.outputs, run_session(self._session, self.outputs, switched), strict=True))


class Case:
    """A batch on which choices of nodes are compared with none. Raises RunError where it does not run in FP32.

    `log_energies` are TensorError.log_energy over all batches, by its name: what is quiet here is judged as `verify` does. `parts`
    of outputs are compared as well; of the tolerance its fills and samples count.
    """

    def __init__(
        self,
        board: Switchboard,
        batch: Batch,
        log_energies: Mapping[str, float],
        parts: Sequence[Part],
        tolerance: Tolerance,
    ) -> None:
        self._board, self._batch, self._log_energies, self._parts = board, batch, log_energies, parts
        self._tolerance = tolerance
        self._right = board.run(batch)
        self._known: dict[bytes, list[TensorError]] = {}

    @property
    def batch(self) -> str:
        return self._batch.name

    def compare(self, in_fp16: Collection[str]) -> list[TensorError]:
        """The errors of the outputs and parts with these nodes in FP16, computed once. Raises ModelError where memory runs out."""
        chosen = frozenset(in_fp16)
        key = bytes(label in chosen for label in self._board.nodes)
        if key not in self._known:
            self._known[key] = self._measure(chosen)
        return self._known[key]

    def _measure(self, in_fp16: Collection[str]) -> list[TensorError]:
        meters = OutputMeters(
            self._right, self._parts, self._tolerance.fills, self._log_energies, self._tolerance.samples
        )
        try:
            found = self._board.run(self._batch, in_fp16)
        except RunError as error:
            meters.add_failure(self._right, self._batch.name, error.reason)
        else:
            meters.add(self._right, found, self._batch.name)
        return meters.results()


class _Writer:
    """Writes the model with the switches in it."""

    def __init__(self, roundings: Roundings) -> None:
        self.roundings = roundings
        self._graph = roundings.graph
        self._given_sigmoids = GivenSigmoids(roundings.graph)

    def write(self, switched: Sequence[Node], switches: str, outputs: Sequence[str]) -> onnx.ModelProto:
        model = copy_shell(self._graph)
        model.ir_version = max(model.ir_version, _FIRST_WITH_PLAIN_INITIALIZERS)
        model.graph.input.append(make_tensor_value_info(switches, TensorProto.BOOL, [len(switched)]))
        numbers = {node.label: number for number, node in enumerate(switched)}
        for node in self._graph.run_order:
            number = numbers.get(node.label)
            if number is None:
                made = self._given_sigmoids.compute(node, node.proto)
            else:
                made = self._switch(model.graph, node, switches, number)
            for proto in made:
                model.graph.node.append(proto)
        model.graph.output.extend(info for info in self._graph.model.graph.output if info.name in outputs)
        return model

    def _switch(
        self, graph: onnx.GraphProto, node: Node, switches: str, number: int
    ) -> Iterator[onnx.NodeProto]:
        """The node as its switch chooses: between roundings, or as it is, which costs what the node does."""
        place, switch = (self.roundings.name(node.label, role) for role in ("place", "switch"))
        graph.initializer.append(onnx.helper.make_tensor(place, TensorProto.INT64, [], [number]))
        yield make_node("Gather", [switches, place], [switch])
        half, plain = self._write_half(node), self._write_plain(node)
        yield make_node("If", [switch], node.writes, then_branch=half, else_branch=plain)

    def _write_plain(self, node: Node) -> onnx.GraphProto:
        body = onnx.GraphProto(name="plain")
        self._add_twin(body, node, {})
        self._give_out(body, node, frozenset())
        return body

    def _write_half(self, node: Node) -> onnx.GraphProto:
        body, views = onnx.GraphProto(name="half"), dict[str, str]()
        slots = [slot for slot in range(len(node.inputs)) if self.roundings.can_be_rounded(node, slot)]
        for tensor in dict.fromkeys(node.inputs[slot] for slot in slots):
            views[tensor] = self.roundings.add_view(body, tensor)
        self._add_twin(body, node, {slot: views[node.inputs[slot]] for slot in slots})
        floats = list_floats(self._graph, node)
        self._give_out(body, node, [one for one in floats if self.roundings.is_stored_rounded(node, one)])
        return body

    def _add_twin(self, body: onnx.GraphProto, node: Node, reads: Mapping[int, str]) -> None:
        """Append the node, which writes raw values, and reads others in some slots."""
        twin = onnx.NodeProto()
        twin.CopyFrom(node.proto)
        for slot, tensor in reads.items():
            twin.input[slot] = tensor
        twin.output[:] = [self.roundings.name(tensor, "raw") if tensor else "" for tensor in node.outputs]
        body.node.extend(self._given_sigmoids.compute(node, twin))

    def _give_out(self, body: onnx.GraphProto, node: Node, rounded: Collection[str]) -> None:
        for tensor in node.writes:
            raw = self.roundings.name(tensor, "raw")
            found = self.roundings.add_view(body, raw) if tensor in rounded else raw
            body.output.append(make_tensor_value_info(found, self._graph.dtypes[tensor], None))

"""What a choice of nodes in FP16 makes of the outputs, without an artifact: one session, in which each node has a switch."""

from __future__ import annotations

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
from overflow_fixer.records import Array, Batch, TensorError
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.simulation.roundings import Roundings, computes_plainly, list_floats


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
        self._session = open_session(model, graph.folder, by_priority=True)

    def run(self, batch: Batch, in_fp16: Collection[str] = ()) -> dict[str, Array]:
        """The outputs with these nodes in FP16. Raises RunError where that cannot be run."""
        chosen = frozenset(in_fp16)
        switches = np.array([label in chosen for label in self.nodes], np.bool_)
        switched = Batch(batch.name, {**batch.feeds, self._switches: switches})
        return dict(zip(self.outputs, run_session(self._session, self.outputs, switched), strict=True))


class Case:
    """A batch on which choices of nodes are compared with none. Raises RunError where it does not run in FP32.

    `log_energies` are TensorError.log_energy over all batches, by its name: what is quiet here is judged as `verify` does. `parts`
    of outputs are compared as well; `fills` are those of Tolerance.
    """

    def __init__(
        self,
        board: Switchboard,
        batch: Batch,
        log_energies: Mapping[str, float],
        parts: Sequence[Part],
        fills: Mapping[str, Sequence[float]],
    ) -> None:
        self._board, self._batch, self._log_energies, self._parts = board, batch, log_energies, parts
        self._fills = fills
        self._right = board.run(batch)

    @property
    def batch(self) -> str:
        return self._batch.name

    def compare(self, in_fp16: Collection[str]) -> list[TensorError]:
        """The errors of the outputs and parts with these nodes in FP16. Raises ModelError where memory runs out."""
        meters = OutputMeters(self._right, self._parts, self._fills, self._log_energies)
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
        self._views: dict[str, str] = {}

    def write(self, switched: Sequence[Node], switches: str, outputs: Sequence[str]) -> onnx.ModelProto:
        model = copy_shell(self._graph)
        model.graph.input.append(make_tensor_value_info(switches, TensorProto.BOOL, [len(switched)]))
        numbers = {node.label: number for number, node in enumerate(switched)}
        for node in self._graph.run_order:
            number = numbers.get(node.label)
            made = [node.proto] if number is None else self._switch(model.graph, node, switches, number)
            for proto in made:
                model.graph.node.append(proto)
        model.graph.output.extend(info for info in self._graph.model.graph.output if info.name in outputs)
        return model

    def _switch(
        self, graph: onnx.GraphProto, node: Node, switches: str, number: int
    ) -> Iterator[onnx.NodeProto]:
        """The node between its switch's choices: of what it reads, and of what it writes."""
        name = self.roundings.name
        place, switch = name(node.label, "place"), name(node.label, "switch")
        graph.initializer.append(onnx.helper.make_tensor(place, TensorProto.INT64, [], [number]))
        yield make_node("Gather", [switches, place], [switch])
        twin = onnx.NodeProto()
        twin.CopyFrom(node.proto)
        for slot, tensor in enumerate(node.inputs):
            if self.roundings.can_be_rounded(node, slot):
                twin.input[slot] = name(f"{node.label}_{slot}", "read")
                yield make_node("Where", [switch, self._view(graph, tensor), tensor], [twin.input[slot]])
        floats = list_floats(self._graph, node)
        written = {
            tensor: name(tensor, "raw") for tensor in floats if self.roundings.is_stored_rounded(node, tensor)
        }
        twin.output[:] = [written.get(tensor, tensor) for tensor in node.outputs]
        yield twin
        for tensor, raw in written.items():
            half, view = name(raw, "half"), name(raw, "view")
            yield make_node("Cast", [raw], [half], to=TensorProto.FLOAT16)
            yield make_node("Cast", [half], [view], to=TensorProto.FLOAT)
            yield make_node("Where", [switch, view, raw], [tensor])

    def _view(self, graph: onnx.GraphProto, tensor: str) -> str:
        """The tensor rounded, made in front of the first that reads it."""
        if tensor not in self._views:
            self._views[tensor] = self.roundings.add_view(graph, tensor)
        return self._views[tensor]

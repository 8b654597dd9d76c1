"""Weak typing: the model as it is, FP16 allowed, pins on the layers of the planned nodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overflow_fixer.backends.mixed_onnx.assignment import writes_float
from overflow_fixer.backends.tensorrt.builder import Built, DisobedientError, Precision, allows_tf32, build
from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.fusion import extend_over_fusions, say_fused, say_fused_in_fp16
from overflow_fixer.backends.tensorrt.inspection import (
    EngineLayer,
    find_nodes,
    fused_with,
    is_opaque,
    judge_pins,
    read_engine,
)
from overflow_fixer.backends.tensorrt.mapping import NetworkLayer, map_layers, read_layers
from overflow_fixer.backends.tensorrt.network import ParsedNetwork
from overflow_fixer.backends.tensorrt.pins import Pinning, choose_layers, clear_pins, leaves_fp16, set_pins
from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.backends.tensorrt.source import parse_graph
from overflow_fixer.graph.model import Graph
from overflow_fixer.progress import Progress
from overflow_fixer.records import BuildSettings, Constraints, Kept, PinOutcome, PrecisionPlan

_MOST_WIDENINGS = 3
_MOST_REFUSALS = 6


@dataclass(eq=False)
class WeakBuild:
    """One plan built by weak typing: the network, its pins, and what came of them.

    `pinned` are the plan's nodes in the graph's order; `widened` maps a node that is pinned besides to
    the reason. `pinning` is what the last build was asked for.
    """

    trt: Any
    found: Capabilities
    graph: Graph
    plan: PrecisionPlan
    settings: BuildSettings
    progress: Progress
    marked: Sequence[str] = ()
    widened: dict[str, str] = field(default_factory=dict)
    dropped: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()
    constraints: Constraints = "none"
    builds: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.parsed: ParsedNetwork = parse_graph(
            self.trt, self.found, self.graph, self.plan, "weak", self.settings.shapes
        )
        self.network = self.parsed.network
        self.layers: tuple[NetworkLayer, ...] = read_layers(self.network)
        self.mapped: Mapping[str, Sequence[NetworkLayer]] = map_layers(self.layers, self.graph)
        self.pinned = tuple(node.label for node in self.graph.nodes if node.label in self.plan.pinned)
        for label, anchor in extend_over_fusions(self.graph, self.pinned).items():
            self.widened[label] = say_fused(anchor)
        self.pinning = self._choose()
        set_io_types(self.trt, self.network, self.settings)
        mark_tensors(self.network, self.layers, self.marked)

    @property
    def owners(self) -> dict[str, str]:
        """The node of each network layer, by the layer's name."""
        return {layer.name: label for label, layers in self.mapped.items() for layer in layers}

    @property
    def movement_is_free(self) -> bool:
        """Whether the last build was asked for without the pins of layers that only move values."""
        return len(self.pinning.layers) < len(self._choose().layers)

    @property
    def precision(self) -> Precision:
        fp16 = leaves_fp16(self.graph, {*self.pinned, *self.widened}, self.settings.io_types)
        return Precision(fp16, allows_tf32(self.settings, self.plan), self.constraints)

    def run(self) -> tuple[Built, EngineRunner, tuple[EngineLayer, ...], tuple[PinOutcome, ...]]:
        """Build, read the engine, and widen the pins that were not honoured over what they were fused with."""
        widenings = 0
        while True:
            built = self._build()
            runner = EngineRunner(self.trt, built.plan)
            runner.set_shapes(self.settings.shapes)
            layers = read_engine(self.trt, runner.engine, runner.context, self.owners)
            outcomes = judge_pins(layers, self.pinned, self._without_layers())
            wider = dict(self._wider(layers, outcomes)) if widenings < _MOST_WIDENINGS else {}
            if not wider:
                return built, runner, layers, outcomes
            self.widened |= wider
            widenings += 1
            del runner, built  # their memory is needed for the next

    def _choose(self) -> Pinning:
        everything = (*self.pinned, *self.widened)
        return choose_layers(self.graph, self.mapped, everything)

    def _without_layers(self) -> frozenset[str]:
        return frozenset(self.pinned) - {label for label, _ in self.pinning.layers}

    def _wider(
        self, layers: Sequence[EngineLayer], outcomes: Sequence[PinOutcome]
    ) -> Iterator[tuple[str, str]]:
        """Nodes fused with a pin that was not honoured, each with why it is pinned too."""
        for outcome in outcomes:
            for label in fused_with(layers, outcome.node) if outcome.state == "not honoured" else ():
                is_new = label not in self.widened and label not in self.plan.pinned
                if is_new and writes_float(self.graph, self.graph.by_label[label]):
                    yield label, say_fused_in_fp16(outcome.node)

    def _build(self) -> Built:
        """Build under OBEY. Where a layer cannot obey, pin the whole of it; then give up pins of layers that
        only move; as a last resort, PREFER.
        """
        self.dropped, self.notes = (), ()
        culprit, gives_up_movement = "", False
        for _ in range(_MOST_REFUSALS):
            pinning = self._choose()
            if gives_up_movement:
                self.dropped = tuple(_drop(pinning, culprit))
                pinning = pinning.without_movement()
            try:
                return self._attempt(pinning, "obey" if pinning.layers else "none")
            except DisobedientError as error:
                culprit = error.layer
            wider = dict(self._spread(culprit))
            if not wider and not pinning.has_movement:
                break
            self.widened |= wider
            gives_up_movement = gives_up_movement or not wider
        self.dropped = ()
        self.notes = (f"No implementation of {culprit!r} obeys its pins: pins are only preferred.",)
        return self._attempt(self._choose(), "prefer")

    def _spread(self, culprit: str) -> Iterator[tuple[str, str]]:
        """The free nodes in a fused layer that cannot obey, if pinned ones are in it, each with why it is pinned."""
        if is_opaque(culprit):  # its name tells its first layer and its last
            return
        nodes = dict.fromkeys(find_nodes(culprit, "", self.owners))
        asked = {*self.pinned, *self.widened}
        anchor = next((label for label in nodes if label in asked), None)
        for label in nodes:
            if anchor and label not in asked and writes_float(self.graph, self.graph.by_label[label]):
                yield label, say_fused(anchor)

    def _attempt(self, pinning: Pinning, constraints: Constraints) -> Built:
        clear_pins(self.network, self.pinning)
        set_pins(self.trt, self.network, pinning)
        self.pinning, self.constraints = pinning, constraints
        self.builds += 1
        built = build(self.trt, self.found, self.network, self.precision, self.settings, self.progress)
        self.seconds += built.seconds
        return built


def set_io_types(trt: Any, network: Any, settings: BuildSettings) -> None:
    """Make float inputs and outputs FP16 where the settings ask for it; the parser left them FP32."""
    if settings.io_types != "fp16":
        return
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    tensors += [network.get_output(index) for index in range(network.num_outputs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for tensor in tensors:
            if tensor.dtype == trt.float32:
                tensor.dtype = trt.float16


def mark_tensors(network: Any, layers: Sequence[NetworkLayer], tensors: Sequence[str]) -> None:
    """Make inner tensors outputs of the network, those that it has; see `open_tracer`."""
    wanted = set(tensors)
    for layer in layers:
        for slot, tensor in enumerate(layer.outputs):
            found = network.get_layer(layer.index).get_output(slot)
            if tensor.name in wanted and tensor.is_execution and not found.is_network_output:
                network.mark_output(found)


def _drop(pinning: Pinning, culprit: str) -> Iterator[Kept]:
    """The pins that are given up altogether: those of nodes with no layer left that is pinned."""
    left = {label for label, _ in pinning.without_movement().layers}
    for label, layer in pinning.layers:
        if label not in left:
            yield Kept(label, layer.kind, f"pin of {layer.name!r} given up: nothing obeyed it in {culprit!r}")

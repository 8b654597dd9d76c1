"""What an export pins, and how it is enforced: the plan's nodes, and those that TensorRT fuses with them, each with why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from overflow_fixer.backends.mixed_onnx.assignment import IoTypes
from overflow_fixer.backends.tensorrt.fusion import extend_over_fusions, say_fused
from overflow_fixer.backends.tensorrt.pins import MOVEMENT, choose_layers, leaves_fp16
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Artifact, Constraints, PrecisionPlan


@dataclass(frozen=True)
class ExportedPin:
    """A node to keep in FP32. `excuse` is why TensorRT may have no layer for it, None where it must have one."""

    node: str
    op_type: str
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]
    excuse: str | None


@dataclass(frozen=True)
class Enforcement:
    """How pins are enforced, of which kinds of layers there are none, and whether they leave FP16 a place at all."""

    constraints: Constraints = "obey"
    free: frozenset[str] = frozenset()
    fp16: bool = True


def choose_enforcement(
    graph: Graph, pinned: Collection[str], artifact: Artifact, io_types: IoTypes
) -> Enforcement:
    """As the engine had to be built; for any artifact but an engine of weak typing, all pins are to be obeyed."""
    engine, fp16 = artifact.engine, leaves_fp16(graph, pinned, io_types)
    if engine is None or engine.typing == "strong":
        return Enforcement(fp16=fp16)
    constraints: Constraints = "prefer" if engine.constraints == "prefer" else "obey"
    return Enforcement(constraints, MOVEMENT if engine.movement_is_free else frozenset(), fp16)


def choose_pins(graph: Graph, plan: PrecisionPlan, artifact: Artifact) -> tuple[ExportedPin, ...]:
    """The plan's pins and what they were widened over, in the graph's order.

    An engine that was built by weak typing tells what it was widened over; for any other artifact that is
    known from the graph alone.
    """
    reasons = {
        pin.node: tuple(f"{finding.rule}: {finding.reason}" for finding in pin.findings) for pin in plan.pins
    }
    for label, reason in _find_widened(graph, plan, artifact).items():
        reasons.setdefault(label, (reason,))
    return tuple(
        ExportedPin(node.label, node.op_type, node.writes, reasons[node.label], _excuse(graph, node.label))
        for node in graph.nodes
        if node.label in reasons
    )


def _find_widened(graph: Graph, plan: PrecisionPlan, artifact: Artifact) -> Mapping[str, str]:
    fused = extend_over_fusions(graph, plan.pinned)
    widened = {label: say_fused(anchor) for label, anchor in fused.items()}
    if artifact.engine is not None and artifact.engine.typing == "weak":
        widened |= {k.node: k.reason for k in artifact.kept if k.kept_for == "fusion"}
    return widened


def _excuse(graph: Graph, label: str) -> str | None:
    try:
        return choose_layers(graph, {}, (label,)).skipped[0].reason
    except PlanError:
        return None

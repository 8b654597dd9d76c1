"""Which nodes an export pins, each with why: the plan's, and those that TensorRT fuses with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overflow_fixer.backends.tensorrt.fusion import extend_over_fusions, say_fused
from overflow_fixer.backends.tensorrt.pins import choose_layers
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Artifact, PrecisionPlan


@dataclass(frozen=True)
class ExportedPin:
    """A node to keep in FP32. `excuse` is why TensorRT may have no layer for it, None where it must have one."""

    node: str
    op_type: str
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]
    excuse: str | None


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

"""Whether a plan is of a model: made for this very file, with names that it has. Every backend asks before it builds."""

from __future__ import annotations

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.constant_shapes import read_fill
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PrecisionPlan


def check_fit(graph: Graph, plan: PrecisionPlan) -> None:
    """Raise PlanError for a plan of another model, a pin of no node of it, and a clamp of none of its constants."""
    check_model(graph, plan)
    lost = [pin.node for pin in plan.pins if pin.node not in graph.by_label]
    held = [clamp.tensor for clamp in plan.clamps]
    lost += [name for name in held if name not in graph.constants and read_fill(graph, name) is None]
    if lost:
        raise PlanError(
            f"The plan names {lost[0]!r}, which {graph.path} does not have. Expected names of its nodes. Correct the plan, or "
            "plan again with fix-fp16 plan."
        )


def check_model(graph: Graph, plan: PrecisionPlan) -> None:
    """Raise PlanError for a plan of another model."""
    if plan.model_sha256 != graph.sha256:
        raise PlanError(
            f"The plan was made for another model (sha256 {plan.model_sha256[:12]}…) than {graph.path} "
            f"({graph.sha256[:12]}…). Expected a plan of this very file. Scan it with fix-fp16 scan --fresh, then plan "
            "again with fix-fp16 plan: ranges of the file as it was give the same plan again."
        )

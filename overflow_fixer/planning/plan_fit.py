"""Whether a plan, which may have been edited by hand, fits a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from overflow_fixer.backends.fit import check_fit
from overflow_fixer.errors import PlanError
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Pin, PrecisionPlan
from overflow_fixer.rules.settling import why_never_pinned

_CORRECT = "Correct the plan, or plan again with fix-fp16 plan."


def check_plan(graph: Graph, plan: PrecisionPlan) -> None:
    """Raise PlanError unless the plan was made for this model and all that it says can be done to it.

    Each pin is of a node of the model that may be pinned, with its operator and outputs; each clamp of a constant; each is in
    the plan once; and its magnitudes are FP16's.
    """
    check_fit(graph, plan)
    _check_magnitudes(plan)
    for pin in plan.pins:
        _check_pin(graph, pin)
    _check_once(plan)


def _check_magnitudes(plan: PrecisionPlan) -> None:
    for what, value in _magnitudes(plan):
        if not 0 < value <= FP16_MAX:  # NaN is neither
            raise PlanError(
                f"The plan has {what} {value:g}. Expected a number above 0 and of at most {FP16_MAX:g}. {_CORRECT}"
            )


def _magnitudes(plan: PrecisionPlan) -> Iterator[tuple[str, float]]:
    yield "the threshold", plan.threshold
    for clamp in plan.clamps:
        yield f"a clamp of {clamp.tensor!r} to the magnitude", clamp.magnitude


def _check_pin(graph: Graph, pin: Pin) -> None:
    """Of a node that the model has."""
    node = graph.by_label[pin.node]
    if (pin.op_type, pin.outputs) != (node.op_type, node.writes):
        raise PlanError(
            f"The plan's pin of {pin.node!r} is of a {pin.op_type} with the outputs {list(pin.outputs)}; in {graph.path} that "
            f"is a {node.op_type} with the outputs {list(node.writes)}. Expected what the node has. {_CORRECT}"
        )
    reason = why_never_pinned(graph, node)
    if reason is not None:
        raise PlanError(
            f"The plan pins {pin.node!r}, a {node.op_type}, and a pin of that changes nothing: {reason}. Expected pins of nodes "
            "that compute FP32 values. Take it out of the plan, or plan again with fix-fp16 plan."
        )


def _check_once(plan: PrecisionPlan) -> None:
    pinned, clamped = Counter(pin.node for pin in plan.pins), Counter(clamp.tensor for clamp in plan.clamps)
    repeated = [name for counts in (pinned, clamped) for name, count in counts.items() if count > 1]
    if repeated:
        raise PlanError(
            f"The plan names {repeated[0]!r} twice. Expected each pin and each clamp once. Take one of them out, or plan again "
            "with fix-fp16 plan."
        )

"""What is left of a finding that would pin a node: the pin, or why there is none."""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import bodies
from overflow_fixer.records import Finding, PlanPolicy

EXCLUDED = "left in FP16 because you excluded it"
"""How the reason ends of a finding that would pin a node if the user had not excluded it."""
_ABOUT_INSIDE = frozenset({"inner_value", "accumulator"})
"""Rules whose findings a backend answers that computes the operator in FP32 by itself."""


def is_pinnable(graph: Graph, node: Node) -> bool:
    """Whether the node computes FP32 values: what writes integers or booleans does not, unless a body of it may."""
    return why_never_pinned(graph, node) is None


def why_never_pinned(graph: Graph, node: Node) -> str | None:
    """Why the node is not pinned whatever is found of it; None where it may be."""
    if node.op_type == "Constant":
        return "a constant is typed by its readers"
    is_fp32 = any(graph.dtypes.get(name) == TensorProto.FLOAT for name in node.writes)
    return None if is_fp32 or bodies(node.proto) else "it computes no FP32 value"


def protection_of(node: Node, policy: PlanPolicy) -> str | None:
    """Why the backend computes the node in FP32 inside by itself; None where it does not, or `stash_type` says otherwise."""
    in_fp32 = node.value_of("stash_type", TensorProto.FLOAT) == TensorProto.FLOAT
    return policy.protected.get(node.op_type) if in_fp32 and node.is_standard else None


def settle(finding: Finding, node: Node, graph: Graph, policy: PlanPolicy, *, is_excluded: bool) -> Finding:
    """A finding about `node`, with another action and the reason where the node is not to be pinned for it.

    One that asks for no pin stays as it is.
    """
    if finding.action != "pin":
        return finding
    protection = protection_of(node, policy) if finding.rule in _ABOUT_INSIDE else None
    if protection is not None:
        return replace(finding, action="protected", reason=f"{finding.reason}; {protection}")
    if is_excluded:
        reason = f"{finding.reason}; {EXCLUDED}"
        return replace(finding, action="none", reason=reason)
    why = why_never_pinned(graph, node)
    if why is not None:
        return replace(finding, action="none", reason=f"{finding.reason}; not pinned: {why}")
    return finding

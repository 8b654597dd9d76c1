"""The user's own choice of nodes to keep in FP32, by a regular expression on labels or by operator."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable


def find_user_choice(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each pattern of `include_nodes` and operator of `include_ops` that matches the node."""
    reasons = [f"asked for: name matches {p!r}" for p in policy.include_nodes if re.search(p, node.label)]
    reasons += [f"asked for: operator {op}" for op in policy.include_ops if op == node.op_type]
    for reason in reasons:
        yield Finding("user", node.label, next(iter(node.writes), ""), math.nan, math.nan, reason)

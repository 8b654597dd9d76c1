"""What the user asks for by name or by operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_calibration import ask, floats, make_model, node, scan

from overflow_fixer.records import PlanPolicy
from overflow_fixer.rules.user_choice import find_user_choice

NODES = [
    node("Neg", "x", "a", name="/block.1/Neg"),
    node("Neg", "a", "b", name="/block.10/Neg"),
    node("Tanh", "b", "c", name=""),
    node("Tanh", "c", "y", name="head"),
]


@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        (PlanPolicy(), []),
        (PlanPolicy(include_nodes=("block",)), ["/block.1/Neg", "/block.10/Neg"]),
        (PlanPolicy(include_nodes=(r"block\.1/",)), ["/block.1/Neg"]),
        (PlanPolicy(include_nodes=("^head$",)), ["head"]),
        (PlanPolicy(include_nodes=("node_of_c",)), ["node_of_c"]),
        (PlanPolicy(include_ops=("Tanh",)), ["node_of_c", "head"]),
        (PlanPolicy(include_ops=("Tan",)), []),
        (PlanPolicy(exclude_nodes=("head",), exclude_ops=("Neg",)), []),
    ],
)
def test_patterns_are_searched_and_operators_matched_whole(
    policy: PlanPolicy, labels: list[str], tmp_path: Path
) -> None:
    graph, ranges = scan(make_model(NODES, {"x": [1]}, "y"), tmp_path, {"x": floats(1)})
    assert [found.node for found in ask(find_user_choice, graph, ranges, policy)] == labels


def test_each_reason_is_said(tmp_path: Path) -> None:
    graph, ranges = scan(make_model(NODES, {"x": [1]}, "y"), tmp_path, {"x": floats(1)})
    policy = PlanPolicy(include_nodes=("he", "ad"), include_ops=("Tanh",))
    reasons = [found.reason for found in ask(find_user_choice, graph, ranges, policy) if found.node == "head"]
    assert reasons == [
        "asked for: name matches 'he'",
        "asked for: name matches 'ad'",
        "asked for: operator Tanh",
    ]

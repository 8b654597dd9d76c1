"""Which nodes of a GPU's session run on the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

from overflow_fixer.sessions.providers import EXECUTION_PROVIDERS


def record_places(options: Any) -> None:
    """Have ONNX Runtime keep where it places each node of the session that is opened with these options."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def count_on_cpu(session: Any) -> Counter[str] | None:
    """The operators of the nodes that a session of recorded places runs on the CPU, with how many there are of each.

    None where this ONNX Runtime is too old to tell.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    cpu = EXECUTION_PROVIDERS["cpu"]
    parts = [part for part in session.get_provider_graph_assignment_info() if part.ep_name == cpu]
    return Counter(node.op_type for part in parts for node in part.get_nodes())

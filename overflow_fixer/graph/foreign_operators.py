"""Operators of other domains: what they compute inside, nobody looks into."""

from __future__ import annotations

from collections import Counter

from onnx import TensorProto

from overflow_fixer.graph.model import Graph


def count_foreign(graph: Graph) -> Counter[str]:
    """Those that write FP32, as "DOMAIN.OPERATOR", with the number of their nodes."""
    return Counter(
        f"{node.domain}.{node.op_type}"
        for node in graph.nodes
        if not node.is_standard and any(graph.dtypes.get(name) == TensorProto.FLOAT for name in node.writes)
    )

"""Tensors that leave a run as they are; BF16, which cannot come to numpy, as float."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph.copies import add_nodes, copy_shell
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.interleaving import Behind, interleave
from overflow_fixer.ranges.probes import widen
from overflow_fixer.sessions.marking import mark_outputs


def mark_tensors(graph: Graph, tensors: Sequence[str]) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The graph with each of `tensors` marked as an output, and the name to fetch each by.

    BF16, which cannot come to numpy, is fetched through a Cast to float.
    """
    is_narrow = any(graph.dtypes.get(name) == TensorProto.BFLOAT16 for name in tensors)
    behind = widen_bf16(graph, tensors, free_prefix(graph, "range_probe_")) if is_narrow else {}
    fetches = name_fetches(tensors, behind)
    model = copy_shell(graph)
    add_nodes(model, interleave(graph, behind, {}))
    model.graph.output.extend(graph.model.graph.output)
    mark_outputs(model, list(dict.fromkeys((*tensors, *fetches))))
    return model, fetches


def widen_bf16(graph: Graph, tensors: Sequence[str], prefix: str) -> dict[str, list[NodeProto]]:
    """For each of them that is BF16 the nodes that give it as float."""
    is_bf16 = [graph.dtypes.get(name) == TensorProto.BFLOAT16 for name in tensors]
    return {name: list(widen(name, f"{prefix}{i}_")) for i, name in enumerate(tensors) if is_bf16[i]}


def name_fetches(tensors: Sequence[str], wide: Behind) -> tuple[str, ...]:
    return tuple(wide[name][-1].output[0] if name in wide else name for name in tensors)

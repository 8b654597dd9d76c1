"""Whether a batch may be run twice."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import CONTROL_FLOW, bodies

_RANDOM_OPS = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Sampling "
    "BiasDropout BitmaskDropout BitmaskBiasDropout".split()
)
_MAY_CHANGE = _RANDOM_OPS | CONTROL_FLOW | {"BatchNormalization", "Dropout"}


def is_repeatable(graph: Graph) -> bool:
    """Whether a second run of the same batch is sure to give the same values."""
    return all(is_repeatable_node(graph, node) for node in graph.nodes)


def is_repeatable_node(graph: Graph, node: Node) -> bool:
    """The same of one node, whose bodies count."""
    if node.is_standard and node.op_type not in _MAY_CHANGE:
        return True
    return not any(_changes(graph, proto) for proto in _with_bodies(node))


def _changes(graph: Graph, proto: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers, or writes into its inputs as BatchNormalization in training does."""
    if proto.op_type == "BatchNormalization":
        return sum(map(bool, proto.output)) > 1
    if proto.op_type != "Dropout":
        return proto.op_type in _RANDOM_OPS
    if len(proto.input) < 3 or not proto.input[2]:
        return False
    training_mode = graph.read_fixed(proto.input[2])
    return training_mode is None or bool(training_mode)


def _with_bodies(node: Node) -> Iterator[onnx.NodeProto]:
    pending = [node.proto]
    while pending:
        proto = pending.pop()
        yield proto
        pending += [inner for body in bodies(proto) for inner in body.node]

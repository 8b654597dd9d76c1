"""Where in the graph an error comes from: tensors at which it begins or grows, and the nodes around one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import TensorError, Verification
from overflow_fixer.repair.attempts import MIN_GAIN_DB
from overflow_fixer.repair.losses import Loss
from overflow_fixer.verification.comparison import worst_snr_db

_HEALTHY_DB = 80.0
"""More SNR than this is rounding noise, of which a node cannot be said to lose any."""


def find_concerned(graph: Graph, node: Node, loss: Loss, limit_db: float) -> Iterator[Node]:
    """The node, what hands it the values that rounding spoils, and what reads the one that it spoils."""
    yield node
    if loss.read_db < limit_db:
        yield from _feeding(graph, node)
    if loss.written_db < limit_db:
        yield from _reading(graph, node)


def find_suspects(verification: Verification, graph: Graph) -> list[TensorError]:
    """Tensors on the way to a failing output: those where NaN or infinity begin, then by the SNR lost there."""
    failing = [verdict.error.tensor for verdict in verification.outputs if not verdict.passed]
    relevant = find_ancestors(graph, failing)
    errors = {e.tensor: e for e in verification.trace if e.tensor in relevant}
    broken = {name for name, error in errors.items() if error.mismatched > error.reference_nan}
    sources = [errors[name] for name in errors if name in broken and broken.isdisjoint(_reads(graph, name))]
    losses = {name: _loss_db(error, errors, graph) for name, error in errors.items() if name not in broken}
    losing = sorted((name for name in losses if losses[name] > MIN_GAIN_DB), key=lambda name: -losses[name])
    return [*sources, *(errors[name] for name in losing)]


def _loss_db(error: TensorError, errors: Mapping[str, TensorError], graph: Graph) -> float:
    """How much SNR the producer of a tensor loses: its worst input's SNR less its own, in dB."""
    if error.compared == 0 or error.max_abs_reference == 0:
        return 0.0
    reads = (worst_snr_db(errors[name]) for name in _reads(graph, error.tensor) if name in errors)
    return min([*(snr for snr in reads if not math.isnan(snr)), _HEALTHY_DB]) - worst_snr_db(error)


def _reads(graph: Graph, tensor: str) -> list[str]:
    return list(graph.producers[tensor].reads)


def find_ancestors(graph: Graph, tensors: Iterable[str]) -> set[str]:
    """The tensors, and every tensor that they depend on."""
    pending = list(tensors)
    found = set(pending)
    while pending:
        name = pending.pop()
        fresh = {n for n in _reads(graph, name) if n not in found} if name in graph.producers else set()
        found |= fresh
        pending.extend(fresh)
    return found


def find_around(graph: Graph, node: Node, distance: int) -> list[Node]:
    """The node and those up to `distance` nodes away; nodes that only move elements count for nothing."""
    found = {node.label: node}
    edge = [node]
    for _ in range(distance):
        near = {n.label: n for at in edge for n in (*_feeding(graph, at), *_reading(graph, at))}
        edge = [n for label, n in near.items() if label not in found]
        found |= near
    return list(found.values())


def _feeding(graph: Graph, node: Node) -> list[Node]:
    """The nodes that write what the node reads, and behind those that only move it, what feeds them."""
    return _next_to(node, lambda at: (graph.producers[n] for n in at.reads if n in graph.producers))


def _reading(graph: Graph, node: Node) -> list[Node]:
    """The nodes that read what the node writes, and behind those that only move it, their readers."""
    return _next_to(node, lambda at: (reader for n in at.writes for reader in graph.consumers.get(n, ())))


def _next_to(node: Node, neighbours: Callable[[Node], Iterable[Node]]) -> list[Node]:
    found: dict[str, Node] = {}
    pending = [node]
    while pending:
        for near in neighbours(pending.pop()):
            if near.label not in found:
                found[near.label] = near
                pending += [near] if moves(near, 0) else []
    return list(found.values())

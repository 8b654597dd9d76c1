"""A model with probes as ONNX Runtime's optimiser leaves it, so that a scan runs at the speed of inference.

ONNX Runtime lays convolutions out in blocks of channels (NCHWc) and puts a ReorderOutput in front of
whoever reads a plain tensor. A probe does not care for the order of elements: it reads the blocked
tensor itself. What the optimiser adds comes last in its order and would run last, with every tensor
kept until then; so the nodes are put in order anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import onnx
from onnx import NodeProto

from overflow_fixer.sessions import save_optimized

_BLOCKED = "com.microsoft.nchwc"
_LARGEST_BLOCK = 16
"""Channels are padded to whole blocks of 8 or 16, by the processor; only a multiple of both has no padding."""


def optimize_probed(model: onnx.ModelProto, folder: Path, prefix: str, work: Path) -> onnx.ModelProto:
    """The optimised model, with its weights in files in `work`; values differ by rounding alone.

    `prefix` begins the name of everything that belongs to a probe. The model is to be run as it stands,
    with optimisation off. Raises ModelError when ONNX Runtime refuses it.
    """
    path = work / "optimized.onnx"
    save_optimized(model, folder, path)
    optimized: onnx.ModelProto = onnx.load(path, load_external_data=False)
    nodes = list(optimized.graph.node)
    outputs = {info.name for info in optimized.graph.output}
    leaves = _find_leaves(nodes, outputs, prefix)
    skipped = {node.output[0]: node.input[0] for node in nodes if _is_needless(node, leaves)}
    for node in nodes:
        node.input[:] = [skipped.get(name, name) for name in node.input]
    kept = [node for node in nodes if not skipped.keys() & set(node.output)]
    ordered = onnx.GraphProto(node=_order(kept, leaves))
    del optimized.graph.node[:]
    optimized.graph.node.extend(ordered.node)
    return optimized


def _find_leaves(nodes: Iterable[NodeProto], outputs: Collection[str], prefix: str) -> set[str]:
    """What probes write, and what a reorder writes for probes alone."""
    leaves = {name for node in nodes for name in node.output if name.startswith(prefix)}
    read = {name for node in nodes if not leaves & set(node.output) for name in node.input}
    reordered = {node.output[0] for node in nodes if _is_reorder(node)}
    return leaves | (reordered - read - set(outputs))


def _order(nodes: Iterable[NodeProto], leaves: Collection[str]) -> Iterator[NodeProto]:
    """The nodes in their order, but for those that write leaves: each comes as soon as what it reads is there."""
    order = _Order(nodes, leaves)
    yield from order.start()
    for node in order.trunk:
        yield node
        yield from order.release(node)


class _Order:
    """The nodes that are not to wait, and those that are, with what each still lacks."""

    def __init__(self, nodes: Iterable[NodeProto], leaves: Collection[str]) -> None:
        everything = list(nodes)
        self._waiting = [node for node in everything if node.output[0] in leaves]
        self.trunk = [node for node in everything if node.output[0] not in leaves]
        written = {name for node in everything for name in node.output}
        self._lacking = {node.output[0]: written & set(node.input) for node in self._waiting}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in self._waiting:
            for name in self._lacking[node.output[0]]:
                self._readers.setdefault(name, []).append(node)

    def start(self) -> Iterator[NodeProto]:
        """Those that lack nothing from the beginning, and what these release in turn."""
        for node in [node for node in self._waiting if not self._lacking[node.output[0]]]:
            yield node
            yield from self.release(node)

    def release(self, done: NodeProto) -> Iterator[NodeProto]:
        """Those that lacked nothing but what `done` writes, and what these release in turn."""
        for name in done.output:
            for node in self._readers.get(name, ()):
                lacking = self._lacking[node.output[0]]
                lacking.discard(name)
                if not lacking:
                    yield node
                    yield from self.release(node)


def _is_reorder(node: NodeProto) -> bool:
    return node.domain == _BLOCKED and node.op_type == "ReorderOutput"


def _is_needless(node: NodeProto, leaves: Collection[str]) -> bool:
    """Whether only probes need the plain order, and the blocks hold nothing but elements of the tensor."""
    if not _is_reorder(node) or node.output[0] not in leaves:
        return False
    channels = next(found.i for found in node.attribute if found.name == "channels")
    return channels % _LARGEST_BLOCK == 0

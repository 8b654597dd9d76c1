"""The nodes of a graph: numbered in topological order, each under a label of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import count
from pathlib import Path
from typing import Any

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.subgraphs import CONTROL_FLOW, STANDARD_DOMAINS, captured_by


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a graph.

    `label` is unique in the graph: the node's name, or `node_of_<first output>` where that is empty
    or taken (the name TensorRT's parser gives to a nameless node). It `is_standard` where its operator is one of ONNX's own,
    and not another domain's of the same name. `inputs` and `outputs` are tensor names, "" for one left out. `captured` are
    the outer tensors that the node's bodies read. `reads` is every tensor that it reads, those included, none left out,
    repeats kept; `writes` what it writes.
    """

    index: int
    label: str
    op_type: str
    domain: str
    is_standard: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...]
    reads: tuple[str, ...] = field(repr=False)
    writes: tuple[str, ...] = field(repr=False)
    proto: onnx.NodeProto = field(repr=False)

    @staticmethod
    def of(index: int, label: str, proto: onnx.NodeProto) -> Node:
        op_type, domain = proto.op_type, proto.domain
        is_standard = domain in STANDARD_DOMAINS
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        captured = () if is_standard and op_type not in CONTROL_FLOW else tuple(captured_by(proto))
        reads, writes = inputs + captured, outputs
        if "" in reads or "" in writes:
            reads, writes = tuple(filter(None, reads)), tuple(filter(None, writes))
        return Node(
            index, label, op_type, domain, is_standard, inputs, outputs, captured, reads, writes, proto
        )

    def at(self, index: int) -> Node:
        """The same in another place."""
        if index == self.index:
            return self
        names = self.inputs, self.outputs, self.captured, self.reads, self.writes
        return Node(index, self.label, self.op_type, self.domain, self.is_standard, *names, self.proto)

    @property
    def standard_op(self) -> str:
        """Its operator, or "" for one of another domain, of which tables of ONNX's operators know nothing."""
        return self.op_type if self.is_standard else ""

    def beside(self, slot: int) -> tuple[str, ...]:
        """The inputs but for that at the slot."""
        return (*self.inputs[:slot], *self.inputs[slot + 1 :])

    def attribute(self, name: str) -> onnx.AttributeProto | None:
        return next((found for found in self.proto.attribute if found.name == name), None)

    def value_of(self, attribute: str, default: Any) -> Any:
        """What an attribute holds, words as bytes; the default where it is left out."""
        found = self.attribute(attribute)
        return default if found is None else onnx.helper.get_attribute_value(found)


def number_nodes(graph: onnx.GraphProto) -> tuple[Node, ...]:
    """The nodes of a graph in its order."""
    protos = list(graph.node)
    return tuple(map(Node.of, count(), _label_nodes(protos), protos))


def _label_nodes(protos: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """Each node's name; where that is empty or another's too, one by its first output."""
    names = [proto.name for proto in protos]
    times, taken = Counter(names), set(names)
    for index, (name, proto) in enumerate(zip(names, protos, strict=True)):
        if not name or times[name] > 1:
            name = _free_label(f"node_of_{next(filter(None, proto.output), index)}", taken)
        yield name


def _free_label(label: str, taken: set[str]) -> str:
    while label in taken:
        label += "_"
    taken.add(label)
    return label


def sort_nodes(path: Path, graph: onnx.GraphProto, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes in topological order, as ONNX demands; brought into it, in `graph` too, where the file has another.

    ONNX Runtime and TensorRT sort as well, and what ONNX Runtime's converter to FP16 writes has its Casts at the end.
    Raises ModelError, which begins with `path`, for a graph with a cycle.
    """
    if _are_sorted(nodes):
        return nodes
    writers = {name: node.index for node in nodes for name in node.writes}
    before = {node.index: [writers[name] for name in node.reads if name in writers] for node in nodes}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        around = ", ".join(repr(nodes[index].label) for index in dict.fromkeys(error.args[1]))
        raise ModelError(
            f"{path}: what nodes read goes round in a circle: {around}. Expected a graph without cycles, as ONNX demands. "
            "Its tensors' names were mixed up; export it again."
        ) from error
    found = onnx.GraphProto(node=[nodes[index].proto for index in order])
    del graph.node[:]
    graph.node.extend(found.node)
    return number_nodes(graph)


def delay_fixed(nodes: Sequence[Node], constants: Collection[str]) -> tuple[Node, ...]:
    """The nodes in another topological order: what is computed from constants alone stands right before its first reader.

    Tools write it in front, such as each weight's DequantizeLinear; run in that order, all weights would be there at once.
    What no other node needs stands where what it reads does. Each node's index is its place in `nodes`.
    """
    fixed, needed = _take_fixed(nodes, constants)
    if not fixed:
        return tuple(nodes)
    held = {name: node.index for node in nodes if not node.reads for name in node.writes}
    before: dict[int, list[Node]] = {}
    for node, place in zip(fixed, _find_places(fixed, needed, held), strict=True):
        before.setdefault(place, []).append(node)
    left = {node.index for node in fixed}
    found: list[Node] = []
    for node in nodes:
        found += before.get(node.index, ())
        found += () if node.index in left else (node,)
    return tuple(found)


def _take_fixed(nodes: Iterable[Node], constants: Collection[str]) -> tuple[list[Node], dict[str, int]]:
    """The nodes that compute something from constants alone, and of what they write the first other node that reads it."""
    known, found, needed = set(constants), list[Node](), dict[str, int]()
    for node in nodes:
        if known.isdisjoint(node.reads):
            continue
        if known.issuperset(node.reads):
            known.update(node.writes)
            found.append(node)
        else:
            for name in known.intersection(node.reads):
                needed.setdefault(name, node.index)
    return found, needed


def _find_places(fixed: Sequence[Node], needed: dict[str, int], held: Mapping[str, int]) -> list[int]:
    """Before which node each of them is to stand. `needed` goes on through them, in place.

    `held` are the constants that nodes hold, by the index of the node: none is to stand before one that it reads.
    """
    for node in reversed(fixed):
        place = min((needed[name] for name in node.writes if name in needed), default=None)
        if place is not None:
            for name in node.reads:
                needed[name] = min(place, needed.get(name, place))
    behind: dict[str, int] = {}
    found = []
    for node in fixed:
        places = [needed[name] for name in node.writes if name in needed]
        sources = [behind[name] for name in node.reads if name in behind]
        first = max((held[name] + 1 for name in node.reads if name in held), default=0)
        found.append(min(places) if places else max(first, *sources) if sources else node.index)
        behind.update(dict.fromkeys(node.writes, found[-1]))
    return found


def _are_sorted(nodes: Iterable[Node]) -> bool:
    written = {name for node in nodes for name in node.writes}
    seen: set[str] = set()
    for node in nodes:
        if not seen.issuperset(written.intersection(node.reads)):
            return False
        seen.update(node.writes)
    return True

"""The model as a scan runs it: with probes behind its tensors.

A probe stands directly behind its tensor's producer. With ONNX Runtime's priority-based order it
then runs there too, so that a tensor lives no longer than in a plain run; only short vectors leave, of what native probes do not
tell in memory, and what is carried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto

from overflow_fixer.graph.copies import add_nodes, copy_shell
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.native import DOMAIN, LOOKS_AT_ALL, declare_operators
from overflow_fixer.ranges.fetched import name_fetches, widen_bf16
from overflow_fixer.ranges.gathering import Gathering
from overflow_fixer.ranges.interleaving import Behind, Instead, interleave
from overflow_fixer.ranges.lasting import copy_native, leave_unread
from overflow_fixer.ranges.memory import Memory
from overflow_fixer.ranges.probes import (
    ALL,
    DETAILED,
    QUICK,
    Probe,
    SharedProbe,
    Statistics,
    shared_constants,
)
from overflow_fixer.ranges.probing import Probing
from overflow_fixer.ranges.sharing import find_small, group_small
from overflow_fixer.ranges.watches import Ends, Told, Watch, find_told, make_statistics
from overflow_fixer.sessions.marking import mark_outputs

_EACH_A_QUICK_ONE = Probing()

_Look = Probe | SharedProbe | Statistics
Gatherings = Mapping[str, Gathering | Memory]


@dataclass(frozen=True, eq=False)
class Added:
    """The nodes of all probes: constants, what stands directly behind each tensor, and what joins the vectors.

    And `instead` of nodes of the graph others.
    """

    first: Sequence[NodeProto]
    behind: Behind
    last: Sequence[NodeProto]
    instead: Instead


@dataclass(frozen=True, eq=False)
class Probed:
    """The probes of a model, the vectors to fetch from it, and where in them each number is.

    `prefix` begins the name of every tensor that a probe writes, and of no other. `carried` are to be fetched behind the
    vectors: tensors themselves. What native nodes tell may stand in `memory` instead, [number]; then one of them is a `token`
    that can be fetched, for a run has to give something.

    What is in memory and the vectors fetched, one behind the other, fall into segments: `starts` [segment] is where each
    begins. `quick` [tensor, QUICK] and `detailed` [tensor, DETAILED] are numbers of segments, each in the
    order of the tensors given; -1 for what a probe does not take. `counts` [tensor with a quick probe] are
    the numbers of elements, NaN where the probe tells them.
    """

    graph: Graph
    prefix: str
    added: Added
    fetches: tuple[str, ...]
    carried: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.float64]
    quick: npt.NDArray[np.int64]
    detailed: npt.NDArray[np.int64]
    memory: npt.NDArray[np.float64]
    token: str = ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """All that is to be fetched; nothing where the model's own outputs will do."""
        return (*self.fetches, *self.carried) or tuple(filter(None, (self.token,)))

    def build_model(self) -> onnx.ModelProto:
        """The model with the probes in it."""
        model = copy_shell(self.graph)
        self.declare(model)
        add_nodes(model, self.nodes())
        self.set_outputs(model)
        return model

    def nodes(self) -> list[NodeProto]:
        """Those of the model, with the probes among them."""
        nodes = interleave(self.graph, self.added.behind, self.added.instead)
        return [*self.added.first, *nodes, *self.added.last]

    def declare(self, model: onnx.ModelProto) -> None:
        """Let it hold the probes' operators."""
        behind = chain.from_iterable(self.added.behind.values())
        if self.added.instead or any(node.domain == DOMAIN for node in behind):
            declare_operators(model)

    def set_outputs(self, model: onnx.ModelProto) -> None:
        """Make the vectors its outputs. One behind which a probe stands is none any more: it would live to the end."""
        kept = [info for info in self.graph.model.graph.output if info.name not in self.added.behind]
        del model.graph.output[:]
        model.graph.output.extend(kept)
        mark_outputs(model, [*_updates(self.graph), *self.wanted])


def add_probes(
    graph: Graph,
    tensors: Sequence[str],
    how: Probing = _EACH_A_QUICK_ONE,
    carried: Sequence[str] = (),
    watches: Sequence[Watch] = (),
    instead: Instead = MappingProxyType({}),
) -> Probed:
    """A probe for each of `tensors`, which are in graph order; those `carried` leave the run as well (BF16 as float).

    `watches` stand in place of the probes of what they watch, other nodes `instead` of those of these labels.
    """
    prefix = free_prefix(graph, "range_probe_")
    statistics = dict(_find_statistics(graph, how)) if how.is_native else {}
    small = _find_small(graph, tensors, how, statistics)
    shared = dict(_share_probes(graph, small, watches, f"{prefix}group_"))
    looks = list(_find_looks(graph, tensors, how, {**statistics, **shared}, prefix))
    looks.sort(
        key=lambda look: graph.write_order.get(look.tensor, -1)
    )  # a Concat stands behind all that it joins
    memory = Memory()
    gatherings = _open_gatherings(looks, prefix, memory if how.in_memory else None)
    told, ends = _find_told(how, looks, small, watches, f"{prefix}ends_")
    made = dict(_make_watches(looks, watches, told, f"{prefix}watch_"))
    wide = widen_bf16(graph, carried, f"{prefix}carried_")
    behind = _put_behind(looks, made, wide, gatherings)
    last, fetches = _finish(gatherings.values())
    copies = dict(copy_native(graph, how.lasting))
    beside = [*chain(*behind.values()), *last]
    leave_unread(copies.values(), {*graph.consumers, *carried, *chain(*(node.input for node in beside))})
    told_here = _tell_in(memory, [*copies.values(), *chain(*behind.values())])
    added = Added([*_find_constants(looks, prefix), *ends], behind, last, {**copies, **instead})
    places = _find_places(tensors, how, looks, gatherings)
    return Probed(graph, prefix, added, fetches, name_fetches(carried, wide), *places, *told_here)


def _put_behind(
    looks: Iterable[_Look], made: dict[str, NodeProto], wide: Behind, gatherings: Gatherings
) -> dict[str, list[NodeProto]]:
    """What stands behind each tensor: its probe or out of `made` what is in place of one, what joins vectors, and what widens it."""
    behind = {look.tensor: [*_take_nodes(look, made), *_gather(look, gatherings)] for look in looks}
    for name, node in made.items():
        behind.setdefault(name, []).append(node)
    for name, nodes in wide.items():
        behind.setdefault(name, []).extend(nodes)
    return behind


def _find_constants(looks: Iterable[_Look], prefix: str) -> Iterable[NodeProto]:
    """Those that probes of ONNX's operators share."""
    rows = {look.rows for look in looks if isinstance(look, Probe) and not look.is_native}
    return shared_constants(prefix, sorted(rows)) if rows else ()


def _find_places(
    tensors: Sequence[str], how: Probing, looks: Iterable[_Look], gatherings: Gatherings
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Probed.starts, counts, quick and detailed."""
    starts, place_of = _locate(looks, gatherings)
    quick = [name for name in tensors if name not in how.detailed]
    full = [name for name in tensors if name in how.detailed]
    counts = np.array([how.count(name) for name in quick], np.float64)
    return starts, counts, _stack(place_of, quick, QUICK), _stack(place_of, full, DETAILED)


def _tell_in(memory: Memory, nodes: Iterable[NodeProto]) -> tuple[npt.NDArray[np.float64], str]:
    """Probed.memory and its token, where native ones of the nodes tell there; else nothing."""
    native = [node for node in nodes if node.domain == DOMAIN]
    token = native[-1].output[-1] if memory.lengths else ""
    return memory.tell_here(native, {token, *(name for node in native for name in node.input)}), token


def _find_told(
    how: Probing, looks: Iterable[_Look], small: Iterable[str], watches: Iterable[Watch], prefix: str
) -> tuple[dict[str, Told], list[NodeProto]]:
    """The statistics of what is watched, and the constants that are some where native probes tell none.

    None of what is `small`, or has the values of what is: there the watch itself looks.
    """
    probed = {look.tensor: look.statistics for look in looks if isinstance(look, Probe) and look.is_native}
    probed |= dict.fromkeys(small, "")
    names = dict.fromkeys(name for watch in watches for name in watch.reads)
    found = {name: find_told(how.sources, how.derivations, probed, name) for name in names}
    ends = dict.fromkeys(by for by, _ in found.values() if not isinstance(by, str))
    name_of: dict[str | Ends, str] = {one: f"{prefix}{i}" for i, one in enumerate(ends)}
    told = {name: Told(name_of.get(by, str(by)), scale) for name, (by, scale) in found.items()}
    return told, [make_statistics(name_of[one], one) for one in ends]


def _make_watches(
    looks: Iterable[_Look], watches: Iterable[Watch], told: Mapping[str, Told], prefix: str
) -> Iterator[tuple[str, NodeProto]]:
    """By the tensors of which they tell what a native probe does."""
    probes = {look.tensor: look for look in looks if isinstance(look, Probe) and look.is_one_node}
    for i, watch in enumerate(watches):
        probe = probes.get(watch.output)
        if probe is None:
            yield watch.output, watch.make_node(f"{prefix}{i}", told)
        else:
            yield watch.output, watch.make_node(probe.statistics, told, is_small=probe.is_small)


def _take_nodes(look: _Look, made: dict[str, NodeProto]) -> Iterable[NodeProto]:
    """Those of a probe, or out of `made` what stands in its place."""
    if isinstance(look, Probe) and look.is_one_node and look.tensor in made:
        return [made.pop(look.tensor)]
    return look.nodes()


def _find_small(graph: Graph, tensors: Iterable[str], how: Probing, told: Collection[str]) -> dict[str, int]:
    """Those that may share a probe, with their numbers of elements; of what is `told` already none does."""
    alike = {name for name in tensors if name not in told and how.may_share(graph, name)}
    return find_small(graph, alike) if alike else {}


def _share_probes(
    graph: Graph, small: Mapping[str, int], watches: Iterable[Watch], prefix: str
) -> Iterator[tuple[str, SharedProbe]]:
    """The small tensors with the probe that each shares, but those of which a watch tells."""
    watched = {watch.output for watch in watches}
    counts = {name: count for name, count in small.items() if name not in watched}
    for i, group in enumerate(group_small(graph, counts)):
        probe = SharedProbe(group, f"{prefix}{i}")
        yield from ((name, probe) for name in group)


def _find_looks(
    graph: Graph,
    tensors: Sequence[str],
    how: Probing,
    joint: Mapping[str, SharedProbe | Statistics],
    prefix: str,
) -> Iterator[_Look]:
    """A probe for each tensor, behind those what is `joint`: native nodes that tell of several."""
    for i, name in enumerate(tensors):
        if name not in joint:
            yield how.make_probe(graph, name, f"{prefix}{i}_", prefix)
    yield from dict.fromkeys(joint[name] for name in tensors if name in joint)


def _find_statistics(graph: Graph, how: Probing) -> Iterator[tuple[str, Statistics]]:
    """Tensors to get a native probe of which a native node of the graph tells already."""
    for node in graph.nodes:
        if node.domain == DOMAIN:
            *outputs, told = node.outputs
            source = _find_source(graph, how.sources, node.inputs[0])
            is_told = node.op_type in LOOKS_AT_ALL and source not in how.alone
            names = [*outputs, source if is_told else ""]
            found = Statistics(told, tuple("" if name in how.small else name for name in names))
            yield from ((name, found) for name in found.tensors if name in how.detailed)


def _find_source(graph: Graph, sources: Mapping[str, str], read: str) -> str:
    """The tensor whose values a native node reads: that of a node's, or it in the shape that an expression gave it."""
    producer = graph.producers.get(read)
    if read not in sources and producer is not None and producer.standard_op in ("Flatten", "Reshape"):
        read = producer.inputs[0]
    return sources.get(read, read)


def _stack(
    place_of: Mapping[str, Sequence[int]], tensors: Sequence[str], words: Sequence[str]
) -> npt.NDArray[np.int64]:
    return np.array([place_of[name] for name in tensors], np.int64).reshape(-1, len(words))


def _finish(gatherings: Iterable[Gathering | Memory]) -> tuple[list[NodeProto], tuple[str, ...]]:
    """The nodes that join what is left, and the outputs that hold everything."""
    finished = [gathering.finish() for gathering in gatherings]
    nodes = [node for found, _ in finished for node in found]
    return nodes, tuple(output for _, outputs in finished for output in outputs)


def _open_gatherings(looks: Iterable[_Look], prefix: str, memory: Memory | None) -> Gatherings:
    """What joins the vectors, by kind; those of native nodes come first, in `memory` where there is one."""
    kinds = dict.fromkeys(kind for look in looks for _, kind, _ in look.vectors)
    others = {kind: Gathering(f"{prefix}all_{kind}_") for kind in kinds if memory is None or kind != ALL}
    return others if memory is None or ALL not in kinds else {ALL: memory, **others}


def _gather(look: _Look, gatherings: Gatherings) -> Iterator[NodeProto]:
    for vector, kind, lengths in look.vectors:
        yield from gatherings[kind].add(vector, lengths)


def _locate(
    looks: Iterable[_Look], gatherings: Gatherings
) -> tuple[npt.NDArray[np.int64], dict[str, list[int]]]:
    """Probed.starts, and the segments of each tensor: vectors come in turn, kind by kind."""
    lengths = [length for gathering in gatherings.values() for length in gathering.lengths]
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0)
    counts = [len(gathering.lengths) for gathering in gatherings.values()]  # of segments
    free = dict(zip(gatherings, accumulate(counts, initial=0), strict=False))  # behind the last is none
    found: dict[str, list[int]] = {}
    for look in looks:
        places: list[int] = []
        for _, kind, segments in look.vectors:
            places += range(free[kind], free[kind] + len(segments))
            free[kind] += len(segments)
        found.update(look.share(places))
    return starts.astype(np.int64), found


def _updates(graph: Graph) -> Iterator[str]:
    """The running statistics of BatchNormalization in training: written into its inputs, but for outputs."""
    for node in graph.nodes:
        if node.op_type == "BatchNormalization":
            yield from filter(None, node.outputs[1:])

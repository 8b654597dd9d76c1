"""The model as a scan runs it: with probes behind its tensors, or with its tensors marked as outputs.

A probe stands directly behind its tensor's producer. With ONNX Runtime's priority-based order it
then runs there too, so that a tensor lives no longer than in a plain run; only scalars leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph, Node, all_names
from overflow_fixer.ranges.gathering import Gathering
from overflow_fixer.ranges.probes import DETAILED, QUICK, Probe, shared_constants, widen
from overflow_fixer.references import copy_shell
from overflow_fixer.sessions import mark_outputs

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_ORT_CAST = "InsertedPrecisionFreeCast_"

_Behind = Mapping[str, Sequence[NodeProto]]
"""The nodes that stand directly behind a tensor's producer."""


@dataclass(frozen=True, eq=False)
class Probed:
    """A model with probes, the vectors to fetch from it, and where in them each scalar is.

    `quick` is [tensor, QUICK] and `detailed` [tensor, DETAILED], each in the order of the tensors
    given: positions in the vectors fetched, one behind the other.
    """

    model: onnx.ModelProto
    fetches: tuple[str, ...]
    quick: npt.NDArray[np.int64]
    detailed: npt.NDArray[np.int64]


def add_probes(graph: Graph, tensors: Sequence[str], detailed: Collection[str]) -> Probed:
    """The graph with a probe behind each of `tensors`, which are in graph order; some are detailed.

    An output that has a probe is no output any more: nobody fetches it, and it would live to the end.
    """
    prefix = _free_prefix(graph)
    probes = [
        Probe(name, graph.dtypes[name], f"{prefix}{i}_", prefix, name in detailed)
        for i, name in enumerate(tensors)
    ]
    gatherings = {kind: Gathering(f"{prefix}all_{kind}_") for kind in dict.fromkeys(_scalar_types(probes))}
    behind = {probe.tensor: [*probe.nodes(), *_gather(probe, gatherings)] for probe in probes}
    model = copy_shell(graph)
    model.graph.node.extend(chain(shared_constants(prefix), _interleave(graph, behind)))
    model.graph.output.extend(info for info in graph.model.graph.output if info.name not in behind)
    fetches = []
    for gathering in gatherings.values():
        nodes, outputs = gathering.finish()
        model.graph.node.extend(nodes)
        fetches += outputs
    mark_outputs(model, [*_updates(graph), *fetches])
    return Probed(model, tuple(fetches), *_positions(probes, gatherings.values()))


def mark_tensors(graph: Graph, tensors: Sequence[str]) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The graph with each of `tensors` marked as an output, and the name to fetch each by.

    BF16, which cannot come to numpy, is fetched through a Cast to float.
    """
    prefix = _free_prefix(graph)
    is_bf16 = [graph.dtypes[name] == TensorProto.BFLOAT16 for name in tensors]
    behind = {name: list(widen(name, f"{prefix}{i}_")) for i, name in enumerate(tensors) if is_bf16[i]}
    fetches = tuple(behind[name][-1].output[0] if name in behind else name for name in tensors)
    model = copy_shell(graph)
    model.graph.node.extend(_interleave(graph, behind))
    model.graph.output.extend(graph.model.graph.output)
    mark_outputs(model, list(dict.fromkeys((*tensors, *fetches))))
    return model, fetches


def _scalar_types(probes: Iterable[Probe]) -> Iterator[int]:
    return (kind for probe in probes for kind in probe.scalar_types)


def _gather(probe: Probe, gatherings: Mapping[int, Gathering]) -> Iterator[NodeProto]:
    for scalar, kind in zip(probe.scalars, probe.scalar_types, strict=True):
        yield from gatherings[kind].add(scalar)


def _positions(
    probes: Iterable[Probe], gatherings: Iterable[Gathering]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Probed.quick and Probed.detailed."""
    scalars = chain.from_iterable(gathering.scalars for gathering in gatherings)
    position = {scalar: i for i, scalar in enumerate(scalars)}
    quick = [[position[scalar] for scalar in probe.scalars] for probe in probes if not probe.is_detailed]
    detailed = [[position[scalar] for scalar in probe.scalars] for probe in probes if probe.is_detailed]
    return (
        np.array(quick, np.int64).reshape(-1, len(QUICK)),
        np.array(detailed, np.int64).reshape(-1, len(DETAILED)),
    )


def _interleave(graph: Graph, behind: _Behind) -> Iterator[NodeProto]:
    """The graph's nodes, each followed by the nodes that stand behind its outputs; inputs first."""
    for spec in graph.inputs:
        yield from behind.get(spec.name, ())
    for node in graph.nodes:
        yield _read_rounded(graph, node, behind)
        for name in node.writes:
            yield from behind.get(name, ())


def _read_rounded(graph: Graph, node: Node, behind: _Behind) -> NodeProto:
    """The node; a Cast of an FP16 tensor to float reads the Identity of the tensor's probe instead.

    ONNX Runtime drops a Cast to float behind its own Cast to FP16, so the values were never rounded,
    except where the tensors are outputs. Behind one of the model's own Casts it drops nothing.
    """
    if not _is_widening(graph, node) or not behind.get(node.inputs[0]):
        return node.proto
    producer = graph.producers.get(node.inputs[0])
    if producer is None or (_is_plain_cast(producer) and _is_plain_cast(node)):
        return node.proto
    copy = NodeProto()
    copy.CopyFrom(node.proto)
    copy.input[0] = behind[node.inputs[0]][0].output[0]
    return copy


def _is_widening(graph: Graph, node: Node) -> bool:
    to = node.attribute("to") if node.op_type == "Cast" else None
    return to is not None and to.i == TensorProto.FLOAT and graph.dtypes.get(node.inputs[0]) in _NARROW


def _updates(graph: Graph) -> Iterator[str]:
    """The running statistics of BatchNormalization in training: written into its inputs, but for outputs."""
    for node in graph.nodes:
        if node.op_type == "BatchNormalization":
            yield from filter(None, node.outputs[1:])


def _is_plain_cast(node: Node) -> bool:
    """Whether it is a Cast, and not one that ONNX Runtime, by its name, takes for its own."""
    return node.op_type == "Cast" and not node.proto.name.startswith(_ORT_CAST)


def _free_prefix(graph: Graph) -> str:
    """A prefix that no name in the model has, bodies included."""
    prefix = "range_probe_"
    taken = [name for name in all_names(graph.model.graph) if name.lstrip("_").startswith(prefix)]
    while any(name.startswith(prefix) for name in taken):
        prefix = "_" + prefix
    return prefix

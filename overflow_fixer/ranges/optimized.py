"""A model as ONNX Runtime's optimiser leaves it, with probes, so that a scan runs at the speed of inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import not_
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import bodies, captures
from overflow_fixer.ranges.blocks import Layouts, is_reorder, lay_out, probe_blocks
from overflow_fixer.ranges.fetched import mark_tensors
from overflow_fixer.ranges.instrument import Probed
from overflow_fixer.ranges.interleaving import Behind
from overflow_fixer.ranges.kept_weights import put_back, set_aside
from overflow_fixer.sessions.session import save_optimized

_ADD_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})


def has_faster_kernels(graph: Graph) -> bool:
    """Whether the optimiser finds other kernels for much of what is observed: those of convolutions of float32.

    It fuses nothing over a tensor that is observed, and has no others for products of matrices; where there are as many
    of those, opening the model twice is all that comes of it, and a quantized convolution has faster ones only where it is
    fused. In FP16 it would drop roundings.
    """
    is_narrow = {TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(graph.dtypes.values())
    products = (node for node in graph.nodes if node.standard_op in _ADD_PRODUCTS)
    found = Counter(
        node.op_type for node in products if _computes_float(graph, node) and not _is_quantized(graph, node)
    )
    return not is_narrow and found["Conv"] > found["MatMul"] + found["Gemm"]


def optimize_probed(probed: Probed, work: Path) -> tuple[onnx.ModelProto, Path]:
    """The optimised model with the probes, and the folder in which it finds its weights, some of them in files in `work`.

    Values differ by rounding alone. The model is to be run as it stands, with optimisation off. Raises ModelError when
    ONNX Runtime refuses it.
    """
    graph, behind = probed.graph, probed.added.behind
    marked, _ = mark_tensors(graph, list(dict.fromkeys((*behind, *probed.carried))))
    weights = set_aside(marked, graph)
    path = work / "optimized.onnx"
    save_optimized(marked, graph.folder, path)
    model: onnx.ModelProto = onnx.load(path, load_external_data=False)
    folder = put_back(model, weights, graph.folder, work)
    probed.declare(model)
    probed.set_outputs(model)
    kept = {info.name for info in model.graph.output}
    layouts = lay_out(model.graph, probed.prefix)
    nodes = list(_interleave(list(model.graph.node), behind, kept, layouts))
    first = chain(probed.added.first, filter(None, layouts.values()))
    ordered = onnx.GraphProto(node=chain(first, nodes, probed.added.last))
    del model.graph.node[:]
    model.graph.node.extend(ordered.node)
    return model, folder


def _computes_float(graph: Graph, node: Node) -> bool:
    return any(graph.dtypes.get(name) == TensorProto.FLOAT for name in node.writes)


def _is_quantized(graph: Graph, node: Node) -> bool:
    """Whether it is a convolution of what was an integer before."""
    writer = graph.producers.get(node.inputs[0])
    return node.op_type == "Conv" and writer is not None and writer.standard_op == "DequantizeLinear"


def _interleave(
    nodes: Sequence[NodeProto],
    behind: Behind,
    kept: Iterable[str],
    layouts: Layouts,
) -> Iterator[NodeProto]:
    """The nodes, each followed by the probes of what it writes; the probes of what no node writes come first.

    A reorder that only probes need stands directly behind what it reorders, or is left out.
    """
    captured = (name for node in nodes for body in bodies(node) for name in captures(body))
    read = {name for node in nodes for name in node.input}.union(captured, kept)
    is_leaf = [is_reorder(node) and node.output[0] not in read for node in nodes]
    reorders: dict[str, list[NodeProto]] = {}
    for node in compress(nodes, is_leaf):
        reorders.setdefault(node.input[0], []).append(node)
    written = {name for node in nodes for name in node.output}
    yield from chain.from_iterable(probes for tensor, probes in behind.items() if tensor not in written)
    for node in compress(nodes, map(not_, is_leaf)):
        yield node
        for name in node.output:
            yield from behind.get(name, ())
            for reorder in reorders.get(name, ()):
                yield from probe_blocks(reorder, behind[reorder.output[0]], layouts)

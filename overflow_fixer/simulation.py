"""A typed model run as FP16 hardware would store it.

ONNX Runtime's CPU kernels compute FP16 graphs in FP32 without rounding in between, so an overflow
does not show there. Here each FP16 tensor is computed in FP32 from rounded inputs and then rounded to
FP16, with overflow to infinity, before anything reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from overflow_fixer.graph import Graph, Node, all_names, bodies

_NO_TWIN = frozenset(
    {
        "BitCast",
        "Cast",
        "Constant",
        "ConstantOfShape",
        "EyeLike",
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators that run as they stand: their output type is an attribute, or they read bits."""


def simulate(graph: Graph) -> onnx.ModelProto:
    """The model with every FP16 node replaced by its FP32 twin between roundings to FP16.

    A tensor `t` that is FP16 in the model keeps its name and type and holds the rounded value:
    `t = Cast(twin output, FLOAT16)`; readers that compute take `Cast(t, FLOAT)`, which is exact. So
    weights, constants, inputs and outputs are the artifact's own bits. NaN stays NaN, -0 stays -0.
    Control flow, sequences and operators of other domains run as they stand; a Cast from float64
    rounds to FP32 first. The model is to be run with optimisation off.
    """
    simulation = _Simulation(graph)
    for node in graph.nodes:
        simulation.add(node)
    return simulation.model()


def find_unsimulated(graph: Graph) -> Iterator[Node]:
    """The nodes that compute in FP16 where no rounding is simulated: in bodies, and of other domains."""
    for node in graph.nodes:
        reads_half = any(
            graph.dtypes.get(name) == TensorProto.FLOAT16 for name in (*node.reads, *node.writes)
        )
        if any(_holds_half(body) for body in bodies(node.proto)) or (
            reads_half and node.domain not in ("", "ai.onnx")
        ):
            yield node


def _holds_half(graph: onnx.GraphProto) -> bool:
    """Whether a body casts to FP16 or has an FP16 constant or input, at any depth."""
    if any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer):
        return True
    infos = (*graph.input, *graph.output, *graph.value_info)
    if any(info.type.tensor_type.elem_type == TensorProto.FLOAT16 for info in infos):
        return True
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    values = (a.t.data_type for node in graph.node for a in node.attribute if a.HasField("t"))
    inner = (body for node in graph.node for body in bodies(node))
    return TensorProto.FLOAT16 in (*casts, *values) or any(_holds_half(body) for body in inner)


@dataclass
class _Simulation:
    graph: Graph
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    wide: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taken = set(all_names(self.graph.model.graph))

    def add(self, node: Node) -> None:
        if self._is_twinnable(node):
            self._add_twin(node)
        else:
            self.nodes.append(node.proto)

    def model(self) -> onnx.ModelProto:
        source = self.graph.model
        model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
        model.graph.name = source.graph.name or "graph"
        model.graph.node.extend(self.nodes)
        model.graph.input.extend(source.graph.input)
        model.graph.output.extend(source.graph.output)
        model.graph.initializer.extend(source.graph.initializer)
        model.graph.sparse_initializer.extend(source.graph.sparse_initializer)
        return model

    def _add_twin(self, node: Node) -> None:
        halves = {name for name in node.writes if self._is_half(name)}
        twin = onnx.NodeProto()
        twin.CopyFrom(node.proto)
        twin.input[:] = [self._widened(name) for name in node.inputs]
        raw = {name: self._fresh(f"{name}__raw") for name in halves}
        twin.output[:] = [raw.get(name, name) for name in node.outputs]
        self.nodes.append(twin)
        self.nodes.extend(_cast(raw[name], name, TensorProto.FLOAT16) for name in node.writes if name in raw)

    def _widened(self, name: str) -> str:
        """The FP32 view of an FP16 tensor, made once, in front of its first reader; others as they are."""
        if not self._is_half(name):
            return name
        if name not in self.wide:
            self.wide[name] = self._fresh(f"{name}__wide")
            self.nodes.append(_cast(name, self.wide[name], TensorProto.FLOAT))
        return self.wide[name]

    def _is_twinnable(self, node: Node) -> bool:
        """Whether the node has an FP32 twin: a standard operator on plain tensors that touches FP16."""
        names = (*node.reads, *node.writes)
        return (
            any(self._is_half(name) for name in names)
            and all(name in self.graph.dtypes for name in names)
            and node.domain in ("", "ai.onnx")
            and node.op_type not in _NO_TWIN
            and not any(True for _ in bodies(node.proto))
        )

    def _is_half(self, name: str) -> bool:
        return self.graph.dtypes.get(name) == TensorProto.FLOAT16

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _cast(source: str, target: str, elem_type: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=elem_type)

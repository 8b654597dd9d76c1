"""A typed model run as FP16 hardware would store it.

ONNX Runtime's CPU kernels compute FP16 graphs in FP32 without rounding in between, so an overflow
does not show there. Here each FP16 tensor is computed in FP32 from rounded inputs and then rounded to
FP16, with overflow to infinity, before anything reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import all_names, bodies
from overflow_fixer.native import DOMAIN, declare_operators
from overflow_fixer.simulation.sigmoids import GivenSigmoids

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

_EXACT = frozenset(
    """Identity Reshape Transpose Squeeze Unsqueeze Flatten Expand Tile Slice Gather GatherND GatherElements
    Split Concat DepthToSpace SpaceToDepth Compress ReverseSequence Trilu Pad
    Relu Abs Neg Max Min Where Clip""".split()
)
"""Operators that move, select or negate. Not MaxPool: of NaN alone its kernel makes -3.4e38."""

_FLOAT_ATTRIBUTES = frozenset({AttributeProto.FLOAT, AttributeProto.FLOATS})

_SMALL_ELEMENTS = 4096
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
_LEAST_IR_VERSION = 4
"""From here on, an initializer that is an input too is not taken for a constant."""


def simulate(graph: Graph, extra_outputs: Sequence[str] = (), is_native: bool = False) -> onnx.ModelProto:
    """The model with every FP16 node replaced by its FP32 twin between roundings to FP16.

    What a twin computes is rounded, `t = Cast(twin output, FLOAT16)`, and read back by those that compute
    as `Cast(t, FLOAT)`, which is exact. An operator that only moves or selects what it reads gives FP16
    values already, so its output is not rounded again; small constants are widened here, exactly. So
    weights, constants, inputs and outputs are the artifact's own bits. NaN stays NaN, -0 stays -0.
    Control flow, sequences and operators of other domains run as they stand; a Cast from float64
    rounds to FP32 first. Sigmoids that are given out are written out, as in the reference. The model is to be run with optimisation off.

    extra_outputs: inner tensors that become outputs too. Each has its name and type in the model.
    is_native: one operator of overflow_fixer.native does what the two Casts do, to the bit.
    """
    simulation = _Simulation(graph, is_native)
    for node in graph.run_order:
        simulation.add(node)
    return simulation.finish(extra_outputs)


def is_small_constant(graph: Graph, tensor: str) -> bool:
    """Whether a tensor is a constant of which another copy costs next to nothing."""
    found = graph.constants.get(tensor)
    return found is not None and math.prod(found.dims) <= _SMALL_ELEMENTS


def find_unsimulated(graph: Graph) -> Iterator[Node]:
    """The nodes that compute in FP16 where no rounding is simulated: in bodies, and of other domains."""
    halves = {name for name, elem_type in graph.dtypes.items() if elem_type == TensorProto.FLOAT16}
    for node in graph.nodes:
        inner = bodies(node.proto)
        is_opaque = bool(inner) or not node.is_standard
        if (is_opaque and not halves.isdisjoint((*node.inputs, *node.outputs))) or any(
            _holds_half(body, halves) for body in inner
        ):
            yield node


def _holds_half(graph: onnx.GraphProto, halves: Set[str]) -> bool:
    """Whether a body casts to FP16, has an FP16 constant or input, or reads one of the outer tensors `halves`, at any depth.

    A Cast of one of those, from FP16 then, computes nothing in it.
    """
    if any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer):
        return True
    infos = (*graph.input, *graph.output, *graph.value_info)
    if any(info.type.tensor_type.elem_type == TensorProto.FLOAT16 for info in infos):
        return True
    if any(node.op_type != "Cast" and not halves.isdisjoint(node.input) for node in graph.node):
        return True
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    values = (a.t.data_type for node in graph.node for a in node.attribute if a.HasField("t"))
    inner = (body for node in graph.node for body in bodies(node))
    return TensorProto.FLOAT16 in (*casts, *values) or any(_holds_half(body, halves) for body in inner)


@dataclass
class _Simulation:
    """The nodes so far. An FP16 tensor is there in FP16 under its own name, in FP32 under another, or both."""

    graph: Graph
    is_native: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    """The tensors that are there in FP16."""
    wide: dict[str, str] = field(default_factory=dict)
    """The FP32 views of FP16 tensors."""
    widened: list[onnx.TensorProto] = field(default_factory=list)
    """The views that are constants."""
    unpacked: set[str] = field(default_factory=set)
    """Those of them that a kernel could pack when it is made: packed weights are added up in another order."""

    def __post_init__(self) -> None:
        self.taken = set(all_names(self.graph.model.graph))
        self.stored.update(info.name for info in self.graph.model.graph.input)
        self.stored -= set(self.graph.initializers)
        self.given_sigmoids = GivenSigmoids(self.graph, (TensorProto.FLOAT, TensorProto.FLOAT16))

    def add(self, node: Node) -> None:
        if node.op_type == "Constant" and self._is_half(node.outputs[0]):
            return  # it is added where it is read
        if self._is_widening(node):
            self._add_widening(node)
        elif self._is_narrowing(node):
            self._round(node.inputs[0], node.outputs[0])
        elif self._is_twinnable(node):
            self._add_twin(node)
        else:
            self._add_as_it_stands(node)

    def finish(self, extra_outputs: Sequence[str]) -> onnx.ModelProto:
        self.graph.check_unchanged()
        for name in (*self.graph.outputs, *extra_outputs):
            self._store(name)
        source = self.graph.model
        version = max(source.ir_version, _LEAST_IR_VERSION)
        model = onnx.ModelProto(ir_version=version, opset_import=source.opset_import)
        model.graph.name = source.graph.name or "graph"
        model.graph.node.extend(self.nodes)
        model.graph.input.extend(self._inputs())
        model.graph.output.extend(source.graph.output)
        model.graph.output.extend(map(self._describe_output, self._added(extra_outputs)))
        model.graph.initializer.extend(self._initializers())
        if self.is_native:
            declare_operators(model)
        return model

    def _inputs(self) -> Iterator[onnx.ValueInfoProto]:
        for info in self.graph.model.graph.input:
            if info.name not in self.graph.initializers:
                yield info
        for tensor in self.widened:
            if tensor.name in self.unpacked:
                yield onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))

    def _initializers(self) -> Iterator[onnx.TensorProto]:
        for tensor in self.graph.model.graph.initializer:
            if not self._is_half(tensor.name) or tensor.name in self.stored:
                yield tensor
        yield from self.widened

    def _added(self, extra_outputs: Sequence[str]) -> list[str]:
        given = set(self.graph.outputs)
        return [name for name in dict.fromkeys(extra_outputs) if name not in given]

    def _add_as_it_stands(self, node: Node) -> None:
        for name in node.reads:
            self._store(name)
        self.nodes.extend(self.given_sigmoids.compute(node, node.proto))
        self.stored.update(node.writes)

    def _add_widening(self, node: Node) -> None:
        """The model's own Cast to FP32 is the view, gives it, or repeats it."""
        source, target = node.inputs[0], node.outputs[0]
        if self.wide.get(source) == target:
            return
        if source in self.wide:
            self.nodes.append(onnx.helper.make_node("Identity", [self.wide[source]], [target]))
        else:
            self._add_as_it_stands(node)
            self.wide[source] = target

    def _add_twin(self, node: Node) -> None:
        halves = [name for name in node.writes if self._is_half(name)]
        is_exact = _is_exact(node)
        results = {
            name: self._name_view(name) if is_exact else self._fresh(f"{name}__raw") for name in halves
        }
        twin = onnx.NodeProto()
        twin.CopyFrom(node.proto)
        twin.input[:] = [self._widen(name) for name in node.inputs]
        twin.output[:] = [results.get(name, name) for name in node.outputs]
        self.nodes.extend(self.given_sigmoids.compute(node, twin))
        if is_exact:
            self.wide.update(results)
            return
        for name in halves:
            self._round(results[name], name)

    def _round(self, source: str, name: str) -> None:
        """Append what rounds a tensor in FP32 to the FP16 tensor of that name."""
        if self.is_native:
            self.wide[name] = self._name_view(name)
            self.nodes.append(
                onnx.helper.make_node("RoundToHalf", [source], [self.wide[name]], domain=DOMAIN)
            )
        else:
            self.nodes.append(_cast(source, name, TensorProto.FLOAT16))
            self.stored.add(name)

    def _name_view(self, name: str) -> str:
        """As the first of the model's own Casts to FP32 has it, where there is one."""
        own = (node.outputs[0] for node in self.graph.consumers.get(name, ()) if self._is_widening(node))
        return next(own, None) or self._fresh(f"{name}__wide")

    def _store(self, name: str) -> None:
        """See to it that a tensor is there in FP16, if that is its type."""
        if not self._is_half(name) or name in self.stored:
            return
        if name in self.graph.producers and self._is_constant(name):
            self.nodes.append(self.graph.producers[name].proto)
        elif name in self.wide and not self._is_constant(name):
            self.nodes.append(_cast(self.wide[name], name, TensorProto.FLOAT16))
        self.stored.add(name)

    def _widen(self, name: str) -> str:
        """The FP32 view of an FP16 tensor, made once, in front of its first reader; others as they are."""
        if not self._is_half(name) or name in self.wide:
            return self.wide.get(name, name)
        self.wide[name] = view = self._fresh(f"{name}__wide")
        if is_small_constant(self.graph, name):
            self._add_widened(name, view)
        else:
            self._store(name)
            self.nodes.append(_cast(name, view, TensorProto.FLOAT))
        return view

    def _add_widened(self, name: str, view: str) -> None:
        value = self.graph.read_constant(name)
        self.widened.append(onnx.numpy_helper.from_array(value.astype(np.float32), view))
        if any(reader.op_type not in _ELEMENTWISE for reader in self.graph.consumers[name]):
            self.unpacked.add(view)

    def _is_widening(self, node: Node) -> bool:
        is_cast = node.op_type == "Cast" and node.is_standard and self._is_half(node.inputs[0])
        return is_cast and self.graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT

    def _is_narrowing(self, node: Node) -> bool:
        is_cast = node.op_type == "Cast" and node.is_standard and self._is_half(node.outputs[0])
        return is_cast and self.graph.dtypes.get(node.inputs[0]) == TensorProto.FLOAT

    def _is_twinnable(self, node: Node) -> bool:
        """Whether the node has an FP32 twin: a standard operator on plain tensors that touches FP16.

        One that looks up rows of a constant has none: it would widen all of them.
        """
        names = (*node.reads, *node.writes)
        return (
            any(self._is_half(name) for name in names)
            and all(name in self.graph.dtypes for name in names)
            and node.is_standard
            and node.op_type not in _NO_TWIN
            and not (node.op_type == "Gather" and self._is_constant(node.inputs[0]))
            and not bodies(node.proto)
        )

    def _describe_output(self, name: str) -> onnx.ValueInfoProto:
        """With its type, where it is known: ONNX Runtime opens a model of many outputs in half the time then."""
        dtype = self.graph.dtypes.get(name)
        if dtype is None:
            return onnx.ValueInfoProto(name=name)
        return onnx.helper.make_tensor_value_info(name, dtype, None)

    def _is_constant(self, name: str) -> bool:
        return name in self.graph.constants

    def _is_half(self, name: str) -> bool:
        return self.graph.dtypes.get(name) == TensorProto.FLOAT16

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _is_exact(node: Node) -> bool:
    """Whether each value that the twin writes is one that it read, or its negative, or zero."""
    has_float_attribute = any(attribute.type in _FLOAT_ATTRIBUTES for attribute in node.proto.attribute)
    is_open = node.op_type == "Clip" and sum(1 for _ in node.reads) < 3  # of the widest FP32 values then
    return node.op_type in _EXACT and not has_float_attribute and not is_open


def _cast(source: str, target: str, elem_type: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=elem_type)

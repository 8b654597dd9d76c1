"""The model rewritten to an assignment of types: Casts where types meet, constants converted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx.assignment import FLOAT, FLOAT16, Assignment, read_type
from overflow_fixer.backends.mixed_onnx.editor import Editor
from overflow_fixer.backends.mixed_onnx.fusion_guards import find_guarded_scales
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.tensor_types import dims_of
from overflow_fixer.model_file.subgraphs import all_names
from overflow_fixer.records import Dim, is_fixed

_SUFFIXES = {FLOAT: "__fp32", FLOAT16: "__fp16"}


@dataclass(frozen=True)
class TypedModel:
    """A typed model whose FP16 initializers are still without data.

    `sources` maps each FP16 initializer to the constant of the original model it is rounded from.
    """

    model: onnx.ModelProto
    sources: dict[str, str]
    cast_count: int


def rewrite(graph: Graph, assignment: Assignment) -> TypedModel:
    """Rewrite in one walk over the nodes, in time linear in the model.

    One Cast per tensor and direction, shared by its readers; existing Casts are retargeted, or Identities where
    they change no type any more; a constant read in both types exists twice, else once. Bodies of control flow read FP32.
    """
    rewriter = _Rewriter(graph, assignment)
    rewriter.walk()
    rewriter.settle_constants()
    sources = {tensor.name: name for name, tensor in rewriter.halves.items()}
    model = rewriter.editor.close(rewriter.nodes, rewriter.initializers())
    model.ir_version = max(model.ir_version, 4)
    _declare_types(graph, rewriter, model)
    return TypedModel(model, sources, rewriter.cast_count)


@dataclass
class _Rewriter:
    """`views` are Casts' outputs by tensor and type, `halves` the FP16 copies of constants by name."""

    graph: Graph
    assignment: Assignment
    nodes: list[gs.Node] = field(default_factory=list)
    views: dict[tuple[str, int], gs.Variable] = field(default_factory=dict)
    halves: dict[str, gs.Variable] = field(default_factory=dict)
    read_in_fp32: set[str] = field(default_factory=set)
    new_types: dict[str, tuple[int, str]] = field(default_factory=dict)
    cast_count: int = 0

    def __post_init__(self) -> None:
        self.editor = Editor(self.graph)
        self.tensors = self.editor.tensors
        self.taken = set(all_names(self.graph.model.graph))

    def walk(self) -> None:
        """Wire every node to the types it reads, each Cast in front of its first reader."""
        outputs = self._split_outputs()
        for node, edited in zip(self.graph.nodes, self.editor.nodes, strict=True):
            compute = self.assignment.compute.get(node.label)
            if compute is not None:
                self._wire(node, edited, compute)
            if compute == FLOAT16:
                self._retarget(node, edited)
            self.nodes.append(edited)
            for name in node.writes:
                if name in outputs:
                    self._append_cast(self.tensors[name], outputs[name], self.assignment.io_type)

    def settle_constants(self) -> None:
        """Drop constants that are read in FP16 alone; their FP16 copies take their names."""
        given_out = [name for name in self.graph.outputs if self._is_float_constant(name)]
        for name in given_out:
            self._view(name, self.assignment.io_type)
        for name, half in self.halves.items():
            if name in self.read_in_fp32 and name in given_out and self.assignment.io_type == FLOAT16:
                self.tensors[name].name = self._fresh(name, FLOAT)
                self.new_types[self.tensors[name].name] = (FLOAT, name)
            if name not in self.read_in_fp32 or self.tensors[name].name != name:
                half.name = name
        producers = self.graph.producers
        unread = (producers[name].index for name in self._unread() if name in producers)
        dropped = {id(self.editor.nodes[index]) for index in unread}
        self.nodes = [node for node in self.nodes if id(node) not in dropped]

    def initializers(self) -> Iterator[TensorProto]:
        """The constants that are still read, then the FP16 ones, without their data."""
        unread = self._unread()
        leading = dict.fromkeys(find_guarded_scales(self.graph, self.assignment), (1,))
        for name, tensor in self.graph.initializers.items():
            if name not in unread:
                kept = TensorProto()
                kept.CopyFrom(tensor)
                kept.name = self.tensors[name].name
                kept.dims[:] = (*leading.get(name, ()), *tensor.dims)
                yield kept
        for name, half in self.halves.items():
            dims = (*leading.get(name, ()), *self.graph.constants[name].dims)
            yield TensorProto(name=half.name, data_type=FLOAT16, dims=dims)

    def _unread(self) -> set[str]:
        return self.halves.keys() - self.read_in_fp32

    def _wire(self, node: Node, edited: gs.Node, compute: int) -> None:
        for slot, name in enumerate((*node.inputs, *node.captured)):
            if self.graph.dtypes.get(name) == FLOAT:
                view = self._view(name, read_type(self.graph, node, slot, compute))
                # A plain list write: GraphSurgeon's own looks for the node among the tensor's
                # readers, comparing node by node, which is quadratic in the readers.
                list.__setitem__(edited.inputs, slot, view)

    def _retarget(self, node: Node, edited: gs.Node) -> None:
        """Give FP16 to the attribute that types the output of a Cast or a ConstantOfShape.

        A Cast from FP16 to FP16, the model's own to FP16 too, becomes an Identity: ONNX Runtime up to 1.23 refuses it with
        optimisation off.
        """
        if node.op_type == "Cast" and self.graph.dtypes.get(node.outputs[0]) in (FLOAT, FLOAT16):
            if self._type_read(node.inputs[0]) == FLOAT16:
                edited.op, edited.attrs = "Identity", {}
            else:
                edited.attrs["to"] = FLOAT16
        elif node.op_type == "ConstantOfShape":
            attribute = node.attribute("value")
            value = np.zeros(1, np.float32) if attribute is None else onnx.numpy_helper.to_array(attribute.t)
            edited.attrs["value"] = gs.Constant("value", round_to_fp16(value))

    def _type_read(self, name: str) -> int | None:
        """Of what a Cast reads, which is as it is stored."""
        if self._is_float_constant(name):
            return FLOAT
        return self.assignment.stored.get(name, self.graph.dtypes.get(name))

    def _view(self, name: str, wanted: int | None) -> gs.Variable:
        """The tensor `name` in type `wanted` (None: as stored): itself, its one Cast, or its FP16 copy."""
        if self._is_float_constant(name):
            return self._view_constant(name, wanted)
        if wanted is None or self.assignment.stored[name] == wanted:
            return self.tensors[name]
        if (name, wanted) not in self.views:
            cast = gs.Variable(self._fresh(name, wanted))
            self.views[name, wanted] = cast
            self.new_types[cast.name] = (wanted, name)
            self._append_cast(self.tensors[name], cast, wanted)
        return self.views[name, wanted]

    def _view_constant(self, name: str, wanted: int | None) -> gs.Variable:
        if wanted != FLOAT16:
            self.read_in_fp32.add(name)
            return self.tensors[name]
        if name not in self.halves:
            self.halves[name] = gs.Variable(self._fresh(name, FLOAT16))
        return self.halves[name]

    def _is_float_constant(self, name: str) -> bool:
        return name in self.graph.constants and self.graph.dtypes.get(name) == FLOAT

    def _append_cast(self, source: gs.Variable, target: gs.Variable, elem_type: int) -> None:
        name = self._fresh(f"Cast_{source.name}", elem_type)
        self.nodes.append(gs.Node("Cast", name, {"to": elem_type}, [source], [target]))
        self.cast_count += 1

    def _split_outputs(self) -> dict[str, gs.Variable]:
        """Rename graph outputs that are not stored in their declared type; a Cast takes their name."""
        split = {}
        declared = self.assignment.io_type
        for name in self.graph.outputs:
            stored = self.assignment.stored.get(name)
            if name not in self.graph.producers or stored is None or stored == declared:
                continue
            inner = self.tensors[name]
            inner.name = self._fresh(name, stored)
            self.new_types[inner.name] = (stored, name)
            split[name] = self.views[name, declared] = gs.Variable(name)
        return split

    def _fresh(self, name: str, elem_type: int) -> str:
        fresh = name + _SUFFIXES[elem_type]
        while fresh in self.taken:
            fresh += "_"
        self.taken.add(fresh)
        return fresh


def _declare_types(graph: Graph, rewriter: _Rewriter, model: onnx.ModelProto) -> None:
    """Write every tensor's type into the model; a dimension only where it is a number that is inferred.

    What the original records of shapes may be of another input size: ONNX Runtime takes it for true, and where Casts
    stand between such tensors and others, refuses the model. An output keeps its dimensions unless they are wrong.
    """
    for info in (*model.graph.input, *model.graph.output):
        if graph.dtypes.get(info.name) == FLOAT:
            info.type.tensor_type.elem_type = rewriter.assignment.io_type
    for info in model.graph.output:
        _correct_dims(info, graph.sure_shapes.get(info.name))
    types = {**graph.dtypes, **rewriter.assignment.stored}
    known = {name: (types[name], name) for node in graph.nodes for name in node.writes if name in types}
    known |= rewriter.new_types
    declared = {info.name for info in model.graph.output}
    for name in (name for node in model.graph.node for name in node.output):
        if name in known and name not in declared:
            elem_type, source = known[name]
            fixed = _fixed_dims(graph.sure_shapes.get(source))
            model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, elem_type, fixed))


def _fixed_dims(dims: Sequence[Dim] | None) -> list[int | None] | None:
    return None if dims is None else [dim if is_fixed(dim) else None for dim in dims]


def _correct_dims(info: onnx.ValueInfoProto, inferred: Sequence[Dim] | None) -> None:
    """Declare the dimensions that are inferred, in place, where the declared ones contradict them."""
    declared = dims_of(info.type)
    if declared is None or inferred is None:
        return
    pairs = zip(declared, inferred, strict=False)
    numbers = [pair for pair in pairs if all(map(is_fixed, pair))]
    if len(declared) != len(inferred) or any(one != other for one, other in numbers):
        elem_type = info.type.tensor_type.elem_type
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, elem_type, _fixed_dims(inferred)))

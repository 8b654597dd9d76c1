"""The model as the stages see it: nodes, tensors, types, constants. ONNX structure is read here alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import onnx
from onnx import TensorProto

from overflow_fixer.annotations import held_to_types
from overflow_fixer.errors import ModelError
from overflow_fixer.files import FileStamp, sha256_of
from overflow_fixer.graph.nodes import Node, delay_fixed, number_nodes, sort_nodes
from overflow_fixer.graph.tensor_types import (
    LateShapes,
    dims_of,
    find_constants,
    find_defaults,
    find_loose,
    infer_shapes,
    tell_types,
)
from overflow_fixer.host.garbage import no_search_for_garbage
from overflow_fixer.model_file.external_data import check_external_data, external_tensors, read_referring
from overflow_fixer.model_file.functions import inline_functions
from overflow_fixer.model_file.malformed import refuse_malformed
from overflow_fixer.model_file.opsets import check_opset, import_unused
from overflow_fixer.model_file.repeats import refuse_repeats
from overflow_fixer.model_file.sparse import write_dense
from overflow_fixer.model_file.subgraphs import bodies
from overflow_fixer.model_file.weights import read_pieces, read_rows, read_values
from overflow_fixer.plurals import say_plural
from overflow_fixer.records import Array, Dim, InputSpec

FLOAT_TYPES = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


@dataclass(frozen=True, eq=False)
class Graph:
    """An ONNX model, read once: functions inlined, sparse constants made dense, large weights left on disk.

    In `model`, a large initializer or Constant, of bodies too, is external data, in the model's own file where it lies there.
    `dtypes` maps a tensor to its onnx.TensorProto.DataType; what is not a tensor (sequences,
    optionals) or could not be told is absent. `home` is the file from whose folder external data is told: `path`, or what
    is behind it where that is a symbolic link. `data_files` are the files beside it that hold external data, in order of name.
    """

    path: Path
    home: Path
    data_files: tuple[Path, ...]
    stamps: tuple[FileStamp, ...] = field(repr=False)
    model: onnx.ModelProto = field(repr=False)
    opset: int
    nodes: tuple[Node, ...] = field(repr=False)
    dtypes: Mapping[str, int] = field(repr=False)
    is_inlined: bool = False
    """Whether the file's local functions were inlined, so that `model` has other nodes than the file."""
    other_types: Mapping[str, onnx.TypeProto] = field(default_factory=dict, repr=False)
    """The types of sequences and optionals, as far as they could be told."""
    ranks: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Of some tensors, how many dimensions they have, so that `sure_shapes`, which may take long, need not be asked."""
    place: str = ""
    """Of a body, what begins the names that are made for what is put into it: ONNX has no name twice, but in two bodies side by side."""

    @property
    def folder(self) -> Path:
        return self.home.parent

    @cached_property
    def sha256(self) -> str:
        """Of the model file and its data files, one after the other, in hexadecimal; takes a second a GB."""
        self.check_unchanged()
        found = sha256_of([self.path, *self.data_files])
        self.check_unchanged()
        return found

    @property
    def stamp(self) -> str:
        """What tells that its files were not written since: inode, size in bytes and time of the last write of each."""
        return " ".join(str(stamp) for stamp in self.stamps)

    def has_sha256(self, sha256: str, stamp: str) -> bool:
        """Whether this is the hash of the files. Where they have the stamp that they had then, it is taken for it."""
        if stamp == self.stamp:
            self.__dict__.setdefault("sha256", sha256)
        return self.sha256 == sha256

    def check_unchanged(self) -> None:
        """Raise ModelError when a file was written anew since the model was loaded: weights are read late."""
        changed = next((stamp.path for stamp in self.stamps if not stamp.is_current()), None)
        if changed is not None:
            raise ModelError(
                f"{changed} changed while it was in use. Expected the file that was loaded, since its weights are read "
                "when they are needed. Run again when nothing writes to it."
            )

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def defaults(self) -> frozenset[str]:
        """The constants in whose place a batch may feed other values."""
        return find_defaults(self.model)

    @cached_property
    def fixed_dims(self) -> Mapping[str, tuple[int, ...]]:
        """The dimensions of the constants in whose place no batch can feed another shape."""
        names = self.constants.keys() - find_loose(self.model)
        return {name: tuple(self.constants[name].dims) for name in names}

    @cached_property
    def sure_shapes(self) -> Mapping[str, tuple[Dim, ...]]:
        """Shapes that can be relied on, whatever is fed: see tensor_types.infer_shapes. Inferred once the first is asked for."""
        return LateShapes(lambda: infer_shapes(self.model, {}))

    @cached_property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs that must be fed: those without an initializer as default."""
        return tuple(
            _input_spec(info) for info in self.model.graph.input if info.name not in self.initializers
        )

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(info.name for info in self.model.graph.output))  # one may be listed twice

    @cached_property
    def run_order(self) -> tuple[Node, ...]:
        """The nodes as they are to stand in what ONNX Runtime runs in the order given: see nodes.delay_fixed."""
        return delay_fixed(self.nodes, self.constants)

    @cached_property
    def write_order(self) -> Mapping[str, int]:
        """Of each tensor that a node writes, its place among them as a run in that order writes them."""
        written = chain.from_iterable(node.writes for node in self.run_order)
        return {name: place for place, name in enumerate(written)}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.writes}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Each tensor's readers in topological order, a node once however often it reads it."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def by_label(self) -> Mapping[str, Node]:
        return {node.label: node for node in self.nodes}

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor of the main graph: inputs, initializers, then node outputs in order."""
        written = (name for node in self.nodes for name in node.writes)
        return tuple(dict.fromkeys((*(spec.name for spec in self.inputs), *self.initializers, *written)))

    def is_float(self, tensor: str) -> bool:
        return self.dtypes.get(tensor) in FLOAT_TYPES

    @cached_property
    def constants(self) -> Mapping[str, TensorProto]:
        """Initializers and the outputs of Constant nodes that hold a tensor."""
        return find_constants(self.model.graph, self.nodes)

    @cached_property
    def copied_constants(self) -> Mapping[str, str]:
        """The tensors that are a constant's by an Identity, or several, with that constant: exporters share equal weights so."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if node.standard_op == "Identity":
                read = found.get(node.inputs[0], node.inputs[0])
                if read in self.constants:
                    found[node.outputs[0]] = read
        return found

    def read_constant(self, tensor: str) -> Array:
        """The value of a constant, read from external data if it is there.

        Float types that numpy does not have (BF16) come as ml_dtypes arrays. Raises KeyError for another tensor.
        """
        return read_values(self.constants[tensor], self.folder)

    def find_constant(self, tensor: str) -> Array | None:
        """The same; None for another tensor."""
        return self.read_constant(tensor) if tensor in self.constants else None

    def read_fixed(self, tensor: str) -> Array | None:
        """The value of a constant in whose place no batch can feed another; None for another tensor."""
        return None if tensor in self.defaults else self.find_constant(tensor)

    def read_constant_pieces(self, tensor: str, buffer: memoryview) -> Iterator[Array]:
        """The same of a float constant piece by piece, flat; see weights.read_pieces."""
        return read_pieces(self.constants[tensor], self.folder, buffer)

    def read_constant_rows(self, tensor: str, most_bytes: int) -> Iterator[Array]:
        """The same of any constant, cut along its first axis; see weights.read_rows."""
        return read_rows(self.constants[tensor], self.folder, most_bytes)

    @property
    def files(self) -> tuple[Path, ...]:
        """All that is read: the model, what it is a link to, and what holds its data."""
        return (self.path, self.home, *self.data_files)

    def external_tensors(self) -> Iterator[TensorProto]:
        """Every tensor of the model, at any depth, whose data lies in another file than the model's."""
        return (tensor for tensor in external_tensors(self.model) if not self.holds(tensor))

    def holds(self, tensor: TensorProto) -> bool:
        """Whether the data of an external tensor lies in the model's own file."""
        return any(item.key == "location" and item.value == self.home.name for item in tensor.external_data)


@no_search_for_garbage()
@held_to_types
def load_graph(path: Path | str) -> Graph:
    """Read and check a model. Raises ModelError for anything that cannot be used."""
    with refuse_malformed(Path(path)):
        return _load(Path(path))


def _load(path: Path) -> Graph:
    stamp = FileStamp.of(path)
    model, home = read_referring(path)
    _check_outputs(path, model)
    import_unused(model)
    opset = check_opset(path, model)
    data_files = tuple(sorted(check_external_data(home, model) - {path.resolve()}))
    stamps = (stamp, *map(FileStamp.of, data_files))
    has_functions = bool(model.functions)
    model = inline_functions(path, model)
    _drop_repeated_names(model.graph)
    refuse_repeats(path, model.graph)
    write_dense(home, model.graph)
    nodes = sort_nodes(path, model.graph, number_nodes(model.graph))
    return _with_types(Graph(path, home, data_files, stamps, model, opset, nodes, {}, has_functions))


def derive_graph(graph: Graph, model: onnx.ModelProto, place: str) -> Graph:
    """The graph of another model whose weights lie where `graph`'s do, such as that of a body in `place`; the files stay `graph`'s.

    Raises ModelError when ONNX Runtime, asked for a type, refuses the model.
    """
    nodes = number_nodes(model.graph)
    return _with_types(replace(graph, model=model, nodes=nodes, place=graph.place + place))


def _with_types(graph: Graph) -> Graph:
    known = graph.model, graph.folder, graph.nodes, graph.constants
    dtypes, others, ranks, sure_shapes = tell_types(*known)
    typed = replace(graph, dtypes=dtypes, other_types=others, ranks=ranks)
    typed.__dict__["constants"] = graph.constants
    if sure_shapes is not None:
        typed.__dict__["sure_shapes"] = sure_shapes
    return typed


def _check_outputs(path: Path, model: onnx.ModelProto) -> None:
    if not model.graph.output:
        raise ModelError(
            f"{path} has {say_plural(len(model.graph.node), 'node')} and no output. Expected one output at least: FP16 is held "
            "against FP32 there. Export the model again with its results as outputs."
        )


def _drop_repeated_names(graph: onnx.GraphProto) -> None:
    """ONNX Runtime refuses a graph in which two nodes have one name, and takes nameless ones."""
    names = Counter([node.name for node in graph.node])
    for node in graph.node if len(names) < len(graph.node) else ():
        if names[node.name] > 1:
            node.ClearField("name")
    for body in chain.from_iterable(map(bodies, graph.node)):
        _drop_repeated_names(body)


def _input_spec(info: onnx.ValueInfoProto) -> InputSpec:
    return InputSpec(info.name, info.type.tensor_type.elem_type, dims_of(info.type))

"""Small models for the typed backend, and a judge of what it makes of them.

The judge takes its types from ONNX Runtime alone: it opens the original and the artifact with every
tensor marked as an output and reads what each is. Nothing here asks the package's own assignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import onnxruntime
from onnx import NodeProto

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Artifact, Batch, Clamp, Pin, PrecisionPlan

FLOAT, FLOAT16 = "tensor(float)", "tensor(float16)"
NEWEST_OPSET = onnx.defs.onnx_opset_version()


@dataclass(frozen=True)
class Typed:
    """An original model, the artifact made of it, and ONNX Runtime's word on the types of both."""

    graph: Graph
    artifact: Artifact
    pinned: frozenset[str]

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.artifact.path)

    @cached_property
    def types(self) -> dict[str, str]:
        return read_types(self.model, self.artifact.path.parent)

    @cached_property
    def inserted(self) -> list[NodeProto]:
        """The Casts that the original does not have; each has a new name."""
        names = {name for node in self.graph.nodes for name in ("", node.proto.name, node.label)}
        return [node for node in self.model.graph.node if node.name not in names]

    @cached_property
    def initializers(self) -> dict[str, np.ndarray]:
        folder = str(self.artifact.path.parent)
        return {t.name: onnx.numpy_helper.to_array(t, folder) for t in self.model.graph.initializer}

    def ops(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]

    def node_of(self, tensor: str) -> NodeProto:
        """The artifact's node that does the work of the original's node that writes `tensor`."""
        producers = {name: node for node in self.model.graph.node for name in node.output}
        found = producers[tensor]
        if found.name in {cast.name for cast in self.inserted}:
            found = producers[found.input[0]]
        return found

    def run(self, feeds: Mapping[str, Any], extra: Sequence[str] = ()) -> dict[str, Any]:
        """The outputs under the faithful simulation."""
        return open_runner(self.artifact, extra).run(Batch("batch", dict(feeds)))


def write_model(
    folder: Path, text: str, *, opset: int = 17, functions: str = "", ir_version: int = 8
) -> Path:
    imports = f'"" : {opset}' + (', "local" : 1' if functions else "")
    header = f"<ir_version: {ir_version}, opset_import: [{imports}]>"
    model = onnx.parser.parse_model(f"{header}\n{text}\n{functions}")
    return save(folder, model)


def save(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def plan_of(graph: Graph, labels: Collection[str] = (), clamps: tuple[Clamp, ...] = ()) -> PrecisionPlan:
    pins = (Pin(label, graph.by_label[label].op_type, graph.by_label[label].outputs, ()) for label in labels)
    return PrecisionPlan(graph.sha256, 10000.0, tuple(pins), clamps)


def make_typed(
    path: Path,
    pinned: Collection[str] = (),
    io_types: Literal["keep", "fp16"] = "keep",
    clamps: tuple[Clamp, ...] = (),
    name: str = "typed/model.fp16.onnx",
) -> Typed:
    """Emit with the nodes that write the tensors `pinned` in FP32, and judge what comes out."""
    graph = load_graph(path)
    labels = frozenset(graph.producers[tensor].label for tensor in pinned)
    artifact = emit(graph, plan_of(graph, labels, clamps), path.parent / name, io_types=io_types)
    typed = Typed(graph, artifact, labels)
    judge(typed)
    return typed


def judge(typed: Typed) -> None:
    """Everything that holds for every typed model, whatever the plan."""
    if _passes_checker(typed.graph.path):
        onnx.checker.check_model(str(typed.artifact.path), full_check=True)
    _judge_casts(typed)
    _judge_names(typed)
    _judge_pins(typed)
    _judge_lists(typed)
    for labels, wanted in ((typed.artifact.fp16_nodes, FLOAT16), (typed.artifact.fp32_nodes, FLOAT)):
        for label in labels:
            outputs = typed.node_of(_first_output(typed, label)).output
            assert wanted in {typed.types[name] for name in outputs if name}, label


def _passes_checker(path: Path) -> bool:
    """Readers of sparse tensors, for one, do not, though ONNX Runtime runs them."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def _judge_casts(typed: Typed) -> None:
    """At most one Cast a tensor and direction, each from one type to the other, none behind another."""
    casts = typed.inserted
    assert all(cast.op_type == "Cast" for cast in casts)
    assert typed.artifact.cast_count == len(casts)
    assert max(Counter((cast.input[0], cast.attribute[0].i) for cast in casts).values(), default=1) == 1
    written = {name for cast in casts for name in cast.output}
    assert not [cast.name for cast in casts if cast.input[0] in written]
    assert all({typed.types[c.input[0]], typed.types[c.output[0]]} == {FLOAT, FLOAT16} for c in casts)
    used = {name for node in all_nodes(typed.model.graph) for name in node.input}
    used |= {output.name for output in typed.model.graph.output}
    assert written <= used
    constants = {tensor.name for tensor in typed.model.graph.initializer}
    constants |= {n.output[0] for n in typed.model.graph.node if n.op_type == "Constant"}
    assert not [cast.name for cast in casts if cast.input[0] in constants]


def _judge_names(typed: Typed) -> None:
    original, model = typed.graph.model.graph, typed.model.graph
    assert [info.name for info in model.output] == [info.name for info in original.output]
    assert [info.name for info in model.input] == [spec.name for spec in typed.graph.inputs]
    written = [name for node in model.node for name in node.output if name]
    written += [tensor.name for tensor in model.initializer]
    assert len(written) == len(set(written))
    names = [node.name for node in model.node if node.name]
    assert len(names) == len(set(names))


def _judge_lists(typed: Typed) -> None:
    """Every node with an FP32 output in the original, Constants aside, is in one list, in order."""
    before = read_types(typed.graph.model, typed.graph.folder)
    floats = [
        node.label
        for node in typed.graph.nodes
        if any(before[name] == FLOAT for name in node.writes) and node.op_type != "Constant"
    ]
    fp16, fp32 = typed.artifact.fp16_nodes, typed.artifact.fp32_nodes
    assert sorted((*fp16, *fp32)) == sorted(floats)
    assert [label for label in floats if label in set(fp16)] == list(fp16)
    assert {kept.node for kept in typed.artifact.kept} == set(fp32) - typed.pinned


def _judge_pins(typed: Typed) -> None:
    """A pinned node reads and writes in FP32 each tensor that was FP32; a Cast reads what is stored."""
    before = read_types(typed.graph.model, typed.graph.folder)
    for label in typed.pinned:
        node = typed.graph.by_label[label]
        if node.op_type == "Constant":
            continue
        found = typed.node_of(node.writes[0])
        assert found.op_type == node.op_type
        pairs = [*zip(node.outputs, found.output, strict=True)]
        if node.op_type != "Cast":
            pairs += zip(node.inputs, found.input, strict=True)
        for old, new in pairs:
            if old and before[old] == FLOAT:
                assert typed.types[new] == FLOAT, (label, new)


def _first_output(typed: Typed, label: str) -> str:
    return typed.graph.by_label[label].writes[0]


def all_nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from all_nodes(body)


def read_types(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """ONNX Runtime's word on the type of every tensor of the main graph."""
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    for node in marked.graph.node:
        node.name = ""
    del marked.graph.output[:]
    names = [info.name for info in model.graph.input] + [tensor.name for tensor in model.graph.initializer]
    names += [name for node in model.graph.node for name in node.output if name]
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    session = open_plain(marked, folder, optimize=True)
    return {output.name: output.type for output in session.get_outputs()}


def open_plain(
    model: onnx.ModelProto | Path, folder: Path | None = None, *, optimize: bool = False
) -> onnxruntime.InferenceSession:
    """The model in ONNX Runtime, as it stands unless `optimize`."""
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if folder is not None:
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(folder))
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@cache
def is_supported(opset: int) -> bool:
    """Whether this ONNX Runtime opens models of an opset."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N] x) => (float[N] y) {{ y = Neg(x) }}'
    try:
        open_plain(onnx.parser.parse_model(text))
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        return False
    return True


def run_plain(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    session = open_plain(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def assert_same(found: Any, expected: Any) -> None:
    """Equal bit for bit, but for the payload of NaN."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert (np.asarray(found).dtype, np.shape(found)) == (np.asarray(expected).dtype, np.shape(expected))
    if np.asarray(expected).dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), ~numbers)
        found, expected = found[numbers], expected[numbers]
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    np.testing.assert_array_equal(found, expected)

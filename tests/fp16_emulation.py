"""FP16 hardware emulated node by node: a judge for the tests that shares no code with the package.

Every node of the main graph runs alone, in FP32, as a model of one node in ONNX Runtime with all
optimisation off; between nodes, numpy rounds to float16 (|x| >= 65520 becomes infinity). What this
cannot show: partial sums inside a node, which stay FP32, and what lies inside the bodies of control
flow, which run whole. Sparse initializers, optional values and BF16 are not handled.

Each function returns every tensor of the main graph by name: inputs, initializers, node outputs.
A sequence is a list of arrays. NaN and infinities are kept as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
from onnx import NodeProto, helper, numpy_helper

Values = dict[str, Any]
Compute = Callable[[NodeProto, Values], list[Any]]
PARAMETER_INPUTS = {"Resize": (1, 2), "Upsample": (1,)}
"""Float inputs that say what to do, not what to do it to: no hardware rounds them."""


def run_fp32(model_path: Path, feeds: Mapping[str, Any]) -> Values:
    """The model as it stands, nothing rounded."""
    model = _load(model_path)
    return _walk(model, feeds, lambda node, reads: _run_alone(model, node, reads))


def run_fp16(model_path: Path, feeds: Mapping[str, Any], fp32_nodes: Set[str] = frozenset()) -> Values:
    """An FP32 model, each node in FP16 but those that write a tensor named in `fp32_nodes`.

    A node in FP16 rounds every float it reads and every float it writes. A node in FP32 rounds
    nothing, so that the FP16 reader of its output rounds it, and its own weights are whole. The
    arrays keep the model's dtypes.
    """
    model = _load(model_path)

    def compute(node: NodeProto, reads: Values) -> list[Any]:
        if node.op_type == "Constant" or not fp32_nodes.isdisjoint(node.output):
            return _run_alone(model, node, reads)
        kept = {node.input[i] for i in PARAMETER_INPUTS.get(node.op_type, ()) if i < len(node.input)}
        rounded = {name: value if name in kept else _round(value) for name, value in reads.items()}
        return [_round(value) for value in _run_alone(model, node, rounded)]

    return _walk(model, feeds, compute)


def run_typed(model_path: Path, feeds: Mapping[str, Any]) -> Values:
    """A model with FP16 types in it: exactly its float16 tensors are rounded, each node runs in FP32.

    The arrays have the model's dtypes. A node with bodies runs whole, in its own types.
    """
    model = _load(model_path)
    types = _read_types(model)

    def compute(node: NodeProto, reads: Values) -> list[Any]:
        if node.op_type == "Cast" and types[node.output[0]] == "tensor(float16)":
            return [_to_dtype(reads[node.input[0]], np.float16)]
        if any(_bodies(node)):
            return _run_alone(model, node, reads)
        wide = {name: _each(value, _widen) for name, value in reads.items()}
        names = (name for name in node.output if name)
        written = zip(names, _run_alone(model, node, wide), strict=True)
        return [_narrow(value) if "(float16)" in types[name] else value for name, value in written]

    return _walk(model, feeds, compute)


def measure_snr_db(model_path: Path, feeds: Mapping[str, Any], fp32_nodes: Set[str] = frozenset()) -> float:
    """SNR in dB of the output y, as run_fp16 has it, against run_fp32; inf where they are equal."""
    right = run_fp32(model_path, feeds)["y"].astype(np.float64)
    error = run_fp16(model_path, feeds, fp32_nodes)["y"] - right
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.sum(right**2) / np.sum(error**2)))


def _load(model_path: Path) -> onnx.ModelProto:
    model = onnx.load(model_path)
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _walk(model: onnx.ModelProto, feeds: Mapping[str, Any], compute: Compute) -> Values:
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values.update(feeds)
    for node in model.graph.node:
        written = compute(node, {name: values[name] for name in _read_names(node)})
        values.update(zip((name for name in node.output if name), written, strict=True))
    return values


def _read_names(node: NodeProto) -> list[str]:
    """What the node reads, each once: its inputs, and the outer tensors that its bodies read."""
    names = dict.fromkeys(name for name in node.input if name)
    for body in _bodies(node):
        own = {item.name for item in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        inner_reads = [name for inner in body.node for name in _read_names(inner)]
        inner_reads += [output.name for output in body.output]
        names.update(dict.fromkeys(name for name in inner_reads if name not in own))
    return list(names)


def _bodies(node: NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else attribute.graphs)


def _run_alone(model: onnx.ModelProto, node: NodeProto, reads: Values) -> list[Any]:
    inputs = [onnx.ValueInfoProto(name=name, type=_type_of(value)) for name, value in reads.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    alone = onnx.ModelProto(ir_version=model.ir_version, graph=graph, opset_import=model.opset_import)
    return list(_open(alone.SerializeToString()).run(None, reads))


@lru_cache(maxsize=2048)
def _open(serialized: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        items = _type_of(value[0] if value else np.empty(0, np.float32))
        return helper.make_sequence_type_proto(items)
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), None)


def _read_types(model: onnx.ModelProto) -> dict[str, str]:
    """ONNX Runtime's word on the type of every node output."""
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    outputs = {output.name for output in model.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    return {output.name: output.type for output in _open(marked.SerializeToString()).get_outputs()}


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(item) for item in value] if isinstance(value, list) else change(value)


def _to_dtype(values: Any, dtype: Any) -> Any:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(values).astype(dtype)


def _widen(values: Any) -> Any:
    return _to_dtype(values, np.float32) if values.dtype == np.float16 else values


def _narrow(value: Any) -> Any:
    return _each(value, lambda array: _to_dtype(array, np.float16))


def _round(value: Any) -> Any:
    """Floats rounded to FP16 in their own dtype; anything else as it is."""
    return _each(value, lambda a: _to_dtype(_to_dtype(a, np.float16), a.dtype) if a.dtype.kind == "f" else a)

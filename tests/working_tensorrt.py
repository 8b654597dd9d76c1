"""A fake TensorRT whose engines compute: it parses real ONNX files and runs them as FP16 hardware would.

`working_tensorrt(variant, folder)` is `fake_tensorrt` with a parser that makes one layer of each node (casts
are fused into what they stand beside, as TensorRT does), a builder that takes a layer for FP16 unless it is
pinned or the model says otherwise, and contexts that read and write the addresses that they are given. What
an engine tells of itself is spelled as its release spells it. With `tf32` products in FP32 round what they multiply to
10 bits, unless that flag is cleared.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fake_tensorrt import IoSpec, LayerSpec, Plan, Script, TensorSpec, Variant, fake_tensorrt
from onnx import TensorProto, shape_inference
from recorded_networks import make_plan

from overflow_fixer.backends import mixed_onnx
from overflow_fixer.graph.model import load_graph
from overflow_fixer.records import Artifact, Batch, Runner
from overflow_fixer.sessions.marking import mark_outputs
from overflow_fixer.sessions.session import SessionRunner, open_session

_KINDS = {
    "Conv": "CONVOLUTION",
    "Relu": "ACTIVATION",
    "MatMul": "MATRIX_MULTIPLY",
    "Gemm": "MATRIX_MULTIPLY",
    "Cast": "CAST",
    "Reshape": "SHUFFLE",
    "Transpose": "SHUFFLE",
    "Constant": "CONSTANT",
    "Softmax": "SOFTMAX",
}
_DTYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.BOOL: "BOOL",
}
_NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}
_TOLD = {"FLOAT": "FP32", "HALF": "FP16", "INT32": "Int32", "INT64": "Int64", "BOOL": "BOOL"}
Arrays = Mapping[str, np.ndarray]


@dataclass(eq=False)
class Works:
    """What was parsed and built: models by network, what each engine computes, and contexts that live."""

    folder: Path
    tf32: bool
    models: dict[Any, Path] = field(default_factory=dict)
    computes: dict[bytes, Callable[[Arrays], Arrays]] = field(default_factory=dict)
    contexts: int = 0
    most_contexts: int = 0


def working_tensorrt(variant: Variant, folder: Path, tf32: bool = False) -> Any:
    """The module of a variant; models that it parsed are kept in `folder`."""
    trt = fake_tensorrt(variant, Script())
    trt.works = Works(folder, tf32)
    trt.OnnxParser = _make_parser(trt, variant)
    trt.Builder = _make_builder(trt, variant)
    trt.IExecutionContext = _make_context(trt)
    return trt


def _make_parser(trt: Any, variant: Variant) -> type:
    class Parser(trt.OnnxParser):  # type: ignore[misc]
        def _take(self, source: Any) -> bool:
            model = onnx.load_from_string(source[0]) if isinstance(source, tuple) else onnx.load(source)
            model = shape_inference.infer_shapes(model)
            path = trt.works.folder / f"parsed{len(trt.works.models)}.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(model, path)
            trt.works.models[self._network] = path  # an id is reused, and sessions map the file
            _fill(trt.script, model.graph, variant)
            self._network._nodes = list(model.graph.node)
            return bool(super()._take(source))

    return Parser


def _fill(script: Script, graph: onnx.GraphProto, variant: Variant) -> None:
    values = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}

    def spec(name: str) -> TensorSpec:
        known = values.get(name)
        kind = known.type.tensor_type if known is not None else None
        dtype = _DTYPES.get(kind.elem_type, "FLOAT") if kind is not None else "FLOAT"
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim] if kind else [-1]
        return TensorSpec(name, "INT32" if (variant, dtype) == ("8.6", "INT64") else dtype, tuple(dims))

    weights = {tensor.name for tensor in graph.initializer}
    script.inputs = [spec(value.name) for value in graph.input if value.name not in weights]
    known = {tensor.name for tensor in script.inputs}
    layers = []
    for node in graph.node:
        name = node.name or f"node_of_{node.output[0]}"
        inputs = tuple(name if name in known else "" for name in node.input)
        outputs = tuple(spec(name) for name in node.output if name)
        metadata = f"[ONNX Layer: {name}]"
        layers.append(LayerSpec(name, _KINDS.get(node.op_type, "ELEMENTWISE"), inputs, outputs, metadata))
        known |= {output.name for output in outputs}
    script.layers, script.outputs = layers, [value.name for value in graph.output]


def _make_builder(trt: Any, variant: Variant) -> type:
    class Builder(trt.Builder):  # type: ignore[misc]
        def build_serialized_network(self, network: Any, config: Any) -> Any:
            content = f"engine {len(trt.works.computes)} of {variant}".encode()
            flags = {flag.name for flag in config._flags} - (set() if trt.works.tf32 else {"TF32"})
            compute = _open_compute(trt, network, flags)
            io = tuple(_io(network, config))
            trt.script.outcomes[:] = [Plan(content, _tell(network, flags, variant), io)]
            trt.works.computes[content] = compute
            return super().build_serialized_network(network, config)

    return Builder


def _io(network: Any, config: Any) -> list[IoSpec]:
    shapes = config._profiles[0]._shapes if config._profiles else {}
    modes = ((network._inputs, "INPUT"), (network._outputs, "OUTPUT"))
    return [
        IoSpec(t.name, mode, t.dtype.name, t.shape, "DEVICE", shapes.get(t.name))  # type: ignore[arg-type]
        for tensors, mode in modes
        for t in tensors
    ]


def _open_compute(trt: Any, network: Any, flags: set[str]) -> Callable[[Arrays], Arrays]:
    path = trt.works.models[network]
    graph = load_graph(path)
    extra = [t.name for t in network._outputs if t.name not in graph.outputs]
    runner: Runner
    round_products = _round_products if "TF32" in flags else lambda path: path
    if network._is_strong():
        typed = Artifact("onnx", round_products(path), (path,), (), (), (), 0)
        runner = mixed_onnx.open_runner(typed, extra)
    elif "FP16" in flags:
        pinned = {layer.name for layer in network._layers if layer._precision is not None}
        labels = [node.label for node in graph.nodes if node.label in pinned]
        place = path.with_name(f"weak{len(trt.works.computes)}.onnx")
        typed = mixed_onnx.emit(graph, make_plan(graph, *labels), place)
        typed = replace(typed, path=round_products(typed.path))
        runner = mixed_onnx.open_runner(typed, extra)
    else:
        model = onnx.load(round_products(path))
        mark_outputs(model, extra)
        runner = SessionRunner(open_session(model, path.parent))
    kinds = {spec.name: _NUMPY[_DTYPES[spec.elem_type]] for spec in graph.inputs}

    last: tuple[dict[str, bytes], Arrays] = {}, {}

    def compute(inputs: Arrays) -> Arrays:
        """Once for the same inputs: an engine that is timed runs on one batch again and again."""
        nonlocal last
        key = {name: array.tobytes() for name, array in inputs.items()}
        if key != last[0] or not key:
            feeds = {name: array.astype(kinds[name]) for name, array in inputs.items()}
            last = key, runner.run(Batch("", feeds))
        return last[1]

    return compute


def _round_products(path: Path) -> Path:
    """The model with what Gemm and MatMul multiply in FP32 rounded to 11 significant bits, by Veltkamp's splitting."""
    model = shape_inference.infer_shapes(onnx.load(path))
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    factor = onnx.helper.make_tensor("", TensorProto.FLOAT, [], [2**13 + 1])
    for node in nodes:
        for slot in (0, 1) if node.op_type in ("Gemm", "MatMul") and types[node.output[0]] == 1 else ():
            x, prefix = node.input[slot], f"tf32_{node.output[0]}_{slot}_"
            wide, high, low = (prefix + part for part in ("wide", "high", "low"))
            graph.node.add(op_type="Constant", output=[prefix]).attribute.add(name="value", type=4, t=factor)
            for kind, read, written in (
                ("Mul", (x, prefix), wide),
                ("Sub", (wide, x), low),
                ("Sub", (wide, low), high),
            ):
                graph.node.add(op_type=kind, input=read, output=[written], name=written)
            node.input[slot] = high
        graph.node.append(node)
    rounded = path.with_name(f"{path.stem}_tf32.onnx")
    onnx.save(model, rounded)
    return rounded


def _tell(network: Any, flags: set[str], variant: Variant) -> dict[str, Any]:
    """The inspector's document: a layer of each node, with the casts around it."""
    layers = [layer for layer in network._layers if layer.type.name not in ("CONSTANT", "CAST")]
    makers = {t.name: layer for layer in network._layers for t in layer._outputs}
    is_weak_fp16 = not network._is_strong() and "FP16" in flags

    def kind(tensor: Any, layer: Any) -> str:
        half = is_weak_fp16 and layer._precision is None and tensor.dtype.name == "FLOAT"
        return "FP16" if half else _TOLD[tensor.dtype.name]

    def row(name: str, kind: str) -> dict[str, Any]:
        told = f"Row major linear {kind}"
        if variant == "11":
            return {"Name": name, "Dimensions": [], "Datatype": kind, "Format": "Row major linear"}
        return {"Name": name, "Dimensions": [], "Format/Datatype": told}

    found = []
    for layer in layers:
        casts = [makers[t.name] for t in layer._inputs if t is not None and t.name in makers]
        casts = [cast for cast in casts if cast.type.name == "CAST"]
        behind = [c for c in network._layers if c.type.name == "CAST" and c._inputs[0] in layer._outputs]
        readers = [c for c in network._layers for t in c._inputs if t is not None and t in layer._outputs]
        behind = behind if len(readers) == len(behind) == 1 else []
        inputs = [t for t in layer._inputs if t is not None and makers.get(t.name) not in casts]
        inputs += [cast._inputs[0] for cast in casts]
        outputs = behind[0]._outputs if behind else layer._outputs
        parts = [*casts, layer, *behind]
        found.append(
            {
                "Name": " + ".join(part.name for part in parts),
                "LayerType": "kgen",
                "Inputs": [row(t.name, kind(t, layer)) for t in inputs],
                "Outputs": [row(t.name, kind(t, layer)) for t in outputs],
                "TacticName": _name_kernel(layer, flags, [kind(t, layer) for t in layer._outputs]),
                "Metadata": "\x1e".join(part.metadata for part in parts),
            }
        )
    rest: dict[str, Any] = {"I/O Tensors": []} if variant == "11" else {"Bindings": []}
    return {"Layers": found, **rest}


def _name_kernel(layer: Any, flags: set[str], kinds: list[str]) -> str:
    is_product = layer.type.name == "MATRIX_MULTIPLY" and kinds == ["FP32"]
    return f"gemm_f32f32_{'tf32f32' if 'TF32' in flags else 'f32f32'}_f32" if is_product else ""


def _make_context(trt: Any) -> type:
    class Context(trt.IExecutionContext):  # type: ignore[misc]
        def __init__(self, engine: Any) -> None:
            super().__init__(engine)
            trt.works.contexts += 1
            trt.works.most_contexts = max(trt.works.most_contexts, trt.works.contexts)

        def __del__(self) -> None:
            trt.works.contexts -= 1

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            spec = self._engine._io[name]
            if spec.mode == "INPUT" or -1 not in spec.shape or not self._is_bound():
                return tuple(self._shapes[name])
            return self._compute()[name].shape

        def execute_async_v3(self, stream_handle: int) -> bool:
            if not super().execute_async_v3(stream_handle):
                return False
            found = self._compute()
            for name, spec in self._engine._io.items():
                if spec.mode == "OUTPUT":
                    self._put(name, np.ascontiguousarray(found[name], _NUMPY[spec.dtype]))
            return True

        def _is_bound(self) -> bool:
            inputs = [name for name, spec in self._engine._io.items() if spec.mode == "INPUT"]
            return all(name in self._addresses for name in inputs)

        def _compute(self) -> Arrays:
            io = self._engine._io
            inputs = {name: self._read(name, spec) for name, spec in io.items() if spec.mode == "INPUT"}
            compute: Callable[[Arrays], Arrays] = trt.works.computes[self._engine._plan.content]
            return compute(inputs)

        def _read(self, name: str, spec: IoSpec) -> np.ndarray:
            dtype, shape = np.dtype(_NUMPY[spec.dtype]), self._shapes[name]
            content = ctypes.string_at(self._addresses[name], dtype.itemsize * math.prod(shape))
            return np.frombuffer(content, dtype).reshape(shape)

        def _put(self, name: str, value: np.ndarray) -> None:
            allocator = self._allocators.get(name)
            if allocator is None:
                ctypes.memmove(self._addresses[name], value.ctypes.data, value.nbytes)
                return
            address = allocator.reallocate_output(name, 0, value.nbytes, 256)
            ctypes.memmove(address, value.ctypes.data, value.nbytes)
            allocator.notify_shape(name, value.shape)

    return Context

"""Random graphs with random pins: valid, minimal in Casts, exact where all is pinned, simulated right."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from fp16_emulation import run_typed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper
from typed_models import Typed, assert_same, make_typed, run_plain, save

UNARY = (
    "Relu",
    "Neg",
    "Abs",
    "Exp",
    "Sqrt",
    "Tanh",
    "Identity",
    "Transpose",
    "Softmax",
    "Cast",
    "Reshape",
    "LayerNormalization",
)
BINARY = ("Add", "Sub", "Mul", "Div", "MatMul", "Min", "Max", "Where")
CONSTANTS = ("matrix", "row", "scalar", "node")
IoTypes = Literal["keep", "fp16"]


@dataclass(frozen=True)
class Case:
    """A random model, the tensors whose writers are pinned, and one batch."""

    model: onnx.ModelProto
    pinned: tuple[str, ...]
    io_types: IoTypes
    x: np.ndarray


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes: list[NodeProto] = [
        helper.make_node("Constant", [], ["node"], value_floats=[1.0001, 300.0, -2.0, 0.3])
    ]
    tensors = ["x"]
    for index in range(draw(st.integers(1, 12))):
        op_type = draw(st.sampled_from(UNARY + BINARY))
        read = [draw(st.sampled_from(tensors)), draw(st.sampled_from((*tensors, *CONSTANTS)))]
        nodes.extend(_make_nodes(op_type, read, f"t{index}"))
        tensors.append(f"t{index}")
    written = tensors[1:]
    outputs = {written[-1], *draw(st.sets(st.sampled_from(written), max_size=3))}
    model = _make_model(nodes, sorted(outputs))
    scale = draw(st.sampled_from([1.0, 100.0, 60000.0]))
    x = np.random.RandomState(draw(st.integers(0, 99))).uniform(-scale, scale, (4, 4)).astype(np.float32)
    pinned = tuple(sorted(draw(st.sets(st.sampled_from(written)))))
    return Case(model, pinned, draw(st.sampled_from(["keep", "fp16"])), x)


def _make_nodes(op_type: str, read: list[str], output: str) -> Iterator[NodeProto]:
    if op_type == "Where":
        yield helper.make_node("Greater", read, [f"{output}_mask"])
        yield helper.make_node("Where", [f"{output}_mask", *read], [output])
    elif op_type in BINARY:
        yield helper.make_node(
            op_type,
            [read[0], "matrix" if op_type == "MatMul" and read[1] in CONSTANTS else read[1]],
            [output],
        )
    elif op_type in ("Reshape", "LayerNormalization"):
        extra = "shape" if op_type == "Reshape" else "row"
        yield helper.make_node(op_type, [read[0], extra], [output])
    else:
        yield helper.make_node(
            op_type, read[:1], [output], **({"to": TensorProto.FLOAT} if op_type == "Cast" else {})
        )


def _make_model(nodes: list[NodeProto], outputs: list[str]) -> onnx.ModelProto:
    rng = np.random.RandomState(0)
    constants = {
        "matrix": rng.standard_normal((4, 4)).astype(np.float32),
        "row": np.asarray([1.0001, -2, 3, 65519], np.float32),
        "scalar": np.float32(0.70001),
        "shape": np.asarray([4, 4]),
    }
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in ("x", *outputs)]
    weights = [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()]
    graph = helper.make_graph(nodes, "random", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _fewest_casts(case: Case) -> int:
    """One for each tensor that someone needs in the type it is not stored in."""
    given_type = "fp16" if case.io_types == "fp16" else "fp32"
    stored, read_as = {"x": given_type}, {}
    for node in case.model.graph.node:
        fp32 = node.output[0] in case.pinned or node.op_type == "LayerNormalization"
        computes = "fp32" if fp32 else "fp16"
        known = [name for name in node.input if name in stored]
        if node.op_type == "Greater":
            computes = "fp32" if "fp32" in {stored[name] for name in known} else "fp16"
        elif node.op_type != "Constant":
            stored[node.output[0]] = computes
        if node.op_type != "Cast":
            for name in known:
                read_as.setdefault(name, set()).add(computes)
    for output in case.model.graph.output:
        read_as.setdefault(output.name, set()).add(given_type)
    return sum(bool(kinds - {stored[name]}) for name, kinds in read_as.items())


def _feeds(typed: Typed, x: np.ndarray) -> dict[str, np.ndarray]:
    half = typed.model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    with np.errstate(over="ignore"):
        return {"x": x.astype(np.float16) if half else x}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_random_graphs(case: Case) -> None:
    """make_typed judges validity, names, types and pins; here Casts are counted and values compared."""
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), case.model)
        typed = make_typed(path, case.pinned, case.io_types)
        assert typed.artifact.cast_count == _fewest_casts(case)
        expected = run_typed(typed.artifact.path, _feeds(typed, case.x))
        for name, values in typed.run({"x": case.x}).items():
            assert_same(values, expected[name])


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_random_graphs_that_are_all_pinned_equal_the_original(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), case.model)
        written = [name for node in case.model.graph.node for name in node.output]
        typed = make_typed(path, written, name="pinned.onnx")
        assert (typed.artifact.cast_count, typed.artifact.fp16_nodes) == (0, ())
        expected = run_plain(path, {"x": case.x})
        for name, values in typed.run({"x": case.x}).items():
            assert_same(values, expected[name])

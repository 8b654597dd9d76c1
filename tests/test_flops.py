"""FLOPs counted by hand, with the shapes that a batch gives the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save
from onnx import TensorProto, helper

from overflow_fixer.flops import count_share
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Artifact, Batch, Share
from overflow_fixer.verification.comparison import open_reference

CALIB_DATA = Path(__file__).parents[1] / "calib_data"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def share(graph: Graph, fp16: tuple[str, ...] = (), fp32: tuple[str, ...] = (), **feeds: Any) -> Share:
    artifact = Artifact("onnx", Path("a.onnx"), (Path("a.onnx"),), fp16, fp32, (), 0)
    return count_share(graph, artifact, Batch("b", feeds))


def flops_of(folder: Path, at: onnx.NodeProto, x: tuple[int, ...], **constants: np.ndarray) -> int:
    """The FLOPs of a model of one node, whose input x has no fixed dimensions."""
    model = make_model([at], {"x": [f"d{i}" for i in range(len(x))]}, at.output[0], constants)
    found = share(save(model, folder), x=zeros(*x))
    assert found.unknown_flops_nodes == 0
    return found.flops


@pytest.mark.parametrize(
    ("attributes", "x", "w", "flops"),
    [
        ({}, (1, 3, 8, 8), (16, 3, 3, 3), 2 * 16 * 6 * 6 * 27),
        ({"pads": [1, 1, 1, 1]}, (2, 3, 8, 8), (16, 3, 3, 3), 2 * 2 * 16 * 8 * 8 * 27),
        ({"strides": [2, 2]}, (1, 3, 8, 8), (16, 3, 2, 2), 2 * 16 * 4 * 4 * 12),
        ({"group": 4}, (1, 4, 8, 8), (4, 1, 3, 3), 2 * 4 * 6 * 6 * 9),
        ({"dilations": [2, 2]}, (1, 1, 8, 8), (1, 1, 3, 3), 2 * 4 * 4 * 9),
        ({}, (1, 2, 10), (4, 2, 3), 2 * 4 * 8 * 6),
    ],
)
def test_conv(
    attributes: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...], flops: int, tmp_path: Path
) -> None:
    assert flops_of(tmp_path, node("Conv", "x w", "y", **attributes), x, w=zeros(*w)) == flops


@pytest.mark.parametrize(
    ("attributes", "x", "w", "flops"),
    [
        ({}, (1, 3, 8, 8), (3, 16, 3, 3), 2 * 3 * 8 * 8 * 16 * 9),
        ({"strides": [2, 2]}, (2, 3, 8, 8), (3, 16, 2, 2), 2 * 2 * 3 * 8 * 8 * 16 * 4),
        ({"group": 3}, (1, 3, 8, 8), (3, 1, 3, 3), 2 * 3 * 8 * 8 * 9),
    ],
)
def test_conv_transpose(
    attributes: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...], flops: int, tmp_path: Path
) -> None:
    assert flops_of(tmp_path, node("ConvTranspose", "x w", "y", **attributes), x, w=zeros(*w)) == flops


@pytest.mark.parametrize(
    ("x", "w", "flops"),
    [
        ((5, 7), (7, 3), 2 * 5 * 7 * 3),
        ((2, 4, 5, 7), (7, 3), 2 * 2 * 4 * 5 * 7 * 3),
        ((2, 1, 5, 7), (4, 7, 3), 2 * 2 * 4 * 5 * 7 * 3),
        ((7,), (7, 3), 2 * 7 * 3),
        ((5, 7), (7,), 2 * 5 * 7),
        ((7,), (7,), 2 * 7),
        ((0, 7), (7, 3), 0),
    ],
)
def test_matmul(x: tuple[int, ...], w: tuple[int, ...], flops: int, tmp_path: Path) -> None:
    assert flops_of(tmp_path, node("MatMul", "x w", "y"), x, w=zeros(*w)) == flops


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm(trans_a: int, trans_b: int, tmp_path: Path) -> None:
    x, w = ((7, 5) if trans_a else (5, 7)), ((3, 7) if trans_b else (7, 3))
    at = node("Gemm", "x w b", "y", transA=trans_a, transB=trans_b)
    assert flops_of(tmp_path, at, x, w=zeros(*w), b=zeros(3)) == 2 * 5 * 7 * 3


def test_cheap_operators_count_nothing(tmp_path: Path) -> None:
    assert flops_of(tmp_path, node("Tanh", "x", "y"), (5, 7)) == 0


def test_the_share_in_fp16(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("MatMul", "b v", "y")]
    model = make_model(nodes, {"x": ["n", 4]}, "y", {"w": zeros(4, 8), "v": zeros(8, 2)})
    found = share(save(model, tmp_path), ("MatMul_a",), ("Tanh_b", "MatMul_y"), x=zeros(3, 4))
    assert found == Share(
        fp16_nodes=1,
        float_nodes=3,
        fp16_flops=2 * 3 * 4 * 8,
        flops=2 * 3 * 8 * (4 + 2),
        unknown_flops_nodes=0,
    )


def test_what_cannot_be_counted_is_said(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["inner"])], "body", [], [info])
    nodes = [
        node("Einsum", "x w", "a", equation="ij,jk->ik"),
        node("If", "yes", "b", then_branch=body, else_branch=body),
        node("Gelu", "b", "d", domain="com.microsoft"),
        node("MatMul", "d w", "y"),
        node("Add", "a a", "z"),
    ]
    model = make_model(nodes, {"x": [2, 4]}, "y z", {"w": zeros(4, 4), "yes": np.asarray(True)})
    found = share(save(model, tmp_path), x=zeros(2, 4))
    assert (found.flops, found.unknown_flops_nodes) == (2 * 2 * 4 * 4, 3)


def test_shapes_that_only_a_run_tells(tmp_path: Path) -> None:
    """NonZero and a Reshape by computed numbers: no inference knows them."""
    nodes = [
        node("NonZero", "x", "places"),
        node("Cast", "places", "f", to=TensorProto.FLOAT),
        node("Transpose", "f", "t"),
        node("MatMul", "t w", "a"),
        node("Shape", "a", "size"),
        node("ReduceProd", "size", "count", keepdims=1),
        node("Div", "count two", "half"),
        node("Concat", "half two", "shape", axis=0),
        node("Reshape", "a shape", "r"),
        node("MatMul", "r v", "y"),
    ]
    model = make_model(nodes, {"x": ["n"]}, "y", {"w": zeros(1, 4), "v": zeros(2, 3), "two": ints(2)})
    x = np.asarray([1, 0, 2, 0, 3], np.float32)
    found = share(save(model, tmp_path), x=x)
    assert (found.flops, found.unknown_flops_nodes) == (2 * 3 * 1 * 4 + 2 * 6 * 2 * 3, 0)


def test_names_that_are_taken_do_not_matter(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", "x", "p"),
        node("Cast", "p", "f", to=TensorProto.FLOAT),
        node("Transpose", "f", "t__shape"),
        node("MatMul", "t__shape w", "t"),
        node("MatMul", "t v", "y"),
    ]
    model = make_model(nodes, {"x": [3]}, "y", {"w": zeros(1, 4), "v": zeros(4, 2)})
    found = share(save(model, tmp_path), x=np.ones(3, np.float32))
    assert (found.flops, found.unknown_flops_nodes) == (2 * 3 * 4 + 2 * 3 * 4 * 2, 0)


@pytest.mark.parametrize(
    "name", ["needs_constraints", "conv_chain", "layernorm_transformer", "masked_attention"]
)
def test_every_node_of_the_samples_is_counted(name: str) -> None:
    """Against the sizes that the tensors have in a real run."""
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    feeds = dict(np.load(sorted((CALIB_DATA / name / "data").glob("*.npz"))[0]))
    found = share(graph, **feeds)
    names = [tensor for at in graph.nodes for tensor in at.writes]
    values = open_reference(graph, names).run(Batch("b", feeds)) | feeds
    values |= {key: graph.read_constant(key) for key in graph.initializers}
    flops = 0
    for at in graph.nodes:
        if at.op_type in ("MatMul", "Gemm", "Conv"):
            x, w, y = (values[tensor] for tensor in (*at.inputs[:2], at.outputs[0]))
            inner = w.size // w.shape[0] if at.op_type == "Conv" else x.shape[-1]
            flops += 2 * y.size * inner
    assert (found.flops, found.unknown_flops_nodes) == (flops, 0)


def test_a_transformer_block_by_hand() -> None:
    """Width 64: four projections, an MLP of 256 up and down, scores and their sums."""
    graph = load_graph(CALIB_DATA / "layernorm_transformer" / "model.onnx")
    feeds = dict(np.load(CALIB_DATA / "layernorm_transformer" / "data" / "batch_0.npz"))
    batch, tokens = next(iter(feeds.values())).shape[:2]
    linear = 2 * batch * tokens * 64 * (4 * 64 + 2 * 256)
    attention = 2 * 2 * batch * tokens * tokens * 64
    assert share(graph, **feeds).flops == linear + attention

"""Weights of products of matrices are not written with an optimised model, and are found again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scan_cases import MemoryBatches, save_model, value_info

from overflow_fixer.graph.copies import copy_model
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.ranges.kept_weights import put_back, set_aside

node = helper.make_node
RNG = np.random.default_rng(0)
CHANNELS, SIDE = 16, 12


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(RNG.normal(0, 0.1, shape).astype(np.float32), name)


def classifier(path: Path) -> Graph:
    """Three convolutions and two products; all weights but v and w0 are large enough to stay in the file."""
    nodes = [
        node("Conv", ["x", "v"], ["b"], pads=[1] * 4),
        node("Conv", ["b", "w0"], ["c0"], pads=[1] * 4),
        node("Conv", ["c0", "w1"], ["c1"], pads=[1] * 4),
        node("GlobalAveragePool", ["c1"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w2"], ["g"]),
        node("MatMul", ["g", "w3"], ["y"]),
    ]
    weights = [
        weight("v", 3, 3, 3, 3),
        weight("w0", CHANNELS, 3, 3, 3),
        weight("w1", 32, CHANNELS, 3, 3),
        weight("w2", 32, 300),
        weight("w3", 300, 20),
    ]
    return save_model(path, nodes, [value_info("x", dims=[1, 3, SIDE, SIDE])], [value_info("y")], weights)


def batch() -> MemoryBatches:
    return MemoryBatches([{"x": RNG.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)}])


def test_what_products_alone_read_is_an_input_meanwhile(tmp_path: Path) -> None:
    graph = classifier(tmp_path / "m.onnx")
    model = copy_model(graph)
    weights = set_aside(model, graph)
    assert [tensor.name for tensor in weights] == ["w2", "w3"]
    assert [(info.name, len(info.type.tensor_type.shape.dim)) for info in model.graph.input] == [
        ("x", 4),
        ("w2", 2),
        ("w3", 2),
    ]
    assert [tensor.name for tensor in model.graph.initializer] == ["v", "w0", "w1"]

    work = tmp_path / "work"
    work.mkdir()
    assert put_back(model, weights, graph.folder, work) == tmp_path.resolve()
    assert [info.name for info in model.graph.input] == ["x"]
    places = {
        tensor.name: entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert places == {"w1": "work/m.onnx", "w2": "m.onnx", "w3": "m.onnx"}


def read_by(*others: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [node("MatMul", ["x", "w"], ["m"]), *others]


def reading_body() -> onnx.GraphProto:
    return helper.make_graph([node("Neg", ["w"], ["n"])], "b", [], [value_info("n")])


@pytest.mark.parametrize(
    "others",
    [
        [node("Neg", ["w"], ["y"])],
        [node("Gemm", ["m", "x"], ["g"]), node("MatMul", ["g", "w"], ["h"]), node("Abs", ["w"], ["y"])],
        [
            node("Constant", [], ["flag"], value=helper.make_tensor("flag", TensorProto.BOOL, [], [True])),
            node("If", ["flag"], ["y"], then_branch=reading_body(), else_branch=reading_body()),
        ],
    ],
)
def test_what_another_reads_stays(tmp_path: Path, others: list[onnx.NodeProto]) -> None:
    graph = save_model(
        tmp_path / "m.onnx",
        read_by(*others),
        [value_info("x", dims=[64, 64])],
        [value_info("y")],
        [weight("w", 64, 64)],
    )
    assert set_aside(copy_model(graph), graph) == []


@pytest.mark.parametrize("is_input", [True, False])
def test_what_is_an_input_or_an_output_stays(tmp_path: Path, is_input: bool) -> None:
    x, w = value_info("x", dims=[64, 64]), value_info("w", dims=[64, 64])
    inputs, outputs = ([x, w], [value_info("m")]) if is_input else ([x], [value_info("m"), w])
    graph = save_model(tmp_path / "m.onnx", read_by(), inputs, outputs, [weight("w", 64, 64)])
    assert set_aside(copy_model(graph), graph) == []


@pytest.mark.parametrize("is_external", [False, True])
def test_the_scan_of_optimised_kernels_finds_them(tmp_path: Path, is_external: bool) -> None:
    """In the model's file or in a file of their own, below its folder."""
    graph = classifier(tmp_path / "m.onnx")
    if is_external:
        (tmp_path / "data").mkdir()
        model = onnx.load(tmp_path / "m.onnx")
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="data/weights.bin")
        graph = load_graph(tmp_path / "m.onnx")
    data = batch()
    exact, near = (collect_ranges(graph, data, observe=way) for way in ("reductions", "optimized"))
    assert near.observe == "optimized"
    for one, other in zip(exact.ranges, near.ranges, strict=True):
        np.testing.assert_allclose(
            [other.min, other.max], [one.min, one.max], rtol=0, atol=1e-5 * one.max_abs
        )

"""Instrumenting adds nodes in the right places, takes no name, and leaves the model as it was."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scan_cases import save_model, value_info

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner import look_inside
from overflow_fixer.ranges.fetched import mark_tensors
from overflow_fixer.ranges.instrument import add_probes
from overflow_fixer.ranges.probing import Probing
from overflow_fixer.ranges.readings import read_probes
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.sessions.settings import has_native_probes

NEWEST_OPSET = 23
"""The newest that the oldest ONNX Runtime in use runs."""


def chain(path: Path, length: int) -> Graph:
    names = ["x", *(f"t{i}" for i in range(length))]
    nodes = [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(length)]
    return save_model(path, nodes, [value_info("x", dims=[2])], [value_info(names[-1])])


def test_a_probe_stands_directly_behind_its_producer(tmp_path: Path) -> None:
    graph = chain(tmp_path / "m.onnx", 3)
    nodes = add_probes(graph, ["x", "t0", "t1", "t2"], Probing({"t1"})).build_model().graph.node
    written = [node.output[0] for node in nodes]
    own = [i for i, name in enumerate(written) if name in ("t0", "t1", "t2")]
    first_of = {
        name: next(i for i, node in enumerate(nodes) if name in node.input) for name in ("x", "t0", "t1")
    }
    assert first_of["x"] < own[0]
    assert (first_of["t0"], first_of["t1"]) == (own[0] + 1, own[1] + 1)
    assert all(node.op_type != "Neg" for node in nodes[own[0] + 1 : own[1]])


@pytest.mark.skipif(not has_native_probes(), reason="the library was not built")
def test_what_a_native_node_tells_of_its_outputs_and_what_it_reads_needs_no_probes(tmp_path: Path) -> None:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2, 3, 4, 4])], [value_info("z")])
    inside = look_inside(graph, is_native=True)
    inner = [value.tensor for value in inside.values]
    tensors = [*inner, "x", "y", "z"]
    probed = add_probes(inside.graph, tensors, Probing(tensors, is_native=True))
    model = probed.build_model()
    assert [node.input[0] for node in model.graph.node if node.op_type == "Probe"] == ["y", "z"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    vectors = run_session(open_session(model, graph.folder), probed.fetches, Batch("b", {"x": x}))
    found = read_probes(probed, vectors).detailed
    sums = {"sum": x.sum((2, 3)), "sum of magnitudes": np.abs(x).sum((2, 3))}
    expected = [*(sums[value.quantity].max() for value in inside.values), x.max()]
    np.testing.assert_allclose(found["max"][:3], expected, rtol=1e-6)


@pytest.mark.skipif(not has_native_probes(), reason="the library was not built")
def test_of_rows_no_more_is_written_than_is_read(tmp_path: Path) -> None:
    """A norm's extremes are read by what compares them; of its sums what is told of them is enough."""
    nodes = [helper.make_node("LayerNormalization", ["x", "s"], ["y"])]
    scale = numpy_helper.from_array(np.ones(4, np.float32), "s")
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2, 4])], [value_info("y")], [scale])
    inside = look_inside(graph, is_native=True)
    tensors = [*(value.tensor for value in inside.values), "x", "y"]
    nodes = add_probes(inside.graph, tensors, Probing(tensors, is_native=True)).build_model().graph.node
    read = {name for node in nodes for name in node.input}
    (moments,) = (node for node in nodes if node.op_type == "Moments")
    written = list(filter(None, moments.output[:-1]))
    assert 0 < len(written) < len(moments.output[:-1])
    assert read.issuperset(written)


def test_what_an_expression_reads_in_another_shape_needs_no_probe(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("GroupNormalization", ["r", "one", "zero"], ["y"], num_groups=2),
    ]
    constants = [
        numpy_helper.from_array(np.full(4, value, np.float32), name)
        for name, value in (("one", 1), ("zero", 0))
    ]
    given, told = [value_info("x", dims=[2, 4, 3])], [value_info("y")]
    graph = save_model(tmp_path / "m.onnx", nodes, given, told, constants, opset=21, ir_version=10)
    inside = look_inside(graph, is_native=True)
    tensors = [*(value.tensor for value in inside.values), "r", "y"]
    how = Probing(tensors, sources={name: name for name in tensors}, is_native=True)
    model = add_probes(inside.graph, tensors, how).build_model()
    assert [node.input[0] for node in model.graph.node if node.op_type == "Probe"] == ["y"]


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    graph = chain(tmp_path / "m.onnx", 3)
    before = graph.model.SerializeToString()
    add_probes(graph, graph.tensors, Probing({"t1"}))
    mark_tensors(graph, ["t0", "t1", "t2"])
    assert graph.model.SerializeToString() == before


def test_no_name_of_the_model_is_taken(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node(
                "Identity", ["__range_probe_0_abs"], ["___range_probe_x"], name="____range_probe_"
            )
        ],
        "b",
        [],
        [value_info("___range_probe_x")],
    )
    nodes = [
        helper.make_node("Neg", ["range_probe_0_max"], ["__range_probe_0_abs"], name="_range_probe_all_1_1"),
        helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body),
    ]
    inputs = [value_info("range_probe_0_max", dims=[2]), value_info("flag", TensorProto.BOOL, [])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")])
    probed = add_probes(graph, [name for name in graph.tensors if graph.is_float(name)])
    added = {name for node in probed.build_model().graph.node for name in node.output} - set(graph.tensors)
    assert all(name.startswith("_____range_probe_") for name in added)
    open_session(probed.build_model(), graph.folder, by_priority=True)


def test_what_is_added_grows_with_the_graph_alone(tmp_path: Path) -> None:
    sizes = []
    for length in (1000, 2000, 3000):
        graph = chain(tmp_path / "m.onnx", length)
        sizes.append(add_probes(graph, graph.tensors).build_model().ByteSize())
    assert abs((sizes[2] - sizes[1]) / (sizes[1] - sizes[0]) - 1) < 0.05


def test_outputs_with_a_probe_are_dropped_and_others_stay(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Shape", ["r"], ["s"])]
    outputs = [value_info("r"), value_info("s", TensorProto.INT64)]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2])], outputs)
    probed = add_probes(graph, ["x", "r"])
    assert [info.name for info in probed.build_model().graph.output] == ["s", *probed.fetches]


@pytest.mark.parametrize("opset", range(9, NEWEST_OPSET + 1))
def test_probes_run_in_every_opset(tmp_path: Path, opset: int) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        helper.make_node("Cast", ["t"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["t"], ["h"], to=TensorProto.FLOAT16),
    ]
    outputs = [value_info("d", TensorProto.DOUBLE), value_info("h", TensorProto.FLOAT16)]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[3])], outputs, opset=opset, ir_version=4
    )
    tensors = ["x", "t", "d", "h"]
    feeds = {"x": np.array([-2, 0, 7], np.float32)}
    for detailed, shapes in ((set(), {}), (set(), graph.sure_shapes), (set(tensors), graph.sure_shapes)):
        probed = add_probes(graph, tensors, Probing(detailed, tensors, shapes=shapes))
        session = open_session(probed.build_model(), graph.folder, by_priority=True)
        vectors = run_session(session, probed.fetches, Batch("b", feeds))
        quick, full, is_in_range, has_nan, high = read_probes(probed, vectors)
        assert np.isnan(high).tolist() == [True] * len(full)
        assert (len(quick), len(full)) == ((0, 4) if detailed else (4, 0))
        assert is_in_range.all()
        assert not has_nan.any()
        found = full if detailed else quick
        assert found["max"].tolist() == [7, 2, 2, 2]
        assert found["min"].tolist() == [-2, -7, -7, -7]
        assert found["min_nonzero_abs"].tolist() == [2, 2, 2, 2]
        assert found["element_count"].tolist() == [3, 3, 3, 3]


def test_large_tensors_are_reduced_in_rows_in_every_opset_alike(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 96, 100)).astype(np.float32)
    for opset in (9, 13, 18):
        nodes = [helper.make_node("Tanh", ["x"], ["y"])]
        inputs = [value_info("x", dims=["n", 96, 100])]
        graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")], opset=opset, ir_version=4)
        probed = add_probes(graph, ["x", "y"], Probing(small=["x"], shapes={"x": ("n", 96, 100)}))
        session = open_session(probed.build_model(), graph.folder, by_priority=True)
        vectors = run_session(session, probed.fetches, Batch("b", {"x": values}))
        quick = read_probes(probed, vectors).quick
        assert sum(map(len, vectors)) > 3 * 60
        assert (quick["max"][0], quick["min"][0]) == (values.max(), values.min())
        assert quick["min_nonzero_abs"][0] == np.abs(values).min()
        assert quick["element_count"].tolist() == [values.size] * 2

"""Which type every tensor is stored in and every node runs in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper
from typed_models import make_typed, write_model

from overflow_fixer.backends.mixed_onnx.assignment import FLOAT, FLOAT16, assign_types, read_type
from overflow_fixer.graph.model import load_graph
from overflow_fixer.graph.nodes import Node

TEXT = """g (float[N,4] x, int64[N,4] i, double[N,4] d) => (bool[N,4] b, float[N,4] y) {
    a = Relu(x) n = LayerNormalization(a, w) c = Cast <to: int = 1> (i) e = Add(n, c)
    b = Greater(a, e) s = Shape(a) j = Add(i, i) f = Neg(d) y = Abs(e)
}"""
TEXT = TEXT.replace("{\n", "<float[4] w = {1, 2, 3, 4}> {\n", 1)


def test_tensors_are_stored_in_their_producers_type(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    found = assign_types(graph, {"node_of_e"})
    expected = {"x": FLOAT, "a": FLOAT16, "n": FLOAT, "c": FLOAT16, "e": FLOAT, "y": FLOAT16}
    assert dict(found.stored) == expected
    assert assign_types(graph, (), "fp16").stored["x"] == FLOAT16


def test_nodes_without_floats_are_in_no_list(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    found = assign_types(graph, {"node_of_e"})
    assert found.nodes_in(graph, FLOAT16) == ("node_of_a", "node_of_c", "node_of_y")
    assert found.nodes_in(graph, FLOAT) == ("node_of_n", "node_of_e")
    assert not {"node_of_j", "node_of_f"} & set(found.compute)


def test_a_pinned_node_is_not_listed_as_kept(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    assert [kept.node for kept in assign_types(graph, ()).kept] == ["node_of_n"]
    assert assign_types(graph, {"node_of_n"}).kept == ()


def test_comparisons_read_fp16_only_where_all_they_read_is_fp16(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    assert assign_types(graph, ()).compute["node_of_b"] == FLOAT16
    assert assign_types(graph, {"node_of_e"}).compute["node_of_b"] == FLOAT
    assert assign_types(graph, {"node_of_b"}).compute["node_of_b"] == FLOAT


def test_casts_read_what_is_stored(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    assert read_type(graph, graph.by_label["node_of_c"], 0, FLOAT16) is None
    assert read_type(graph, graph.by_label["node_of_e"], 0, FLOAT16) == FLOAT16
    assert read_type(graph, graph.by_label["node_of_e"], 0, FLOAT) == FLOAT


def test_a_comparison_of_constants_reads_them_whole(tmp_path: Path) -> None:
    """2049 is 2048 in FP16, and would not be greater."""
    text = """g (float[1] x) => (bool[1] b, float[1] y) <float[1] k = {2049.0}, float[1] l = {2048.0}> {
        b = Greater(k, l) y = Relu(x)
    }"""
    typed = make_typed(write_model(tmp_path, text))
    assert typed.run({"x": np.ones(1, np.float32)})["b"].tolist() == [True]


def test_a_weight_handed_on_to_a_node_that_is_kept_is_not_rounded_on_its_way(tmp_path: Path) -> None:
    text = """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1.0001, 3.0001}> {
        k = Identity(w) y = LayerNormalization(x, k)
    }"""
    graph = load_graph(write_model(tmp_path, text))
    assert assign_types(graph, ()).stored["k"] == FLOAT


def test_a_nodes_own_reason_goes_before_that_of_its_reader(tmp_path: Path) -> None:
    text = """g (float[N,4] x) => (float[N,4] y) <float a = {0.0}, float b = {4.0}, float c = {1.0}> {
        r = Range(a, b, c) y = Add(x, r)
    }"""
    graph = load_graph(write_model(tmp_path, text))
    kept = assign_types(graph, {"node_of_y"}).kept
    assert [(one.node, one.reason) for one in kept] == [("node_of_r", "TensorRT has no FP16 Range")]


def test_another_domains_cast_reads_what_it_computes_in(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    foreign = Node.of(0, "foreign", helper.make_node("Cast", ["a"], ["q"], domain="com.example"))
    assert read_type(graph, foreign, 0, FLOAT) == FLOAT

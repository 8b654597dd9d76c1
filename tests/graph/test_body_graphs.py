"""A body as a graph of its own: its inputs and what it captures, types, constants, names, and what is refused."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.graph import body_graphs
from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph, load_graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _parse(folder: Path, text: str, initializers: list[TensorProto] | None = None) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.initializer.extend(initializers or [])
    onnx.save(model, folder / "m.onnx")
    return load_graph(folder / "m.onnx")


BRANCHES = """
g (float[2,3] x, bool c) => (float[2,3] y) {
    k = Constant <value_float = 2.0> ()
    h = Exp (x)
    parts = SplitToSequence (h)
    [branch] y = If (c) <
        then_branch = then () => (float[2,3] t) {
            zero = Constant <value = int64 {0}> ()
            one = SequenceAt (parts, zero)
            m = Mul (one, k)
            t = MatMul (m, w)
        },
        else_branch = else () => (float[2,3] e) { e = Neg (x) }
    >
}
"""


def test_what_a_body_captures_is_an_input_or_a_constant(tmp_path: Path) -> None:
    weights = np.ones((100, 100), np.float32)
    graph = _parse(tmp_path, BRANCHES, [numpy_helper.from_array(weights, "w")])
    then, other = sorted(find_bodies(graph).read, key=lambda body: body.attribute, reverse=True)
    assert (then.attribute, then.prefix, then.name) == (
        "then_branch",
        "branch/then_branch/",
        "branch/then_branch",
    )
    assert then.node is graph.by_label["branch"]
    assert then.captured == ("parts", "k", "w")
    assert then.captured_constants == {"k", "w"}
    assert [info.name for info in then.graph.model.graph.input] == ["parts"]
    assert then.graph.other_types["parts"].sequence_type.elem_type.tensor_type.elem_type == FLOAT
    assert then.graph.read_constant("k") == 2
    reference = then.graph.initializers["w"]
    assert (reference.data_location, reference.raw_data) == (TensorProto.EXTERNAL, b"")
    np.testing.assert_array_equal(then.graph.read_constant("w"), weights)
    assert {name: then.graph.dtypes[name] for name in ("zero", "one", "m", "t")} == {
        "zero": INT64,
        "one": FLOAT,
        "m": FLOAT,
        "t": FLOAT,
    }
    assert [(spec.name, spec.elem_type, spec.dims) for spec in other.graph.inputs] == [("x", FLOAT, None)]
    assert other.outputs == ("e",)
    assert "e" not in other.graph.sure_shapes
    assert other.graph.opset == graph.opset


def test_a_loops_inputs_have_types_and_no_shapes(tmp_path: Path) -> None:
    text = """
    g (float[2] x, float16[2] q, int64 trips) => (float[N] y, float16[M] z) {
        [l] y, z = Loop (trips, , x, q) <
            body = b (int64 i, bool c, float[2] s, float16[2] r) => (bool c, float[2] t, float16[2] r) {
                t = Concat <axis = 0> (s, x)
            }
        >
    }"""
    (body,) = find_bodies(_parse(tmp_path, text)).read
    assert body.inputs == ("i", "c", "s", "r")
    assert [(spec.name, spec.elem_type) for spec in body.graph.inputs] == [
        ("i", INT64),
        ("c", BOOL),
        ("s", FLOAT),
        ("r", TensorProto.FLOAT16),
        ("x", FLOAT),
    ]
    assert all(spec.dims is None for spec in body.graph.inputs)


def test_a_scan_whose_body_leaves_out_the_types(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["s", "p"], ["t"])]
    names = [onnx.ValueInfoProto(name=name) for name in ("s", "p")]
    step = helper.make_graph(nodes, "step", names, [onnx.ValueInfoProto(name="t")])
    node = helper.make_node("Scan", ["x", "parts"], ["y"], body=step, num_scan_inputs=1, name="scan")
    inputs = [helper.make_tensor_value_info(n, FLOAT, d) for n, d in (("x", [2]), ("parts", [5, 2]))]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    (body,) = find_bodies(load_graph(tmp_path / "m.onnx")).read
    assert [spec.elem_type for spec in body.graph.inputs] == [FLOAT, FLOAT]
    assert body.graph.dtypes["t"] == FLOAT


@pytest.mark.parametrize(
    ("tensor", "prefix"),
    [
        ("late", "branch/then_branch/"),
        ("branch/then_branch", "branch/then_branch/"),
        ("branch/then_branch/t", "_branch/then_branch/"),
    ],
)
def test_a_prefix_begins_no_tensor(tensor: str, prefix: str, tmp_path: Path) -> None:
    graph = _branches(tmp_path, tensor, ["branch"])
    assert [body.prefix for body in find_bodies(graph).read if body.attribute == "then_branch"] == [prefix]


@pytest.mark.parametrize("label", ["a/then_branch/b", "a/then_branch", "a"])
def test_prefixes_of_nodes_whose_names_look_nested_do_not_begin_each_other(
    label: str, tmp_path: Path
) -> None:
    graph = _branches(tmp_path, "late", ["a", label])
    prefixes = [body.prefix for body in find_bodies(graph).read]
    assert len(set(prefixes)) == 4
    assert not any(one != other and one.startswith(other) for one in prefixes for other in prefixes)
    assert not any(label.startswith(prefix) for label in graph.by_label for prefix in prefixes)


def _branches(folder: Path, tensor: str, labels: list[str]) -> Graph:
    """An If for each label, and a tensor of any name."""
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2]), helper.make_tensor_value_info("c", BOOL, [])]
    nodes = []
    for number, label in enumerate(labels):
        attributes = {}
        for branch, op_type in (("then_branch", "Neg"), ("else_branch", "Abs")):
            name = f"{branch}_{number}"
            info = helper.make_tensor_value_info(name, FLOAT, None)
            attributes[branch] = helper.make_graph(
                [helper.make_node(op_type, ["x"], [name])], branch, [], [info]
            )
        nodes.append(helper.make_node("If", ["c"], [f"y{number}"], name=label, **attributes))
    nodes.append(helper.make_node("Exp", ["y0"], [tensor]))
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(tensor, FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return load_graph(folder / "m.onnx")


def test_bodies_that_are_not_read_are_told_with_the_reason(tmp_path: Path) -> None:
    text = """
    g (float[2] x, seq(float[2]) q, bool c) => (float[2] y, seq(float[2]) r) {
        [branch] y = If (c) <
            then_branch = then () => (float[2] t) { u = nowhere.Odd (x) t = Neg (x) },
            else_branch = else () => (float[2] e) { e = Neg (x) }
        >
        [map] r = SequenceMap (q) <body = b (float[2] p) => (float[2] f) { f = Exp (p) }>
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>\n{text}')
    onnx.save(model, tmp_path / "m.onnx")
    found = find_bodies(load_graph(tmp_path / "m.onnx"))
    assert [body.prefix for body in found.read] == ["branch/else_branch/"]
    assert set(found.unread) == {"branch/then_branch", "map/body"}
    assert found.unread["branch/then_branch"].startswith("the body cannot stand alone: ONNX Runtime")
    assert "Odd" in found.unread["branch/then_branch"]
    assert found.unread["map/body"] == "what runs inside SequenceMap is not looked into"


def test_bodies_are_made_once_and_go_with_their_graph(tmp_path: Path) -> None:
    graph = _branches(tmp_path, "late", ["a"])
    assert find_bodies(graph) is find_bodies(graph)
    body = weakref.ref(find_bodies(graph).read[0])
    count = len(body_graphs._known)
    del graph
    gc.collect()
    assert body() is None
    assert len(body_graphs._known) < count

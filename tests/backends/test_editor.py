"""A model goes through GraphSurgeon and comes out as it went in."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper
from typed_models import save, write_model

from overflow_fixer.backends.mixed_onnx.editor import Editor
from overflow_fixer.graph.copies import embed_weights
from overflow_fixer.graph.model import load_graph

CALIB_DATA = Path(__file__).resolve().parents[2] / "calib_data"
MODELS = {
    "bodies": """g (bool k, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        a = Relu(x)
        y = If (k) <
            then_branch = t () => (float[2] o) <float[2] c = {1, 2}> { m = Add(a, c) o = Mul(m, w) },
            else_branch = e () => (float[2] p) { p = Add(a, x) }
        >
    }""",
    "left out": 'g (float[4] x) => (float[4] y) { y, "" = Dropout(x, "", "") }',
    "repeated": "g (float[4] x) => (float[4] y, float[4] x) { a = Mul(x, x) y = Sum(a, a, x, a) }",
    "attributes": """g (float[4] x) => (string[2] s, float[4] y) {
        s = Constant <value_strings: strings = ["a", "b"]> () e = Constant <value_floats: floats = []> ()
        y = LeakyRelu <alpha: float = 0.3> (x)
    }""",
    "optional": """g (optional(float[2]) o, seq(float[2]) q) => (float[2] y, seq(float[2]) q) {
        y = OptionalGetElement(o)
    }""",
}


def _round_trip(path: Path) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    graph = load_graph(path)
    editor = Editor(graph)
    assert len(editor.nodes) == len(graph.nodes)
    closed = editor.close(editor.nodes, graph.initializers.values())
    embed_weights(closed, graph)
    original = onnx.load(path, load_external_data=False)
    del original.graph.value_info[:]
    return closed, original


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_lost(tmp_path: Path, name: str) -> None:
    closed, original = _round_trip(write_model(tmp_path, MODELS[name]))
    assert closed == original


@pytest.mark.parametrize("path", sorted(CALIB_DATA.glob("*/model.onnx")), ids=lambda path: path.parent.name)
def test_the_samples_come_out_as_they_went_in(path: Path) -> None:
    closed, original = _round_trip(path)
    assert closed == original


def test_what_graphsurgeon_cannot_carry_is_kept(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path, "g (float[4] x) => (float[4] y) { y = Neg(x) }"))
    node = model.graph.node[0]
    node.attribute.append(helper.make_attribute("raw", b"\xff\xfe"))
    node.attribute.append(helper.make_attribute("type", helper.make_tensor_type_proto(1, [2])))
    node.attribute.append(helper.make_attribute("graphs", [model.graph]))
    node.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    node.metadata_props.add(key="k", value="v")
    node.domain = "com.example"
    node.overload = "second"
    model.opset_import.add(domain="com.example", version=3)
    model.graph.quantization_annotation.add(tensor_name="x")
    path = save(tmp_path, model)
    graph = load_graph(path)
    editor = Editor(graph)
    assert editor.close(editor.nodes, []) == model


def test_what_a_body_has_of_its_own_is_not_renamed(tmp_path: Path) -> None:
    """Its inputs, its weights, and what its nodes write, in a body inside it too; the other branch reads those outside."""
    inner = helper.make_graph([helper.make_node("Sum", ["w", "m"], ["o"])], "inner", [], [])
    weights = [helper.make_tensor(name, 1, [1], [0]) for name in "ws"]
    nested = helper.make_node("If", ["k"], ["q"], then_branch=inner, else_branch=inner)
    read = helper.make_node("Sum", ["w", "s", "x", "q", "m"], ["r"])
    own = helper.make_graph(
        [nested, read], "own", [onnx.ValueInfoProto(name="x")], [onnx.ValueInfoProto(name="r")], weights
    )
    outside = helper.make_graph([read], "outside", [], [onnx.ValueInfoProto(name="r")])
    text = "g (bool k, float[1] w, float[1] s, float[1] x, float[1] q, float[1] m) => (float[1] y) { y = Identity(w) }"
    model = onnx.load(write_model(tmp_path, text))
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("If", ["k"], ["y"], then_branch=own, else_branch=outside))
    editor = Editor(load_graph(save(tmp_path, model)))
    for name in "wsxqm":
        editor.tensors[name].name += "__fp32"
    (written,) = editor.close(editor.nodes, []).graph.node
    bodies = {(found.name, node.op_type): node for found in written.attribute for node in found.g.node}
    assert list(bodies["then_branch", "Sum"].input) == ["w", "s", "x", "q", "m__fp32"]
    assert list(bodies["then_branch", "If"].attribute[0].g.node[0].input) == ["w", "m__fp32"]
    assert list(bodies["else_branch", "Sum"].input) == [f"{name}__fp32" for name in "wsxqm"]

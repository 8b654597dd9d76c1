"""Written-out LayerNorms behind a Cast are kept from a fusion that ONNX Runtime refuses; their values stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from typed_models import Typed, assert_same, make_typed, write_model

from overflow_fixer.backends.mixed_onnx.default_loading import _find_fault

SEEN = (1, 32)
"""The newest ONNX Runtime in which the fusion was seen to fail."""
VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
NORM = ("m", "c", "q", "v", "a", "r", "n", "s", "y")
X = np.asarray([[[1.0002, -3, 5, 300], [0.1, 655, -2, 7]]], np.float32)


def _write(
    folder: Path,
    *,
    opset: int = 17,
    source: str = "h",
    shape: str = "N,2,4",
    before: str = "",
    weight: str = "w",
    output: str = "",
    more: str = "",
) -> Path:
    """A norm of `source`, which h = Relu(x) is in FP16 unless pinned; its scale is `weight`."""
    mean = "ReduceMean <axes = [-1]>" if opset < 18 else "ReduceMean"
    axes = "" if opset < 18 else ", axes"
    text = f"""g (float[{shape}] x) => (float[{shape}] y{output})
        <float[4] w = {{1.5, 2.25, 3.0, 4.125}}, float[4] b = {{0.5, 0.25, 1.0, 2.0}}, float two = {{2}},
         float[1,4] row = {{1.5, 2.25, 3.0, 4.125}}, float tiny = {{0.00001}}, int64[1] axes = {{-1}}> {{
            h = Relu (x) {before}
            m = {mean} ({source}{axes}) c = Sub ({source}, m) q = Pow (c, two) v = {mean} (q{axes})
            a = Add (v, tiny) r = Sqrt (a) n = Div (c, r) s = Mul (n, {weight}) y = Add (s, b) {more}
        }}"""
    return write_model(folder, text, opset=opset)


def _dims(typed: Typed, name: str = "w") -> tuple[int, ...]:
    return typed.initializers[name].shape


@pytest.mark.parametrize("opset", [17, 18, 21])
@pytest.mark.parametrize("pinned", [NORM, ("h",)], ids=["FP32 behind FP16", "FP16 behind FP32"])
def test_the_scale_gets_an_axis_and_the_model_loads_as_by_default(
    opset: int, pinned: tuple[str, ...], tmp_path: Path
) -> None:
    typed = make_typed(_write(tmp_path, opset=opset), pinned=pinned)
    assert (_dims(typed), _dims(typed, "b")) == ((1, 4), (4,))
    assert _find_fault(typed.artifact.path, "", ()) == ""
    without = onnx.load(typed.artifact.path)
    next(t for t in without.graph.initializer if t.name == "w").dims[:] = [4]
    onnx.save(without, tmp_path / "without.onnx")
    if VERSION <= SEEN:
        assert "LayerNormalization" in str(_find_fault(tmp_path / "without.onnx", "", ()))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(tmp_path / "without.onnx", options).run(None, {"x": X})
    guarded = onnxruntime.InferenceSession(typed.artifact.path, options).run(None, {"x": X})
    assert_same(plain[0], guarded[0])


def test_a_norm_behind_a_cast_of_the_model_is_guarded_too(tmp_path: Path) -> None:
    path = _write(tmp_path, before="f = Cast <to: int = 1> (h)", source="f")
    assert _dims(make_typed(path, pinned=["f", *NORM])) == (1, 4)
    path = _write(tmp_path, before="f = Cast <to: int = 10> (h) g = Cast <to: int = 1> (f)", source="g")
    assert _dims(make_typed(path, pinned=["g", *NORM], name="other/m.onnx")) == (1, 4)


@pytest.mark.parametrize(
    ("pinned", "model"),
    [
        (NORM, {"opset": 16}),
        ((), {}),
        (("h", *NORM), {}),
        (NORM, {"source": "x"}),
        ((), {"source": "x"}),
        (NORM, {"shape": "4"}),
        (NORM, {"more": "z = Concat <axis = 0> (w, b)", "output": ", float[8] z"}),
        (NORM, {"more": "z = Add (w, b)", "output": ", float[4] z"}),
        (NORM, {"more": "z = MatMul (h, w)", "output": ", float[N,2] z"}),
        (NORM, {"output": ", float[4] w"}),
        (NORM, {"shape": "N,4", "weight": "row"}),
        (NORM, {"before": "u = Identity (w)", "weight": "u"}),
        (NORM, {"before": "u = Constant <value_floats = [1.5, 2.25, 3.0, 4.125]> ()", "weight": "u"}),
    ],
    ids=[
        "fused otherwise before opset 17",
        "in FP16",
        "in FP32",
        "of an FP32 input",
        "of a Cast that Relu reads too",
        "of one axis",
        "joined",
        "added to another of one axis",
        "multiplied as a vector",
        "given out",
        "of two axes",
        "a copy",
        "a node",
    ],
)
def test_where_it_may_not_change_or_need_not_the_scale_stays(
    pinned: tuple[str, ...], model: dict[str, str], tmp_path: Path
) -> None:
    typed = make_typed(_write(tmp_path, **model), pinned=pinned)  # type: ignore[arg-type]
    before = {tensor.name: tuple(tensor.dims) for tensor in typed.graph.model.graph.initializer}
    assert "w" in before
    assert {name: before[name.removesuffix("__fp16")] for name in typed.initializers} == {
        name: array.shape for name, array in typed.initializers.items()
    }


def test_a_scale_that_a_body_reads_stays(tmp_path: Path) -> None:
    more = "o = Cast <to: int = 9> (two) z = If (o) <then_branch = t () => (float[4] p) { p = Neg (w) },"
    more += " else_branch = e () => (float[4] q2) { q2 = Abs (w) }>"
    typed = make_typed(_write(tmp_path, more=more, output=", float[4] z"), pinned=NORM)
    assert _dims(typed) == (4,)


def test_a_scale_that_fp16_reads_too_gets_the_axis_in_both(tmp_path: Path) -> None:
    path = _write(tmp_path, more="z = Mul (h, w)", output=", float[N,2,4] z")
    typed = make_typed(path, pinned=NORM)
    assert sorted(a.shape for name, a in typed.initializers.items() if name.startswith("w")) == [
        (1, 4),
        (1, 4),
    ]


def test_a_scale_in_a_file_beside_the_model_gets_the_axis(tmp_path: Path) -> None:
    path = _write(tmp_path)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    typed = make_typed(path, pinned=NORM)
    np.testing.assert_array_equal(typed.initializers["w"], np.float32([[1.5, 2.25, 3.0, 4.125]]))


def test_a_norm_without_a_scale_has_nothing_to_guard(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("ReduceMean", ["h"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["h", "m"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["v"], axes=[-1]),
        helper.make_node("Sqrt", ["v"], ["r"]),
        helper.make_node("Div", ["c", "r"], ["y"]),
    ]
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", floats[:1], floats[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    typed = make_typed(tmp_path / "model.onnx", pinned=["m", "c", "q", "v", "r", "y"])
    assert _find_fault(typed.artifact.path, "", ()) == ""
    assert typed.initializers == {}

"""A LayerNorm that is written out becomes LayerNormalization where that is proved equal; else nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.errors import CalibrationError, ModelError, OutputError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.layernorm_fusion import candidates, fuse_layernorms
from overflow_fixer.layernorm_fusion.proof import _relative_error
from overflow_fixer.patterns import find_regions
from overflow_fixer.records import Batch, FusedModel
from overflow_fixer.sessions.session import SessionRunner, open_session

CALIB_DATA = Path(__file__).parents[1] / "calib_data"
SIZE = 8
RNG = np.random.default_rng(0)
GAMMA, BETA = RNG.normal(size=(2, SIZE)).astype(np.float32)
X = RNG.normal(size=(2, 3, SIZE)).astype(np.float32)
CONSTANTS = {"two": scalar(2), "eps": scalar(1e-3), "g": GAMMA, "b": BETA}
AFFINE = [node("Mul", "n g", "w"), node("Add", "w b", "y")]


def _normalize(source: str = "x", axes: list[int] | None = None) -> list[onnx.NodeProto]:
    reduced = {"axes": [-1] if axes is None else axes}
    return [
        node("ReduceMean", source, "m", **reduced),
        node("Sub", f"{source} m", "d"),
        node("Pow", "d two", "q"),
        node("ReduceMean", "q", "v", **reduced),
        node("Add", "v eps", "s"),
        node("Sqrt", "s", "r"),
        node("Div", "d r", "n"),
    ]


def _model(
    folder: Path,
    nodes: list[onnx.NodeProto] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    outputs: str = "y",
    **made: Any,
) -> Graph:
    shape = made.pop("shape", ["n", "t", SIZE])
    given = {**CONSTANTS, **(constants or {})}
    made = {"opset": 13, **made}
    return save(make_model(nodes or _normalize() + AFFINE, {"x": shape}, outputs, given, **made), folder)


def _refuse(graph: Graph, folder: Path, *arrays: np.ndarray) -> FusedModel:
    return fuse_layernorms(
        graph, folder / "fused.onnx", InMemoryCalibration([{"x": x} for x in arrays or (X,)])
    )


def _operators(fused: FusedModel) -> list[str]:
    return [at.op_type for at in load_graph(fused.files[0]).nodes]


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    return SessionRunner(open_session(path, path.parent)).run(Batch("b", {"x": x}))["y"]


def _layer_norm(x: np.ndarray, axes: tuple[int, ...] = (-1,)) -> np.ndarray:
    wide = x.astype(np.float64)
    return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-3)


def test_the_written_model_computes_a_layer_norm_with_one_node(tmp_path: Path) -> None:
    fused = _refuse(_model(tmp_path), tmp_path)
    assert (fused.files, fused.fused, fused.left) == ((tmp_path / "fused.onnx",), ("y",), {})
    assert 0 <= fused.max_relative_error < 1e-6
    assert _operators(fused) == ["LayerNormalization"]
    np.testing.assert_allclose(_run(fused.files[0], X), _layer_norm(X) * GAMMA + BETA, rtol=1e-5, atol=1e-6)
    model = onnx.load(fused.files[0])
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 17
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["b", "g"]
    onnx.checker.check_model(model, full_check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "fused.onnx"}


@pytest.mark.parametrize("opset", [13, 15, 17])
def test_a_mean_that_is_a_sum_whose_axis_is_put_back(opset: int, tmp_path: Path) -> None:
    """As jax2tf and tf2onnx write it; the batch and the time are not known."""
    put_back = [
        [
            node("ReduceSum", f"{source} last", f"{source}_t", keepdims=0),
            node("Mul", f"{source}_t share", f"{source}_u"),
            node("Reshape", f"{source}_u kept", f"{source}_r"),
            node("Expand", f"{source}_r kept", mean),
        ]
        for source, mean in (("x", "m"), ("q", "v"))
    ]
    shape = [
        node("Shape", "x", "dims"),
        node("Slice", "dims from to", "places"),
        node("Concat", "places one", "kept", axis=0),
    ]
    between = [node("Sub", "x m", "d"), node("Mul", "d d", "q")]
    nodes = [*shape, *put_back[0], *between, *put_back[1], *_normalize()[4:], *AFFINE]
    constants = {"last": ints(2), "share": scalar(1 / SIZE), "from": ints(0), "to": ints(2), "one": ints(1)}
    fused = _refuse(_model(tmp_path, nodes, constants, opset=opset), tmp_path)
    assert (fused.fused, fused.left) == (("y",), {})
    assert _operators(fused) == ["Shape", "Slice", "Concat", "LayerNormalization"]
    np.testing.assert_allclose(_run(fused.files[0], X), _layer_norm(X) * GAMMA + BETA, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 17])
def test_from_every_opset(opset: int, tmp_path: Path) -> None:
    nodes = [node("Abs", "x", "a"), *_normalize("a"), *AFFINE]
    fused = _refuse(_model(tmp_path, nodes, opset=opset), tmp_path)
    assert _operators(fused) == ["Abs", "LayerNormalization"]


def test_opset_18_where_axes_are_inputs(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", f"{at.input[0]} last", at.output[0]) if at.op_type == "ReduceMean" else at
        for at in _normalize() + AFFINE
    ]
    fused = _refuse(_model(tmp_path, nodes, {"last": ints(2)}, opset=18), tmp_path)
    assert _operators(fused) == ["LayerNormalization"]
    assert load_graph(fused.files[0]).opset == 18


@pytest.mark.parametrize(
    ("nodes", "constants", "axes", "expected"),
    [
        ([*_normalize()[:-1], node("Div", "d r", "y")], {}, (-1,), _layer_norm(X)),
        ([*_normalize(), node("Add", "n b", "y")], {}, (-1,), _layer_norm(X) + BETA),
        (_normalize() + AFFINE, {"g": scalar(3)}, (-1,), _layer_norm(X) * 3 + BETA),
        (
            _normalize(axes=[1, 2]) + AFFINE,
            {"b": BETA.reshape(1, 1, SIZE)},
            (-2, -1),
            _layer_norm(X, (-2, -1)) * GAMMA + BETA,
        ),
    ],
)
def test_parameters_take_the_shape_that_the_operator_wants(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    axes: tuple[int, ...],
    expected: np.ndarray,
    tmp_path: Path,
) -> None:
    fused = _refuse(_model(tmp_path, nodes, constants, shape=["n", 3, SIZE]), tmp_path)
    (at,) = load_graph(fused.files[0]).nodes
    assert (at.op_type, onnx.helper.get_attribute_value(at.attribute("axis"))) == (
        "LayerNormalization",
        axes[0],
    )
    np.testing.assert_allclose(_run(fused.files[0], X), expected, rtol=1e-5, atol=1e-6)


def _share(norm: list[onnx.NodeProto], tag: str) -> list[onnx.NodeProto]:
    """The nodes with the scale and the bias handed on by Identity."""
    handed = {"g": f"g_{tag}", "b": f"b_{tag}"}
    shared = [
        node(
            at.op_type,
            " ".join(handed.get(name, name) for name in at.input),
            at.output[0],
            **{each.name: onnx.helper.get_attribute_value(each) for each in at.attribute},
        )
        for at in norm
    ]
    return [*(node("Identity", *pair) for pair in handed.items()), *shared]


def test_a_scale_and_bias_that_identity_hands_on_are_constants(tmp_path: Path) -> None:
    """As exporters share equal initializers; the nodes that handed them on are gone."""
    fused = _refuse(_model(tmp_path, _share(_normalize() + AFFINE, "0")), tmp_path)
    assert (fused.fused, fused.left) == (("y",), {})
    (at,) = load_graph(fused.files[0]).nodes
    assert (at.op_type, at.inputs) == ("LayerNormalization", ("x", "g", "b"))
    np.testing.assert_allclose(_run(fused.files[0], X), _layer_norm(X) * GAMMA + BETA, rtol=1e-5, atol=1e-6)


def test_what_hands_a_constant_on_to_others_too_stays(tmp_path: Path) -> None:
    nodes = [*_share(_normalize() + AFFINE, "0"), node("Neg", "g_0", "z")]
    fused = _refuse(_model(tmp_path, nodes, outputs="y z"), tmp_path)
    assert _operators(fused) == ["Identity", "LayerNormalization", "Neg"]


def test_one_number_in_identity_takes_the_shape_that_the_operator_wants(tmp_path: Path) -> None:
    graph = _model(tmp_path, _share(_normalize() + AFFINE, "0"), {"g": scalar(3)})
    fused = _refuse(graph, tmp_path)
    assert _operators(fused) == ["LayerNormalization"]
    names = {tensor.name for tensor in onnx.load(fused.files[0]).graph.initializer}
    assert names == {"layer_norm_scale_of_y", "b"}


@pytest.mark.parametrize(
    ("nodes", "constants", "made", "reason"),
    [
        (_normalize(axes=[1]) + AFFINE, {}, {}, "not the last ones"),
        (_normalize() + AFFINE, {"g": GAMMA[:1].repeat(3)[:, None]}, {}, "another shape"),
        ([*_normalize()[:-1], node("Div", "d r", "y")], {}, {"shape": ["n", "t", "c"]}, "not known"),
        ([*_normalize(), *AFFINE, node("Exp", "v", "z")], {}, {"outputs": "y z"}, "'v', inside it, is read"),
        (_normalize() + AFFINE, {}, {"outputs": "y d"}, "'d', inside it, is read"),
        (
            [*_normalize(), node("Add", "g two", "gg"), node("Mul", "n gg", "y")],
            {},
            {},
            "computed by the model",
        ),
        (
            [*_normalize(), node("Cast", "h", "g32", to=TensorProto.FLOAT), node("Mul", "n g32", "y")],
            {"h": GAMMA.astype(np.float16)},
            {},
            "computed by the model",
        ),
        (
            [*_normalize(), node("Expand", "g dims", "wide"), node("Mul", "n wide", "y")],
            {"dims": ints(1, 1, SIZE)},
            {},
            "computed by the model",
        ),
        (
            [
                *[at for at in _normalize() if at.op_type != "Add"][:-2],
                node("Max", "v eps", "s"),
                node("Sqrt", "s", "r"),
                node("Div", "d r", "y"),
            ],
            {},
            {},
            "more than an epsilon",
        ),
        (
            [
                node("ReduceMean", "x", "m", axes=[-1]),
                node("Sub", "x m", "d"),
                node("Mul", "x x", "q"),
                node("ReduceMean", "q", "u", axes=[-1]),
                node("Mul", "m m", "c"),
                node("Sub", "u c", "v"),
                *_normalize()[4:],
                *AFFINE,
            ],
            {},
            {},
            "of 'y', its variance is written E[x^2] - E[x]^2, a form that is not fused",
        ),
    ],
)
def test_what_is_none_to_the_letter_is_left_with_the_reason(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    made: dict[str, Any],
    reason: str,
    tmp_path: Path,
) -> None:
    graph = _model(tmp_path, nodes, constants, **made)
    assert [region.kind for region in find_regions(graph)] == ["LayerNorm"]
    with pytest.raises(ModelError, match="none that can be fused") as caught:
        _refuse(graph, tmp_path)
    assert reason in str(caught.value)
    assert not (tmp_path / "fused.onnx").exists()


def test_a_recorded_size_is_not_taken_for_the_size(tmp_path: Path) -> None:
    """Someone wrote a new size into the input and left what was recorded inside."""
    nodes = [node("Neg", "x", "h"), *_normalize("h")[:-1], node("Div", "d r", "y")]
    model = make_model(nodes, {"x": ["n", "t", SIZE]}, "y", CONSTANTS, opset=13)
    stale = onnx.helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", "t", SIZE + 4])
    model.graph.value_info.append(stale)
    fused = _refuse(save(model, tmp_path), tmp_path)
    assert _operators(fused) == ["Neg", "LayerNormalization"]
    np.testing.assert_allclose(_run(fused.files[0], X), _layer_norm(-X), rtol=1e-5, atol=1e-6)


def test_one_in_float64_is_left(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "h", to=TensorProto.DOUBLE), *_normalize("h"), *AFFINE]
    wide = {name: value.astype(np.float64) for name, value in CONSTANTS.items()}
    graph = _model(tmp_path, nodes, wide, output_types={"y": TensorProto.DOUBLE})
    with pytest.raises(ModelError, match="not computed in FP32"):
        _refuse(graph, tmp_path)


def test_a_model_without_any_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no LayerNorm that is written out"):
        _refuse(_model(tmp_path, [node("Exp", "x", "y")]), tmp_path)


def test_nan_infinities_and_nothing_at_all_are_equal(tmp_path: Path) -> None:
    broken = X.copy()
    broken[0, 0, 0], broken[1, 1, 1] = np.nan, np.inf
    empty = np.zeros((0, 3, SIZE), np.float32)
    fused = _refuse(_model(tmp_path), tmp_path, broken, empty, np.zeros_like(X))
    assert np.isnan(_run(fused.files[0], broken)).sum() == 2 * SIZE
    assert fused.max_relative_error < 1e-6


def test_where_fp32_itself_is_not_sure_nothing_is_written(tmp_path: Path) -> None:
    """A mean 10,000 times the spread: each way of computing the variance gives another one, or one below zero."""
    told = r"(differs by \S+ of its largest magnitude|has another .* NaN .*) in batch_1"
    with pytest.raises(ModelError, match=f"output 'y' {told}") as caught:
        _refuse(_model(tmp_path), tmp_path / "new" / "fused", X, X + np.float32(1e4))
    assert "1e-05" in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


@pytest.mark.parametrize("wrong", [{"epsilon": 2e-3}, {"scales": ("b",)}, {"biases": ()}])
def test_a_fusion_that_is_wrong_is_found_out(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match = candidates.match_layer_norms
    monkeypatch.setattr(
        candidates, "match_layer_norms", lambda graph: (replace(norm, **wrong) for norm in match(graph))
    )
    with pytest.raises(ModelError, match="not equal"):
        _refuse(_model(tmp_path), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}


def test_without_data_nothing_is_proved(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no batch"):
        fuse_layernorms(_model(tmp_path), tmp_path / "fused.onnx", InMemoryCalibration([]))
    assert not (tmp_path / "fused.onnx").exists()


def test_the_original_is_never_overwritten(tmp_path: Path) -> None:
    graph = _model(tmp_path)
    before = graph.path.read_bytes()
    with pytest.raises(OutputError, match="belongs to the model"):
        fuse_layernorms(graph, graph.path, InMemoryCalibration([{"x": X}]))
    assert graph.path.read_bytes() == before


def test_an_opset_that_cannot_be_raised_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        raise RuntimeError("No Adapter From Version 16 for Identity")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    with pytest.raises(ModelError, match=r"opset 13, and onnx.version_converter cannot raise it: No Adapter"):
        _refuse(_model(tmp_path), tmp_path)


def test_other_layer_norms_are_fused_when_one_is_left(tmp_path: Path) -> None:
    ends = {"x": "y", "y": "out"}
    second = [
        node(
            at.op_type,
            " ".join(ends.get(n, n if n in CONSTANTS else f"{n}2") for n in at.input),
            ends.get(at.output[0], f"{at.output[0]}2"),
            **({"axes": [1]} if at.op_type == "ReduceMean" else {}),
        )
        for at in _normalize() + AFFINE
    ]
    fused = _refuse(_model(tmp_path, [*_normalize(), *AFFINE, *second], outputs="out"), tmp_path)
    assert fused.fused == ("y",)
    assert fused.left == {"out": "its axes are not the last ones, or not known"}
    assert _operators(fused).count("LayerNormalization") == 1


def test_weights_in_other_files_stay_outside(tmp_path: Path) -> None:
    weight = RNG.normal(size=(SIZE, 4096)).astype(np.float32)
    nodes = [*_normalize(), node("Mul", "n g", "w"), node("Add", "w b", "h"), node("MatMul", "h weight", "y")]
    graph = _model(tmp_path, nodes, {"weight": weight})
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(
        onnx.load(graph.path),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.bin",
        size_threshold=0,
    )
    fused = _refuse(load_graph(folder / "m.onnx"), tmp_path / "out")
    assert [file.name for file in fused.files] == ["fused.onnx", "fused.onnx.data"]
    assert fused.files[0].stat().st_size < 5000
    np.testing.assert_array_equal(load_graph(fused.files[0]).read_constant("weight"), weight)
    np.testing.assert_allclose(_run(fused.files[0], X), _run(folder / "m.onnx", X), rtol=1e-4, atol=1e-4)


def test_the_sample(tmp_path: Path) -> None:
    sample = CALIB_DATA / "layernorm_transformer"
    feeds = tuple(dict(np.load(file)) for file in sorted((sample / "data").glob("*.npz")))
    graph = load_graph(sample / "model.onnx")
    fused = fuse_layernorms(graph, tmp_path / "fused.onnx", InMemoryCalibration(feeds))
    assert _operators(fused).count("LayerNormalization") == len(fused.fused) == 3
    assert fused.max_relative_error < 1e-5
    assert find_regions(load_graph(fused.files[0])) == ()


@pytest.mark.parametrize(
    ("expected", "found", "error"),
    [
        (floats(1, -4), floats(1, -4), 0),
        (floats(1, -4), floats(1.5, -4), 0.125),
        (floats(0, 0), floats(0, 0), 0),
        (floats(0, 0), floats(0, 1e-30), np.inf),
        (floats(), floats(), 0),
        (floats(np.nan, 1), floats(np.nan, 1), 0),
        (floats(np.nan, 1), floats(1, np.nan), np.inf),
        (floats(np.inf, 1), floats(np.inf, 1), 0),
        (floats(np.inf, 1), floats(-np.inf, 1), np.inf),
        (floats(np.inf, 1), floats(np.nan, 1), np.inf),
        (floats(1), floats(1, 1), np.inf),
        (floats(1), ints(1), np.inf),
        (ints(1, 2), ints(1, 2), 0),
        (ints(1, 2), ints(1, 3), np.inf),
        ([floats(2), ints(1)], [floats(1), ints(1)], 0.5),
        ([floats(2)], [], np.inf),
        ([], [], 0),
    ],
)
def test_relative_error(expected: Any, found: Any, error: float) -> None:
    assert _relative_error(expected, found) == error

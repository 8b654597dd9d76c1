"""A plan turned into an engine over a fake TensorRT: the artifact says what was built, and is read again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from engine_layers import inspect_artifact
from engine_scripts import disobeyed, engine, small_graph, small_script
from fake_tensorrt import LayerSpec, Script, TensorSpec, Variant, fake_tensorrt
from recorded_networks import make_plan
from standin_gpu import StandInDriver, use_standin_gpu
from typed_models import write_model

from overflow_fixer.backends import choose_backend
from overflow_fixer.backends.mixed_onnx.assignment import IoTypes
from overflow_fixer.backends.tensorrt import availability, describe, emit, emit_fp32, open_runner, open_tracer
from overflow_fixer.backends.tensorrt.engine_file import sidecar_of
from overflow_fixer.errors import BackendError, PlanError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Artifact, BuildSettings, Engine, Pin, PrecisionPlan, ShapeRange

SETTINGS = BuildSettings(shapes={"x": ShapeRange((1, 4), (2, 4), (8, 4))})
FUSED = "PWN(square, softmax)"
MIXED = (
    (FUSED, "FP32"),
    ("Reformatting CopyNode for Input Tensor 0 to add", "FP16"),
    ("add", "FP16"),
    ("{ForeignNode[topk...topk]}", "FP32"),
)


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return small_graph(tmp_path)


@contextmanager
def _tensorrt(script: Script, variant: Variant = "8.6") -> Iterator[StandInDriver]:
    with use_standin_gpu(fake_tensorrt(variant, script)) as driver:
        yield driver


def _engine(artifact: Artifact) -> Engine:
    assert artifact.engine is not None
    return artifact.engine


# ---------------------------------------------------------------- weak typing


def test_the_artifact_says_what_was_built(graph: Graph, tmp_path: Path) -> None:
    path, plan = tmp_path / "model.engine", make_plan(graph, "softmax", "topk")
    script = small_script(disobeyed("x"), engine(*MIXED, warnings=("a warning",)))
    with _tensorrt(script):
        artifact = emit(graph, plan, path, SETTINGS)
        assert path.read_bytes() == b"engine"
        assert artifact.files == (path, sidecar_of(path))
        assert describe(graph, plan, path, SETTINGS) == artifact
        assert open_runner(artifact, SETTINGS).output_names == ("y", "i")
        assert [layer.nodes for layer in inspect_artifact(artifact, graph, SETTINGS)] == [
            ("square", "softmax"),
            ("add",),
            ("add",),
            ("topk",),
        ]
    assert artifact.fp32_nodes == ("square", "softmax", "topk")
    assert artifact.fp16_nodes == ("add",)
    (kept,) = artifact.kept
    assert (kept.node, kept.op_type) == ("square", "Mul")
    assert "by itself" in kept.reason
    found = _engine(artifact)
    assert (found.tensorrt, found.gpu, found.compute_capability) == ("8.6.1", "Stand-in GPU", (9, 0))
    assert (found.typing, found.constraints, found.builds) == ("weak", "obey", 2)
    assert (found.layers, found.fp32_layers, found.fp16_layers) == (4, 1, 1)
    assert (found.reformat_layers, found.opaque_layers, artifact.cast_count) == (1, 1, 1)
    assert [(pin.node, pin.state) for pin in found.pins] == [("softmax", "honoured"), ("topk", "not visible")]
    assert found.dropped == ()
    assert found.warnings == ("a warning",)


def test_layers_in_tf32_are_counted_while_the_plan_allows_it(graph: Graph, tmp_path: Path) -> None:
    kernels = {
        "square": "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n",
        "add": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n",
    }
    built = engine(("square", "FP32"), ("add", "FP32"), ("softmax", "FP16"))
    assert isinstance(built.information, dict)
    for layer in built.information["Layers"]:
        layer["TacticName"] = kernels.get(layer["Name"], "")
    script, plan = small_script(built, built), make_plan(graph, "square")
    with _tensorrt(script):
        found = _engine(emit(graph, plan, tmp_path / "model.engine", SETTINGS))
        assert (found.tf32, found.tf32_layers, found.warnings) == (True, 1, ())
        without = emit(graph, replace(plan, tf32=False), tmp_path / "other.engine", SETTINGS)
    assert "TF32" not in script.asked[1].flags
    assert not _engine(without).tf32
    (told,) = _engine(without).warnings
    assert told.startswith(
        "The plan forbids TF32 (tf32 in plan.json), in which products round what they multiply"
    )
    assert told.endswith("10 bits, as FP16 does. A repair forbids it where that makes an engine less wrong.")


@pytest.mark.parametrize("variant", ["8.6", "10.12"])
def test_the_settings_forbid_tf32_without_a_word_of_the_plan(
    graph: Graph, tmp_path: Path, variant: Variant
) -> None:
    """Whatever it says of TF32."""
    script = small_script(engine(*MIXED)) if variant == "8.6" else _strong_script(engine(("square", "FP32")))
    plan = replace(make_plan(graph, "square"), tf32=False)
    with _tensorrt(script, variant):
        found = _engine(emit(graph, plan, tmp_path / "model.engine", replace(SETTINGS, tf32=False)))
    assert (found.tf32, found.warnings) == (False, ())
    assert "TF32" not in script.asked[0].flags


def test_a_typed_model_is_built_without_tf32_where_the_plan_forbids_it(graph: Graph, tmp_path: Path) -> None:
    script = _strong_script(engine(("square", "FP32")), engine(content=b"marked"))
    plan = replace(make_plan(graph, "square"), tf32=False)
    with _tensorrt(script, "11"):
        artifact = emit(graph, plan, tmp_path / "model.engine", SETTINGS)
        open_tracer(graph, plan, artifact, ["s"], SETTINGS)
    assert [asked.flags for asked in script.asked] == [set(), set()]
    assert not _engine(artifact).tf32
    assert _engine(artifact).warnings[0].startswith("The plan forbids TF32")


def test_an_engine_of_a_newer_opset_than_its_parser_is_doubted_first(graph: Graph, tmp_path: Path) -> None:
    script = small_script(engine(*MIXED, warnings=("a warning",)))
    newer = replace(graph, opset=18)
    with _tensorrt(script):
        artifact = emit(newer, PrecisionPlan(graph.sha256, 1e4, ()), tmp_path / "model.engine", SETTINGS)
    doubt, told = _engine(artifact).warnings
    assert doubt.startswith("The model is of opset 18")
    assert told == "a warning"


def test_an_engine_tells_the_sizes_that_its_model_was_given(tmp_path: Path) -> None:
    text = "g (float[n,2] x) => (float[n,2] y) { y = Abs(x) }"
    opened = load_graph(write_model(tmp_path, text, opset=17))
    script = small_script(engine(*MIXED))
    script.parse_errors, script.refused_parsings = ["isDynamic(shape)"], 1
    settings = replace(SETTINGS, shapes={"x": ShapeRange((3, 2), (3, 2), (3, 2))})
    with _tensorrt(script):
        artifact = emit(opened, PrecisionPlan(opened.sha256, 1e4, ()), tmp_path / "model.engine", settings)
    (note,) = _engine(artifact).warnings
    assert "3 of 'x' along axis 0" in note


def test_engines_to_compare_with_get_those_sizes_too(graph: Graph, tmp_path: Path) -> None:
    """That of FP32, and by strong typing the tracer; each parsing of the model as it is is refused."""
    script = _strong_script(*(engine(("square", "FP32")) for _ in range(3)))
    script.parse_errors, plan = ["isDynamic(shape)"], make_plan(graph, "square")
    settings = replace(SETTINGS, shapes={"x": ShapeRange((2, 4), (2, 4), (2, 4))})
    with _tensorrt(script, "11"):
        script.refused_parsings = 1
        artifact = emit(graph, plan, tmp_path / "model.engine", settings)
        script.refused_parsings = 3
        open_tracer(graph, plan, artifact, ["s"], settings)
        script.refused_parsings = 5
        emit_fp32(graph, tmp_path / "fp32.engine", settings, tf32=False)
    assert [isinstance(parsed, tuple) for parsed in script.parsed] == [False, True] * 3


def test_the_fp32_engine_is_told_axes_too(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,1] y) <int64[1] axes = {1}> { y = ReduceMean(x, axes) }"
    reduction = load_graph(write_model(tmp_path, text, opset=18))
    script = small_script(engine(*MIXED))
    with _tensorrt(script):
        emit_fp32(reduction, tmp_path / "fp32.engine", SETTINGS, tf32=False)
    ((content, _),) = script.parsed
    assert b"axes" in content
    assert [len(at.input) for at in onnx.ModelProto.FromString(content).graph.node] == [1]


def test_a_pin_that_was_not_honoured_is_no_fp32_node(graph: Graph, tmp_path: Path) -> None:
    with _tensorrt(small_script(engine(("square", "FP16"), ("add", "FP16")))):
        artifact = emit(graph, make_plan(graph, "square"), tmp_path / "model.engine", SETTINGS)
    assert "square" in artifact.fp16_nodes
    assert "square" not in artifact.fp32_nodes
    assert _engine(artifact).pins[0].state == "not honoured"


@pytest.mark.parametrize(("io_types", "allowed"), [("keep", set()), ("fp16", {"FP16"})])
def test_where_every_node_is_pinned_fp16_is_not_allowed(
    graph: Graph, tmp_path: Path, io_types: IoTypes, allowed: set[str]
) -> None:
    """It would be taken for what no pin can be set on."""
    plan = make_plan(graph, "square", "softmax", "add", "topk")
    script = small_script(engine((FUSED, "FP32"), ("add", "FP32"), ("topk", "FP32")))
    with _tensorrt(script):
        artifact = emit(graph, plan, tmp_path / "model.engine", replace(SETTINGS, io_types=io_types))
    assert script.asked[0].flags == {"TF32", "OBEY_PRECISION_CONSTRAINTS"} | allowed
    told = [warning for warning in _engine(artifact).warnings if "FP16 was not allowed" in warning]
    assert len(told) == (not allowed)


def test_a_plan_of_nothing_is_plain_fp16(graph: Graph, tmp_path: Path) -> None:
    script = small_script(engine((FUSED, "FP16"), ("add", "FP16"), ("topk", "FP16")))
    with _tensorrt(script):
        artifact = emit(graph, PrecisionPlan(graph.sha256, 1e4, ()), tmp_path / "model.engine", SETTINGS)
    assert artifact.fp16_nodes == ("square", "softmax", "add", "topk")
    assert (artifact.fp32_nodes, artifact.kept, _engine(artifact).constraints) == ((), (), "none")
    assert script.asked[0].flags == {"TF32", "FP16"}


def test_a_pin_on_no_node_is_refused_before_anything_is_built(graph: Graph, tmp_path: Path) -> None:
    plan = PrecisionPlan(graph.sha256, 1e4, (Pin("lost", "Add", ("y",), ()),))
    script = small_script()
    with _tensorrt(script), pytest.raises(PlanError, match="The plan names 'lost', which") as error:
        emit(graph, plan, tmp_path / "model.engine", SETTINGS)
    assert "\n" not in str(error.value)
    assert script.parsed == []


def test_a_build_that_fails_leaves_no_engine(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "out" / "model.engine"
    with (
        _tensorrt(small_script(parse_errors=["no importer"])),
        pytest.raises(BackendError, match="no importer"),
    ):
        emit(graph, PrecisionPlan(graph.sha256, 1e4, ()), path, SETTINGS)
    assert not path.exists()


def test_a_tracer_has_inner_tensors_as_outputs(graph: Graph, tmp_path: Path) -> None:
    plan, script = make_plan(graph, "square"), small_script(engine(), engine(content=b"marked"))
    with _tensorrt(script):
        artifact = emit(graph, plan, tmp_path / "model.engine", SETTINGS)
        open_tracer(graph, plan, artifact, ["s", "q"], SETTINGS)
    assert set(script.asked[1].precisions) == {"square"}
    assert (tmp_path / "model.engine").read_bytes() == b"engine"


# ---------------------------------------------------------------- FP32


@pytest.mark.parametrize(("tf32", "flags"), [(True, {"TF32"}), (False, set())])
def test_an_fp32_engine_has_no_fp16_in_it(graph: Graph, tmp_path: Path, tf32: bool, flags: set[str]) -> None:
    script = small_script(engine(("square", "FP32")))
    with _tensorrt(script):
        artifact = emit_fp32(graph, tmp_path / "fp32.engine", SETTINGS, tf32)
    (asked,) = script.asked
    assert (asked.flags, asked.precisions, asked.output_types) == (flags, {}, {})
    assert (artifact.fp16_nodes, artifact.fp32_nodes) == ((), ("square", "softmax", "add", "topk"))
    assert (_engine(artifact).constraints, _engine(artifact).pins) == ("none", ())
    assert _engine(artifact).tf32 is tf32
    assert artifact.path.read_bytes() == b"engine"


# ---------------------------------------------------------------- strong typing


def _strong_script(*outcomes: Any) -> Script:
    """What is parsed does not matter: types come from the model."""
    shape = (-1, 4)
    layer = LayerSpec(
        "square", "ELEMENTWISE", ("x",), (TensorSpec("inner", shape=shape),), "[ONNX Layer: square]"
    )
    return Script([TensorSpec("x", shape=shape)], [layer], ["inner"], outcomes=list(outcomes))


@pytest.mark.parametrize("variant", ["10.12", "11"])
def test_newer_releases_build_the_typed_model_and_set_no_precision(
    graph: Graph, tmp_path: Path, variant: Variant
) -> None:
    script, plan = _strong_script(engine(("square", "FP32"), ("add", "FP16"))), make_plan(graph, "square")
    path = tmp_path / "out" / "model.engine"
    with _tensorrt(script, variant):
        artifact = emit(graph, plan, path, SETTINGS)
        assert describe(graph, plan, path, SETTINGS) == artifact
    typed = path.with_name("model.fp16.onnx")
    assert script.parsed == [str(typed)]
    assert typed in artifact.files
    (asked,) = script.asked
    assert (asked.flags, asked.precisions) == ({"TF32"}, {})
    types = {node.name for node in onnx.load(typed).graph.node if node.op_type == "Cast"}
    assert types
    assert "square" in artifact.fp32_nodes
    assert "add" in artifact.fp16_nodes
    found = _engine(artifact)
    assert (found.typing, found.constraints) == ("strong", "none")
    assert [(pin.node, pin.state) for pin in found.pins] == [("square", "honoured")]


@pytest.mark.parametrize("variant", ["10.12", "11"])
def test_a_typed_model_that_is_refused_is_told_by_the_model_that_it_was_made_of(
    graph: Graph, tmp_path: Path, variant: Variant
) -> None:
    """For it may lie among trials, which are gone when the message is read."""
    script, path = Script(parse_errors=["no importer of Strange"]), tmp_path / "trial" / "model.engine"
    told = re.escape(f"cannot take the typed model of {graph.path}: no importer of Strange")
    with _tensorrt(script, variant), pytest.raises(BackendError, match=told) as error:
        emit(graph, make_plan(graph, "square"), path, SETTINGS)
    assert str(path.parent) not in str(error.value)


def test_the_typed_model_is_changed_for_tensorrt_as_a_model_is(graph: Graph, tmp_path: Path) -> None:
    script = _strong_script(engine(("square", "FP32")))
    script.parse_errors, script.refused_parsings = ["isDynamic(shape)"], 1
    settings = replace(SETTINGS, shapes={"x": ShapeRange((2, 4), (2, 4), (2, 4))})
    with _tensorrt(script, "11"):
        artifact = emit(graph, make_plan(graph, "square"), tmp_path / "model.engine", settings)
    typed, (content, beside) = script.parsed
    assert typed == beside == str(tmp_path / "model.fp16.onnx")
    dims = onnx.ModelProto.FromString(content).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [2, 4]
    (note,) = _engine(artifact).warnings
    assert "2 of 'x' along axis 0" in note


def test_a_strong_tracer_marks_the_typed_model(graph: Graph, tmp_path: Path) -> None:
    script = _strong_script(engine(("square", "FP32")), engine(content=b"marked"))
    plan = make_plan(graph, "square")
    with _tensorrt(script, "11"):
        artifact = emit(graph, plan, tmp_path / "model.engine", SETTINGS)
        open_tracer(graph, plan, artifact, ["s"], SETTINGS)
    assert script.parsed == [str(tmp_path / "model.fp16.onnx")] * 2
    assert script.asked[1].flags == {"TF32"}


def test_a_typed_model_that_is_gone_is_no_tracer(graph: Graph, tmp_path: Path) -> None:
    """The engine runs without it, and is told by its simulation alone."""
    plan = make_plan(graph, "square")
    with _tensorrt(_strong_script(engine(("square", "FP32"))), "11"):
        artifact = emit(graph, plan, tmp_path / "model.engine", SETTINGS)
        (tmp_path / "model.fp16.onnx").unlink()
        with pytest.raises(
            BackendError, match=r"^The typed model that model.engine was built from .*No such file"
        ):
            open_tracer(graph, plan, artifact, ["s"], SETTINGS)


# ---------------------------------------------------------------- what is missing


def test_what_is_missing_is_told_before_anything_else(graph: Graph, tmp_path: Path) -> None:
    script = small_script(engine())
    with _tensorrt(script) as driver:
        driver.devices = 0
        with pytest.raises(BackendError, match=r"^No GPU"):
            emit(graph, PrecisionPlan(graph.sha256, 1e4, ()), tmp_path / "model.engine", SETTINGS)
    assert script.parsed == []


def test_a_machine_without_tensorrt_lacks_that_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with _tensorrt(small_script()):
        monkeypatch.setattr(availability, "is_installed", lambda: False)
        assert availability.find_lack() == "TensorRT is not installed here"


def test_a_broken_tensorrt_is_told_in_a_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    trt = fake_tensorrt("8.6", small_script())
    with use_standin_gpu(trt):
        old = type("ICudaEngine", (), {})
        monkeypatch.setattr(trt, "ICudaEngine", old)
        assert availability.find_lack() == "TensorRT 8.6.1 has no named inputs and outputs"


def test_a_gpu_that_refuses_is_not_told_as_none() -> None:
    """Such as one whose memory others took, or one that serves a single process."""
    with _tensorrt(small_script()) as driver:
        driver.fails = {"cuDevicePrimaryCtxRetain": 2}
        told = "The CUDA driver refused cuDevicePrimaryCtxRetain: out of memory (code 2)"
        assert availability.find_lack() == told
        assert choose_backend("auto") == ("onnx", f"a typed ONNX model: {told}")

"""The fake TensorRT: it has nothing that the release it models has not, and refuses what TensorRT refuses."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import asdict
from typing import Any, get_args

import pytest
from binding_uses import Use, find_fault
from binding_wheels import load
from fake_tensorrt import (
    DISOBEYED,
    NO_FP16,
    NO_PROFILE,
    RELEASE_OF_VARIANT,
    STRONG_FP16,
    IoSpec,
    LayerSpec,
    Plan,
    Refusal,
    Script,
    TensorSpec,
    Variant,
    declared,
    fake_tensorrt,
)

from overflow_fixer.backends.tensorrt.capabilities import probe

VARIANTS = get_args(Variant)
CONV = LayerSpec("conv", "CONVOLUTION", ("x",), (TensorSpec("y"),), "[ONNX Layer: conv]")
ASIDE = {"script", "float32", "float16", "int32", "bool"}
"""Names of a fake module that are no class, function or enum; the constants have a test of their own."""


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


def _classes(trt: Any) -> dict[str, type]:
    return {name: value for name, value in vars(trt).items() if isinstance(value, type)}


def _public(owner: type) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


# ---------------------------------------------------------------- against the real bindings


@pytest.fixture
def real(variant: Variant, request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(RELEASE_OF_VARIANT[variant], request.config)


def test_every_name_is_real(variant: Variant, real: dict[str, Any]) -> None:
    public = {name for name in vars(fake_tensorrt(variant, Script())) if not name.startswith("_")}
    functions = {"init_libnvinfer_plugins", "get_plugin_registry"}
    assert public - ASIDE - functions <= set(real["classes"])
    assert (public & ASIDE) - {"script"} <= set(real["values"])
    assert functions <= set(real["functions"])


def test_every_attribute_is_real(variant: Variant, real: dict[str, Any]) -> None:
    trt = fake_tensorrt(variant, Script())
    classes = {name: owner for name, owner in _classes(trt).items() if not hasattr(owner, "__members__")}
    strange = [
        f"{name}.{member}"
        for name, owner in classes.items()
        for member in _public(owner)
        if member not in real["classes"][name]
    ]
    assert len(classes) > 15
    assert strange == []


def test_what_can_be_set_is_real(variant: Variant, real: dict[str, Any]) -> None:
    trt = fake_tensorrt(variant, Script())
    uses = [
        Use(f"{name}.{member}", "always", "write")
        for name, owner in _classes(trt).items()
        if not hasattr(owner, "__members__")
        for member in declared(owner)
    ]
    assert len(uses) > 5
    assert [fault for use in uses if (fault := find_fault(use, real)) is not None] == []


def test_every_signature_is_real(variant: Variant, real: dict[str, Any]) -> None:
    trt = fake_tensorrt(variant, Script())
    uses = [
        Use(f"{name}.{member}", "always", f"({', '.join(arguments)})")
        for name, owner in _classes(trt).items()
        if not hasattr(owner, "__members__")
        for member, value in inspect.getmembers(owner, inspect.isfunction)
        if not member.startswith("_")
        for arguments in _calls(value)
    ]
    assert len(uses) > 40
    assert [fault for use in uses if (fault := find_fault(use, real)) is not None] == []


def _calls(function: Any) -> list[list[str]]:
    """The arguments of a call with every default left out, and of one with none."""
    _, *parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    return [needed, [p.name for p in parameters]]


def test_every_enum_value_is_real(variant: Variant, real: dict[str, Any]) -> None:
    trt = fake_tensorrt(variant, Script())
    enums = {name: owner for name, owner in _classes(trt).items() if hasattr(owner, "__members__")}
    found = {
        f"{name}.{member}": int(value) for name, e in enums.items() for member, value in e.__members__.items()
    }
    theirs = {f"{name}.{member}": value for name, e in real["enums"].items() for member, value in e.items()}
    assert len(found) > 40
    assert found == {name: theirs.get(name) for name in found}


def test_the_probe_answers_alike(variant: Variant, real: dict[str, Any]) -> None:
    assert asdict(probe(fake_tensorrt(variant, Script()))) == real["capabilities"]


def test_severities_are_real(variant: Variant, real: dict[str, Any]) -> None:
    severity = fake_tensorrt(variant, Script()).ILogger.Severity
    assert {name: int(member) for name, member in severity.__members__.items()} == real["severities"]


# ---------------------------------------------------------------- what it does


def _logger(trt: Any) -> Any:
    class Recorder(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity <= trt.ILogger.WARNING:
                self.lines.append(msg)

    return Recorder()


def _parse(trt: Any, logger: Any, strong: bool = False) -> tuple[Any, Any, Any]:
    builder = trt.Builder(logger)
    names = [*(["STRONGLY_TYPED"] if strong else []), "EXPLICIT_BATCH"]
    members = trt.NetworkDefinitionCreationFlag.__members__
    network = builder.create_network(sum(1 << int(members[name]) for name in names if name in members))
    parser = trt.OnnxParser(network, logger)
    return builder, network, parser


def test_a_network_is_parsed_and_built(variant: Variant) -> None:
    script = Script(
        inputs=[TensorSpec("x")], layers=[CONV], outputs=["y"], outcomes=[Plan(b"plan", warnings=("w",))]
    )
    trt = fake_tensorrt(variant, script)
    logger = _logger(trt)
    builder, network, parser = _parse(trt, logger)
    assert parser.parse_from_file("model.onnx")
    assert (network.num_inputs, network.num_layers, network.get_output(0).name) == (1, 1, "y")
    layer = network.get_layer(0)
    assert (layer.type.name, layer.get_input(0).name, layer.get_output(0).dtype) == (
        "CONVOLUTION",
        "x",
        trt.float32,
    )
    memory = builder.build_serialized_network(network, builder.create_builder_config())
    assert (bytes(memory), memory.nbytes, logger.lines) == (b"plan", 4, ["w"])
    assert script.asked[0].flags == {"TF32"}
    assert script.parsed == ["model.onnx"]


def test_parse_errors_are_told(variant: Variant) -> None:
    trt = fake_tensorrt(variant, Script(parse_errors=["no importer for Odd"]))
    logger = _logger(trt)
    _, network, parser = _parse(trt, logger)
    assert not parser.parse(b"model", "model.onnx")
    assert (
        [parser.get_error(i).desc() for i in range(parser.num_errors)]
        == ["no importer for Odd"]
        == logger.lines
    )
    assert network.num_layers == 0


def test_an_old_network_needs_its_explicit_batch() -> None:
    trt = fake_tensorrt("8.6", Script())
    logger = _logger(trt)
    assert not trt.OnnxParser(trt.Builder(logger).create_network(), logger).parse(b"")
    assert "explicit batch" in logger.lines[0]


def test_pins_are_noted_and_a_refusal_logged() -> None:
    text = DISOBEYED.format(layer="conv")
    script = Script(inputs=[TensorSpec("x")], layers=[CONV], outcomes=[Refusal((text,))])
    trt = fake_tensorrt("8.6", script)
    logger = _logger(trt)
    builder, network, parser = _parse(trt, logger)
    parser.parse(b"")
    layer, config = network.get_layer(0), builder.create_builder_config()
    layer.precision = trt.float32
    layer.set_output_type(0, trt.float32)
    config.set_flag(trt.BuilderFlag.FP16)
    assert builder.build_serialized_network(network, config) is None
    assert logger.lines == [text]
    assert (script.asked[0].precisions, script.asked[0].output_types) == (
        {"conv": "FLOAT"},
        {("conv", 0): "FLOAT"},
    )
    layer.reset_precision()
    layer.reset_output_type(0)
    assert not layer.precision_is_set
    assert not layer.output_type_is_set(0)


def test_setting_a_precision_warns_where_it_is_deprecated() -> None:
    trt = fake_tensorrt("10.12", Script(inputs=[TensorSpec("x")], layers=[CONV]))
    _, network, parser = _parse(trt, _logger(trt))
    parser.parse(b"")
    layer = network.get_layer(0)
    with pytest.warns(DeprecationWarning, match="strong typing"):
        layer.precision = trt.float32
    with pytest.warns(DeprecationWarning, match="strong typing"):
        layer.set_output_type(0, trt.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert layer.precision == trt.float32
        assert layer.output_type_is_set(0)


def test_a_strong_network_takes_no_precision() -> None:
    trt = fake_tensorrt("11", Script(inputs=[TensorSpec("x")], layers=[CONV]))
    _, network, parser = _parse(trt, _logger(trt))
    parser.parse(b"")
    with pytest.raises(AttributeError):
        network.get_layer(0).precision = trt.float32
    with pytest.raises(AttributeError):
        network.get_input(0).dtype = trt.float32
    assert "FP16" not in trt.BuilderFlag.__members__


@pytest.mark.parametrize(("strong", "pin", "expected"), [(True, False, STRONG_FP16), (False, True, NO_FP16)])
def test_fp16_is_refused(strong: bool, pin: bool, expected: str) -> None:
    trt = fake_tensorrt("10.0", Script(inputs=[TensorSpec("x")], layers=[CONV]))
    logger = _logger(trt)
    builder, network, parser = _parse(trt, logger, strong)
    parser.parse(b"")
    config = builder.create_builder_config()
    if pin:
        network.get_layer(0).precision = trt.float16
    else:
        config.set_flag(trt.BuilderFlag.FP16)
    assert builder.build_serialized_network(network, config) is None
    assert logger.lines == [expected]


def test_open_shapes_need_a_profile(variant: Variant) -> None:
    script = Script(inputs=[TensorSpec("x", shape=(-1, 4))], layers=[CONV], outcomes=[Plan()])
    trt = fake_tensorrt(variant, script)
    logger = _logger(trt)
    builder, network, parser = _parse(trt, logger)
    parser.parse(b"")
    config = builder.create_builder_config()
    assert builder.build_serialized_network(network, config) is None
    assert logger.lines == [NO_PROFILE]
    profile = builder.create_optimization_profile()
    with pytest.raises(ValueError, match="inconsistent"):
        profile.set_shape("x", (2, 4), (1, 4), (8, 4))
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    assert config.add_optimization_profile(profile) == 0
    assert builder.build_serialized_network(network, config) is not None
    assert script.asked[-1].profiles[0]["shapes"] == {"x": ((1, 4), (2, 4), (8, 4))}


def test_obey_and_prefer_exclude_each_other() -> None:
    trt = fake_tensorrt("10.0", Script())
    logger = _logger(trt)
    config = trt.Builder(logger).create_builder_config()
    config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    config.set_flag(trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)
    assert not config.get_flag(trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)
    assert len(logger.lines) == 1


def test_a_foreign_timing_cache_is_refused(variant: Variant) -> None:
    trt = fake_tensorrt(variant, Script())
    config = trt.Builder(_logger(trt)).create_builder_config()
    assert not config.set_timing_cache(config.create_timing_cache(b"there:a"), False)
    assert config.get_timing_cache() is None
    assert config.set_timing_cache(config.create_timing_cache(b"here:a"), False)
    cache = config.get_timing_cache()
    assert not cache.combine(config.create_timing_cache(b"there:a"), False)
    assert cache.combine(config.create_timing_cache(b"here:b\na"), False)
    assert bytes(cache.serialize()) == b"here:a\nb"


def test_a_torn_timing_cache_is_an_empty_one(variant: Variant) -> None:
    trt = fake_tensorrt(variant, Script())
    config = trt.Builder(_logger(trt)).create_builder_config()
    torn = config.create_timing_cache(b"her")
    assert config.set_timing_cache(torn, False)
    assert bytes(torn.serialize()) == b""


def test_progress_is_reported() -> None:
    trt = fake_tensorrt("10.0", Script(outcomes=[Plan()]))
    steps: list[Any] = []

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            steps.append((phase_name, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            steps.append(step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            steps.append("end")

    builder, network, _ = _parse(trt, _logger(trt))
    config = builder.create_builder_config()
    config.progress_monitor = Monitor()
    builder.build_serialized_network(network, config)
    assert steps == [("Building Engine", 1), 0, "end"]


def test_an_engine_tells_its_tensors_and_layers(variant: Variant) -> None:
    x = IoSpec("x", "INPUT", shape=(-1, 4), profile=((1, 4), (2, 4), (8, 4)))
    plan = Plan(b"plan", {"Layers": [{"Name": "conv"}]}, (x, IoSpec("y", "OUTPUT", "INT32")))
    trt = fake_tensorrt(variant, Script(engines={b"plan": plan}))
    logger = _logger(trt)
    runtime = trt.Runtime(logger)
    assert runtime.deserialize_cuda_engine(b"other") is None
    assert len(logger.lines) == 1
    engine = runtime.deserialize_cuda_engine(b"plan")
    assert [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)] == ["x", "y"]
    assert (engine.get_tensor_mode("y"), engine.get_tensor_dtype("y").name) == (
        trt.TensorIOMode.OUTPUT,
        "INT32",
    )
    inspector = engine.create_engine_inspector()
    assert (
        inspector.get_engine_information(trt.LayerInformationFormat.JSON) == '{"Layers": [{"Name": "conv"}]}'
    )
    context = engine.create_execution_context()
    assert context.infer_shapes() == ["x"]
    assert not context.set_input_shape("x", (9, 4))
    assert context.set_input_shape("x", (8, 4))
    assert context.infer_shapes() == []
    assert not context.execute_async_v3(0)
    assert context.set_tensor_address("x", 1)
    assert context.set_tensor_address("y", 2)
    assert context.execute_async_v3(0)


def test_unknown_attributes_cannot_be_set(variant: Variant) -> None:
    trt = fake_tensorrt(variant, Script())
    config = trt.Builder(_logger(trt)).create_builder_config()
    config.builder_optimization_level = 5
    with pytest.raises(AttributeError, match="max_workspace_size"):
        config.max_workspace_size = 1


def test_plugins_want_a_logger(variant: Variant) -> None:
    trt = fake_tensorrt(variant, Script())
    assert trt.init_libnvinfer_plugins(_logger(trt), "")
    assert not trt.init_libnvinfer_plugins(None, "")

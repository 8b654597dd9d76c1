"""Building: what TensorRT is asked for, what is kept, and its own words where it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_scripts import disobeyed, engine, small_script
from fake_tensorrt import (
    NO_PROFILE,
    LayerSpec,
    Plan,
    Refusal,
    Script,
    TensorSpec,
    Variant,
    fake_tensorrt,
)
from standin_gpu import use_standin_gpu

from overflow_fixer.backends.tensorrt.builder import Built, DisobedientError, Precision, build
from overflow_fixer.backends.tensorrt.capabilities import probe
from overflow_fixer.backends.tensorrt.network import ParsedNetwork, load_plugin, parse_model, prepare
from overflow_fixer.errors import BackendError, ConfigError
from overflow_fixer.progress import silent
from overflow_fixer.records import BuildSettings, ShapeRange, Typing

SHAPES = {"x": ShapeRange((1, 4), (2, 4), (8, 4))}
SETTINGS = BuildSettings(shapes=SHAPES)
FP16 = Precision(fp16=True)
MODEL = Path("model.onnx")


class Stage:
    """A fake TensorRT with a network parsed on it."""

    def __init__(self, script: Script, variant: Variant = "8.6", typing: Typing = "weak") -> None:
        self.script, self.trt = script, fake_tensorrt(variant, script)
        self._typing = typing
        self._gpu = use_standin_gpu(self.trt)

    def __enter__(self) -> Stage:
        self._gpu.__enter__()
        self.found = probe(self.trt)
        self.parsed: ParsedNetwork = self.parse(MODEL)
        return self

    def __exit__(self, *error: Any) -> None:
        self._gpu.__exit__(*error)

    def parse(self, source: Path | bytes) -> ParsedNetwork:
        return parse_model(self.trt, self.found, source, MODEL, str(MODEL), self._typing, "")

    def build(
        self, settings: BuildSettings = SETTINGS, precision: Precision = FP16, progress: Any = silent
    ) -> Built:
        return build(self.trt, self.found, self.parsed.network, precision, settings, progress)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(small_script(engine(), engine(content=b"second"))) as found:
        yield found


def _text(error: pytest.ExceptionInfo[Any]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    ("variant", "typing", "flags"),
    [
        ("8.6", "weak", {"EXPLICIT_BATCH"}),
        ("10.0", "weak", set()),
        ("10.0", "strong", {"STRONGLY_TYPED"}),
        ("11", "strong", {"STRONGLY_TYPED"}),
    ],
)
def test_a_network_is_created_as_its_release_and_typing_want(
    variant: Variant, typing: Typing, flags: set[str]
) -> None:
    with Stage(small_script(), variant, typing) as stage:
        members = stage.trt.NetworkDefinitionCreationFlag.__members__
        assert {name for name in members if stage.parsed.network._has(name)} == flags
        assert stage.script.parsed == [str(MODEL)]


def test_instance_normalization_is_made_native_where_that_can_be_said(stage: Stage) -> None:
    assert stage.parsed.parser.get_flag(stage.trt.OnnxParserFlag.NATIVE_INSTANCENORM)


def test_bytes_are_parsed_beside_the_model_and_kept(stage: Stage) -> None:
    parsed = stage.parse(b"model")
    assert stage.script.parsed[-1] == (b"model", str(MODEL))
    assert parsed.source == b"model"
    assert parsed.network.num_layers == 7


def test_a_model_that_is_refused_is_refused_in_tensorrts_words(stage: Stage) -> None:
    stage.script.parse_errors = [
        "In node 3 (importX):\n UNSUPPORTED_NODE: no importer. ",
        "another",
        "another",
    ]
    with pytest.raises(BackendError) as error:
        stage.parse(MODEL)
    assert _text(error).startswith(
        "TensorRT 8.6.1 cannot take model.onnx: In node 3 (importX): UNSUPPORTED_NODE: no importer; another. Expected"
    )


def test_a_doubt_that_there_was_is_told_where_the_model_is_refused(stage: Stage) -> None:
    stage.script.parse_errors = ["no importer"]
    with pytest.raises(BackendError, match=r"its parser knows\. It is of opset 18\. Export"):
        parse_model(stage.trt, stage.found, MODEL, MODEL, str(MODEL), "weak", "It is of opset 18.")


@pytest.mark.parametrize(
    ("variant", "output", "place"),
    [
        ("8.6", "y", "Not that writes 'y'"),
        ("8.6", "", "node number 3"),
        ("10.0", "y", "Not '/attention/Not'"),
        ("10.0", "nameless", "Not number 3"),
    ],
)
def test_the_node_that_is_refused_is_named(variant: Variant, output: str, place: str) -> None:
    script = small_script()
    with Stage(script, variant) as stage:
        name = "" if output == "nameless" else "/attention/Not"
        script.parse_errors, script.refused_node = ["no such type.", "no such type."], ("Not", name, output)
        with pytest.raises(BackendError, match=r"cannot take model\.onnx: no such type") as error:
            stage.parse(MODEL)
    assert f"no such type (at {place}). Expected" in _text(error)


def test_a_plugin_that_does_not_load_is_named(stage: Stage, tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"no library")
    with pytest.raises(BackendError, match=r"plugin\.so does not load: .*Expected a shared library") as error:
        prepare(stage.trt, [library])
    _text(error)
    load_plugin.cache_clear()


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        (Precision(True), {"TF32", "FP16"}),
        (Precision(True, tf32=False), {"FP16"}),
        (Precision(True, constraints="obey"), {"TF32", "FP16", "OBEY_PRECISION_CONSTRAINTS"}),
        (Precision(True, constraints="prefer"), {"TF32", "FP16", "PREFER_PRECISION_CONSTRAINTS"}),
        (Precision(False), {"TF32"}),
        (Precision(False, tf32=False), set()),
    ],
)
def test_the_flags_are_those_of_the_precision(stage: Stage, precision: Precision, flags: set[str]) -> None:
    stage.build(precision=precision)
    assert stage.script.asked[0].flags == flags


def test_the_profiles_shapes_reach_the_builder(stage: Stage) -> None:
    stage.build()
    assert stage.script.asked[0].profiles == ({"shapes": {"x": ((1, 4), (2, 4), (8, 4))}, "values": {}},)


def test_an_open_shape_that_nothing_tells_is_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError) as error:
        stage.build(BuildSettings())
    assert _text(error).startswith(
        "Nothing says which shape input 'x' has, and the model leaves it open. Expected"
    )
    assert "--profile x:MIN:OPT:MAX" in _text(error)


def test_a_profile_that_tensorrt_refuses_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.trt.IBuilderConfig, "add_optimization_profile", lambda *_: -1)
    with pytest.raises(
        BackendError, match=r"refuses the optimization profile x: 1x4 / 2x4 / 8x4\. Expected"
    ) as error:
        stage.build()
    _text(error)


def test_a_shape_input_has_its_values_in_the_profile() -> None:
    inputs = [TensorSpec("x", shape=(-1, 4)), TensorSpec("size", "INT32", (2,), is_shape_tensor=True)]
    held = ShapeRange((2,), (2,), (2,), ((1, 4), (2, 4), (8, 4)))
    with Stage(small_script(engine(), inputs=inputs)) as stage:
        stage.build(BuildSettings(shapes={**SHAPES, "size": held}))
        (profile,) = stage.script.asked[0].profiles
        assert profile["values"] == {"size": ((1, 4), (2, 4), (8, 4))}
        assert set(profile["shapes"]) == {"x"}
        with pytest.raises(
            ConfigError, match=r"Nothing says which values of a shape input 'size' holds, and"
        ) as error:
            stage.build(SETTINGS)
        _text(error)


def _fixed_script(kind: str, shape: tuple[int, ...], *outcomes: Plan) -> Script:
    """One layer over an input of fixed shape."""
    layer = LayerSpec("layer", kind, ("x",), (TensorSpec("y", shape=shape),))
    return Script([TensorSpec("x", shape=(2, 4))], [layer], ["y"], outcomes=list(outcomes))


def test_a_network_of_fixed_shapes_has_no_profile() -> None:
    with Stage(_fixed_script("UNARY", (2, 4), engine())) as stage:
        stage.build(BuildSettings())
    assert stage.script.asked[0].profiles == ()


@pytest.mark.parametrize(("kind", "shape"), [("SLICE", (-1, 4)), ("NON_ZERO", (2, 4))])
def test_fixed_inputs_with_shapes_that_depend_on_data_have_a_profile(
    kind: str, shape: tuple[int, ...]
) -> None:
    """Without one, 8.6 builds an engine that it then cannot open."""
    script = _fixed_script("SLICE", shape, engine())
    with Stage(script) as stage:
        if kind == "NON_ZERO":  # which the fake's parser does not make
            stage.parsed.network.get_layer(0)._type = SimpleNamespace(name=kind)
        stage.build(BuildSettings())
    assert script.asked[0].profiles == ({"shapes": {"x": ((2, 4),) * 3}, "values": {}},)


def test_workspace_sources_and_level_reach_the_builder(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []
    monkeypatch.setattr(
        stage.trt.IBuilderConfig,
        "builder_optimization_level",
        property(lambda _: 3, lambda _, level: levels.append(level)),
        raising=False,
    )
    stage.build(
        BuildSettings(
            shapes=SHAPES, workspace_bytes=1 << 30, optimization_level=5, tactic_sources=("cudnn", "CUBLAS")
        )
    )
    assert (stage.script.asked[0].workspace_bytes, stage.script.asked[0].tactic_sources) == (1 << 30, 0b101)
    assert levels == [5]


def test_no_tactic_sources_is_not_the_default(stage: Stage) -> None:
    stage.build(BuildSettings(shapes=SHAPES, tactic_sources=()))
    stage.build()
    assert [asked.tactic_sources for asked in stage.script.asked] == [0, None]


def test_an_unknown_tactic_source_is_refused(stage: Stage) -> None:
    with pytest.raises(
        ConfigError, match=r"no tactic source 'cublast'\. Expected some of: CUBLAS, CUBLAS_LT"
    ) as error:
        stage.build(BuildSettings(shapes=SHAPES, tactic_sources=("cublas", "cublast")))
    _text(error)


def test_an_optimization_level_that_the_release_lacks_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = stage.trt.IBuilderConfig.__mro__
    owner = next(base for base in bases if "builder_optimization_level" in vars(base))
    monkeypatch.delattr(owner, "builder_optimization_level")
    stage.found = probe(stage.trt)
    with pytest.raises(
        ConfigError, match=r"TensorRT 8\.6\.1 has no builder optimization level\. Expected"
    ) as error:
        stage.build(BuildSettings(shapes=SHAPES, optimization_level=5))
    _text(error)


def test_progress_is_told_where_the_release_can() -> None:
    told = []
    with Stage(small_script(engine()), "10.0") as stage:
        stage.build(progress=lambda *step: told.append(step))
    assert told == [("Building Engine", 1, 1)]


# ---------------------------------------------------------------- what comes of it


def test_an_engine_comes_with_its_warnings_once_each() -> None:
    with Stage(small_script(engine(warnings=("w1", "w2", "w1")), engine(content=b"second"))) as stage:
        first, second = stage.build(), stage.build()
    assert (first.plan, first.warnings) == (b"engine", ("w1", "w2"))
    assert (second.plan, second.warnings) == (b"second", ())
    assert first.seconds >= 0


def test_a_failure_is_told_in_tensorrts_words() -> None:
    errors = ("one", "two", "Could not find any\nimplementation for node {conv}.", "Internal")
    with Stage(small_script(Refusal(errors))) as stage, pytest.raises(BackendError) as error:
        stage.build()
    assert not isinstance(error.value, DisobedientError)
    assert _text(error).startswith(
        "TensorRT 8.6.1 could not build the engine: two; Could not find any implementation for node {conv}; Internal."
    )


def test_a_failure_without_a_word_says_so() -> None:
    with Stage(small_script(Refusal(()))) as stage, pytest.raises(BackendError, match="it gave no reason"):
        stage.build()


def test_words_of_an_earlier_failure_are_not_repeated() -> None:
    with Stage(small_script(Refusal(("first",)), Refusal(("second",)))) as stage:
        for word in ("first", "second"):
            with pytest.raises(BackendError, match=rf"could not build the engine: {word}\."):
                stage.build()


def test_a_pin_that_cannot_be_obeyed_names_its_layer() -> None:
    with Stage(small_script(disobeyed("conv1 + relu1"), disobeyed("conv1 + relu1"))) as stage:
        with pytest.raises(DisobedientError) as error:
            stage.build(precision=Precision(True, constraints="obey"))
        assert error.value.layer == "conv1 + relu1"
        with pytest.raises(BackendError) as other:
            stage.build(precision=Precision(True, constraints="prefer"))
        assert not isinstance(other.value, DisobedientError)


@pytest.mark.parametrize(
    ("said", "layer"),
    [
        ("Internal Error (Could not find any implementation for node conv1 + relu1.)", "conv1 + relu1"),
        (
            "Internal Error (Could not find any implementation for node conv1 + relu1 due to insufficient workspace. "
            "See verbose log for requested sizes.)",
            None,
        ),
    ],
)
def test_a_layer_without_an_implementation_disobeys_unless_it_lacks_workspace(
    said: str, layer: str | None
) -> None:
    with Stage(small_script(Refusal((said,)))) as stage, pytest.raises(BackendError) as error:
        stage.build(precision=Precision(True, constraints="obey"))
    assert getattr(error.value, "layer", None) == layer
    assert "Give more workspace" in _text(error)


def test_the_fakes_own_refusal_is_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that got lost: the check is TensorRT's, not the package's."""
    monkeypatch.setattr(stage.trt.IBuilderConfig, "add_optimization_profile", lambda *_: 0)
    with pytest.raises(BackendError, match=NO_PROFILE.rstrip(".")):
        stage.build()


# ---------------------------------------------------------------- the timing cache


def test_timings_are_kept_and_used_again(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "timings.bin"
    settings = BuildSettings(shapes=SHAPES, timing_cache=path)
    assert stage.build(settings).warnings == ()
    assert path.read_bytes() == b"here:kernel"
    path.write_bytes(b"here:earlier")
    assert stage.build(settings).warnings == ()
    assert path.read_bytes() == b"here:earlier\nkernel"


@pytest.mark.parametrize("content", [b"there:kernel", b"her"])
def test_timings_of_another_gpu_or_torn_ones_are_started_afresh_and_that_is_said(
    stage: Stage, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "timings.bin"
    path.write_bytes(content)
    told = stage.build(BuildSettings(shapes=SHAPES, timing_cache=path)).warnings
    assert told == (
        f"{path} was replaced: its kernel timings are of another GPU or another TensorRT, or torn",
    )
    assert path.read_bytes() == b"here:kernel"


def test_timings_that_tensorrt_cannot_read_at_all_are_started_afresh(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = stage.trt.IBuilderConfig.create_timing_cache
    monkeypatch.setattr(
        stage.trt.IBuilderConfig,
        "create_timing_cache",
        lambda config, content: None if content == b"torn" else make(config, content),
    )
    path = tmp_path / "timings.bin"
    path.write_bytes(b"torn")
    assert len(stage.build(BuildSettings(shapes=SHAPES, timing_cache=path)).warnings) == 1
    assert path.read_bytes() == b"here:kernel"


def test_what_another_build_saved_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "timings.bin"
    path.write_bytes(b"here:old")

    def save_anothers(stage: str, done: int, total: int) -> None:
        path.write_bytes(b"here:old\nanother")

    with Stage(small_script(engine()), "10.0") as stage:
        stage.build(BuildSettings(shapes=SHAPES, timing_cache=path), progress=save_anothers)
    assert path.read_bytes() == b"here:old\nkernel\nanother"


def test_a_failed_build_leaves_the_timings(tmp_path: Path) -> None:
    path = tmp_path / "timings.bin"
    path.write_bytes(b"kept")
    with Stage(small_script(Refusal(("no",)))) as stage, pytest.raises(BackendError):
        stage.build(BuildSettings(shapes=SHAPES, timing_cache=path))
    assert path.read_bytes() == b"kept"


def test_without_a_file_no_timings_are_kept(stage: Stage, tmp_path: Path) -> None:
    stage.build()
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_the_bindings_raise_over_is_refused_in_words(stage: Stage) -> None:
    shapes = {"x": ShapeRange((8, 4), (2, 4), (1, 4))}
    with pytest.raises(
        BackendError, match=r"refuses the optimization profile x: 8x4 / 2x4 / 1x4\. Expected"
    ) as error:
        stage.build(BuildSettings(shapes=shapes))
    _text(error)
    assert stage.script.asked == []


@pytest.mark.parametrize(("variant", "most"), [("8.6", 2**31), ("10.0", 2**63), ("11", 2**63)])
def test_a_size_over_tensorrts_integers_is_refused_in_words(variant: Variant, most: int) -> None:
    """With a TypeError by the bindings, and not with the ValueError of sizes that do not grow."""
    typing: Typing = "strong" if variant == "11" else "weak"
    with Stage(small_script(engine()), variant, typing) as stage:
        with pytest.raises(
            BackendError, match=rf"refuses the optimization profile x: 1x4 / 2x4 / {most}x4\."
        ) as error:
            stage.build(
                BuildSettings(shapes={"x": ShapeRange((1, 4), (2, 4), (most, 4))}),
                Precision(typing == "weak"),
            )
        _text(error)
        assert stage.script.asked == []

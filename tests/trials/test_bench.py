"""Trials of engines: built, verified, traced, priced and shipped, with typed models in the engines' place.

A stand-in engine is the typed model that keeps the same nodes in FP32, run as FP16 hardware would store
it: what the bench does around an engine is real, the engine is not (tests/gpu has real ones).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, scalar, scan
from onnx import TensorProto
from recorded_networks import make_plan

from overflow_fixer.backends import BACKENDS, mixed_onnx, tensorrt
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.graph.model import Graph
from overflow_fixer.progress import silent
from overflow_fixer.records import (
    Artifact,
    BuildSettings,
    Engine,
    Latency,
    PinOutcome,
    PrecisionPlan,
    Price,
    RangeTable,
    Runner,
    ShapeRange,
)
from overflow_fixer.trials import bench as bench_module
from overflow_fixer.trials.bench import Bench, make_settings
from overflow_fixer.verification.comparison import open_reference

_ENGINE = Engine("8.6.1", "GPU", (9, 0), "weak", "obey", 4, 2, 2, 0, 0)
_NODES = [
    node("Mul", "x big", "a"),
    node("Mul", "a a", "b"),
    node("Mul", "b tiny", "c"),
    node("Add", "c one", "y"),
]
_CONSTANTS = {"big": scalar(1000), "tiny": scalar(1e-6), "one": floats(1)}
WIDE = ("Mul_a", "Mul_b", "Mul_c")


@dataclass
class StandInEngines:
    """The tensorrt backend's functions. `ignored` are pins that an engine does not honour, and hides."""

    ignored: set[str] = field(default_factory=set)
    built: list[tuple[str, Path]] = field(default_factory=list)
    priced: list[tuple[dict[str, Path], str]] = field(default_factory=list)
    traced: list[Sequence[str]] = field(default_factory=list)
    tracer_fails: bool = False
    _typed: dict[Path, Artifact] = field(default_factory=dict)

    def emit(
        self, graph: Graph, plan: PrecisionPlan, path: Path, settings: BuildSettings, progress: Any
    ) -> Artifact:
        return self._build("engine", graph, plan, path)

    def emit_fp32(self, graph: Graph, path: Path, settings: BuildSettings, tf32: bool) -> Artifact:
        everything = make_plan(graph, *(node.label for node in graph.nodes))
        return self._build(f"fp32 tf32={tf32}", graph, everything, path)

    def open_runner(self, artifact: Artifact, settings: BuildSettings) -> Runner:
        content = artifact.path.read_bytes()
        typed = next(typed for path, typed in self._typed.items() if typed.path.read_bytes() == content)
        return mixed_onnx.open_runner(typed)

    def open_tracer(
        self,
        graph: Graph,
        plan: PrecisionPlan,
        artifact: Artifact,
        tensors: Sequence[str],
        settings: BuildSettings,
    ) -> Runner:
        self.traced.append(tuple(tensors))
        if self.tracer_fails:
            raise BackendError("too many outputs")
        typed = next(typed for path, typed in self._typed.items() if path == artifact.path)
        return mixed_onnx.open_runner(typed, tensors)

    def measure_price(
        self, graph: Graph, artifacts: dict[str, Artifact], batch: Any, settings: BuildSettings
    ) -> Price:
        self.priced.append(({name: artifact.path for name, artifact in artifacts.items()}, batch.name))
        assert all(artifact.path.is_file() for artifact in artifacts.values())
        return Price(batch.name, tuple(Latency(name, 1.0, 1.0, 10) for name in artifacts), 0.5, 0.0)

    def _build(self, what: str, graph: Graph, plan: PrecisionPlan, path: Path) -> Artifact:
        self.built.append((what, path))
        honoured = replace(plan, pins=tuple(pin for pin in plan.pins if pin.node not in self.ignored))
        folder = path.parent / "behind_the_engine"
        typed = mixed_onnx.emit(graph, honoured, folder / "typed.onnx")
        path.write_bytes(typed.path.read_bytes())
        sidecar = path.with_name(path.name + ".json")
        sidecar.write_text("{}")
        self._typed[path] = typed
        claimed = tuple(pin.node for pin in plan.pins)
        return Artifact(
            "tensorrt",
            path,
            (path, sidecar),
            tuple(node.label for node in graph.nodes if node.label not in claimed),
            claimed,
            (),
            0,
            replace(_ENGINE, pins=tuple(PinOutcome(label, "not visible") for label in claimed)),
        )


@dataclass
class Workshop:
    """A model whose squares overflow in FP16, its ranges, and a bench over stand-in engines."""

    folder: Path
    engines: StandInEngines
    graph: Graph
    ranges: RangeTable
    feeds: tuple[dict[str, np.ndarray], ...]

    def open(self, backend: str = "tensorrt") -> Bench:
        config = FixConfig(model=self.graph.path, calib="memory", out=self.folder / "out")
        return Bench(config, self.graph, InMemoryCalibration(self.feeds), self.ranges, backend, silent)

    def plan(self, *labels: str) -> PrecisionPlan:
        return make_plan(self.graph, *labels)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    engines = StandInEngines()
    for name in ("emit_fp32", "open_tracer", "measure_price"):
        monkeypatch.setattr(tensorrt, name, getattr(engines, name))
    backend = replace(BACKENDS["tensorrt"], emit=engines.emit, open_runner=engines.open_runner)
    monkeypatch.setitem(bench_module.BACKENDS, "tensorrt", backend)
    rng = np.random.default_rng(3)
    shapes = [(2, 4), (3, 4), (3, 4), (1, 4)]
    feeds = tuple({"x": rng.uniform(1, 2, shape).astype(np.float32)} for shape in shapes)
    graph, ranges = scan(make_model(_NODES, {"x": ["n", 4]}, "y", _CONSTANTS), tmp_path, *feeds)
    return Workshop(tmp_path, engines, graph, ranges, feeds)


def _inside(bench: Bench) -> list[str]:
    return sorted(path.name for path in bench.config.folder.iterdir())


# ---------------------------------------------------------------- settings


def test_an_engine_is_built_for_the_shapes_of_the_data(workshop: Workshop) -> None:
    with workshop.open() as bench:
        assert bench.settings.shapes == {"x": ShapeRange((1, 4), (3, 4), (3, 4))}
        assert bench.settings.timing_cache == bench.config.folder / "timing.cache"
    with workshop.open("onnx") as bench:
        assert bench.settings.shapes == {}


def test_a_profile_overrides_the_shapes_of_the_data(workshop: Workshop) -> None:
    with workshop.open() as bench:
        options = bench.config.build.model_copy(update={"profile": {"x": ((1, 4), (8, 4), (16, 4))}})
        config = bench.config.model_copy(update={"build": options})
        found = make_settings(config, workshop.graph, bench.calibration, bench.backend)
        assert found.shapes == {"x": ShapeRange((1, 4), (8, 4), (16, 4))}
        assert make_settings(config, workshop.graph, None, bench.backend).shapes == found.shapes


# ---------------------------------------------------------------- trials


def test_a_plan_that_holds_passes_without_a_trace(workshop: Workshop) -> None:
    with workshop.open() as bench:
        artifact, found = bench.try_plan(workshop.plan(*WIDE))
    assert found.passed
    assert (found.first_wrong, found.trace, found.traced_in) == (None, (), "candidate")
    assert artifact.fp32_nodes == WIDE
    assert workshop.engines.traced == []


def test_what_a_model_that_was_written_meanwhile_was_compared_with_proves_nothing(workshop: Workshop) -> None:
    def write(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("verify", 1):
            os.utime(workshop.graph.path, ns=(1, 1))

    with workshop.open() as bench:
        bench.progress = write
        with pytest.raises(ModelError, match="changed while it was in use"):
            bench.try_plan(workshop.plan(*WIDE))


def test_the_fp32_model_runs_each_batch_once_for_all_trials(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches; a trace, which there is none of here, opens the model anew."""
    seen: list[str] = []

    def open_counted(graph: Graph) -> Runner:
        runner = open_reference(graph)
        run = runner.run
        monkeypatch.setattr(runner, "run", lambda batch: (seen.append(batch.name), run(batch))[1])
        return runner

    monkeypatch.setattr(bench_module, "open_reference", open_counted)
    with workshop.open("onnx") as bench:
        first, second = (bench.try_plan(workshop.plan(*WIDE))[1] for _ in range(2))
    assert first == second
    assert first.batch_count == 4
    assert seen == ["batch_0", "batch_1", "batch_2", "batch_3"]


def test_a_plan_that_fails_is_traced_by_a_simulation_of_its_precisions(workshop: Workshop) -> None:
    with workshop.open() as bench:
        _, found = bench.try_plan(workshop.plan("Mul_a"))
        left = [path.name for path in bench.config.folder.iterdir()]
    assert not found.passed
    assert found.traced_in == "simulation"
    assert found.first_wrong is not None
    assert found.first_wrong.tensor in ("a", "b")
    assert workshop.engines.traced == []
    assert len(left) == 1


def test_plain_fp16_fails_and_its_engine_is_kept_to_be_timed(workshop: Workshop) -> None:
    with workshop.open() as bench:
        artifact, found = bench.try_naive()
        assert artifact.path.is_file()
    assert not found.passed
    assert found.traced_in == "simulation"
    assert not artifact.path.exists()


def test_plain_fp16_of_a_typed_model_is_not_kept(workshop: Workshop) -> None:
    with workshop.open("onnx") as bench:
        artifact, found = bench.try_naive()
        assert not artifact.path.exists()
    assert (found.passed, found.traced_in) == (False, "candidate")


def test_where_the_simulation_shows_nothing_a_marked_engine_is_asked(workshop: Workshop) -> None:
    """The engine says that it keeps Mul_b in FP32, and does not: only its own tensors tell."""
    workshop.engines.ignored = {"Mul_b"}
    with workshop.open() as bench:
        _, found = bench.try_plan(workshop.plan(*WIDE))
    assert not found.passed
    assert found.traced_in == "marked engine"
    assert found.first_wrong is not None
    assert found.first_wrong.tensor == "b"
    assert workshop.engines.traced
    assert {"a", "b", "c"} <= {name for tensors in workshop.engines.traced for name in tensors}


def test_a_marked_engine_that_cannot_be_built_leaves_the_simulation(workshop: Workshop) -> None:
    workshop.engines.ignored, workshop.engines.tracer_fails = {"Mul_b"}, True
    with workshop.open() as bench:
        _, found = bench.try_plan(workshop.plan(*WIDE))
    assert workshop.engines.traced
    assert (found.passed, found.traced_in, found.first_wrong) == (False, "simulation", None)


def test_the_fp32_engine_is_compared_without_tf32(workshop: Workshop) -> None:
    with workshop.open() as bench:
        artifact, found = bench.try_fp32()
    assert found.passed
    assert found.batch_count == 4
    assert [what for what, _ in workshop.engines.built] == ["fp32 tf32=False"]
    assert artifact.fp32_nodes == (*WIDE, "Add_y")


def test_every_trial_has_a_folder_of_its_own_that_goes_in_the_end(workshop: Workshop) -> None:
    with workshop.open() as bench:
        for plan in (workshop.plan(*WIDE), workshop.plan(*WIDE, "Add_y")):
            bench.try_plan(plan)
        bench.try_fp32()
        folders = {path.parent for _, path in workshop.engines.built}
        assert len(folders) == 3
        assert {folder.parent.parent for folder in folders} == {bench.config.folder}
        assert {path.name for _, path in workshop.engines.built} == {"model.engine"}
    assert _inside(bench) == []


@pytest.mark.parametrize(("io_types", "lost"), [("keep", ()), ("fp16", ("wide",))])
def test_outputs_are_lost_to_fp16_inputs_and_outputs_but_for_those_with_nan_in_fp32(
    io_types: str, lost: tuple[str, ...], tmp_path: Path
) -> None:
    """The root of a negative number is NaN whatever the outputs are: that is no reason to leave the others unrepaired."""
    nodes = [node("Mul", "x big", "wide"), node("Sqrt", "x", "root"), node("Neg", "x", "fine")]
    feeds = {"x": floats(-1, 1, 2, 3)}
    model = make_model(nodes, {"x": [4]}, "wide root fine", {"big": scalar(1e6)})
    graph, ranges = scan(model, tmp_path, feeds)
    build = BuildOptions.model_validate({"backend": "onnx", "io_types": io_types})
    config = FixConfig(model=graph.path, calib="memory", out=tmp_path / "out", build=build)
    with Bench(config, graph, InMemoryCalibration((feeds,)), ranges, "onnx", silent) as bench:
        assert bench.find_lost_outputs() == lost


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [
        (
            [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Mul", "h h", "s")],
            ("y",),
        ),  # 1e6 is infinite in FP16
        ([node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Neg", "h", "s")], ()),
        ([node("Mul", "x x", "s")], ()),
    ],
)
def test_outputs_are_lost_to_what_is_fp16_in_the_model_but_for_those_with_nan_in_fp32(
    nodes: list[onnx.NodeProto], lost: tuple[str, ...], tmp_path: Path
) -> None:
    nodes = [
        *nodes,
        node("Cast", "s", "w", to=TensorProto.FLOAT),
        node("Add", "w x", "y"),
        node("Sqrt", "x", "root"),
    ]
    feeds = {"x": floats(-1000, 1, 2, 3)}
    graph, ranges = scan(make_model(nodes, {"x": [4]}, "y root"), tmp_path, feeds)
    build = BuildOptions.model_validate({"backend": "onnx"})
    config = FixConfig(model=graph.path, calib="memory", out=tmp_path / "out", build=build)
    with Bench(config, graph, InMemoryCalibration((feeds,)), ranges, "onnx", silent) as bench:
        assert bench.find_lost_to_own_fp16() == lost


# ---------------------------------------------------------------- the price


def test_a_trial_that_had_another_library_is_not_taken(workshop: Workshop) -> None:
    library, builds = workshop.folder / "ops.so", 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal builds
        builds += stage.endswith(": build") and done == 1

    config = FixConfig(
        model=workshop.graph.path, calib="memory", out=workshop.folder / "out", custom_ops=(library,)
    )
    known = config, workshop.graph, InMemoryCalibration(workshop.feeds), workshop.ranges, "onnx", progress
    for content, expected in ((b"one", 1), (b"one", 1), (b"two", 2)):
        library.write_bytes(content)
        with suppress(KeyboardInterrupt), Bench(*known) as bench:
            bench.try_plan(workshop.plan(*WIDE))
            raise KeyboardInterrupt
        assert builds == expected


def test_copies_are_tried_of_what_gives_the_same_each_time(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workshop.open("onnx") as bench:
        artifact, found = bench.try_plan(workshop.plan(*WIDE))
        assert found.passed
        copies = bench.try_copies(artifact)
        assert copies is not None
        assert (copies.batch_count, copies.changed_count) == (0, 12)
        assert all(verdict.passed for verdict in copies.outputs)
        monkeypatch.setattr(bench_module, "is_repeatable", lambda graph: False)
        assert bench.try_copies(artifact) is None


def test_the_price_is_of_four_engines_on_the_first_batch_of_the_usual_shape(workshop: Workshop) -> None:
    with workshop.open() as bench:
        fixed, _ = bench.try_plan(workshop.plan(*WIDE))
        naive, _ = bench.try_naive()
        exact, _ = bench.try_fp32()
        price = bench.measure_price(fixed, {tensorrt.NAIVE: naive, tensorrt.FP32_EXACT: exact})
    ((paths, batch),) = workshop.engines.priced
    assert batch == price.batch == "batch_1"
    assert list(paths) == [tensorrt.FIXED, tensorrt.NAIVE, tensorrt.FP32_EXACT, tensorrt.FP32]
    assert len(set(paths.values())) == 4
    assert paths[tensorrt.FIXED] == fixed.path
    assert workshop.engines.built[-1] == ("fp32 tf32=True", paths[tensorrt.FP32])


def test_a_profile_that_no_batch_has_is_priced_on_the_first(workshop: Workshop) -> None:
    with workshop.open() as bench:
        shapes = {"x": ShapeRange((1, 4), (8, 4), (16, 4))}
        bench.settings = replace(bench.settings, shapes=shapes)
        fixed, _ = bench.try_plan(workshop.plan(*WIDE))
        assert bench.measure_price(fixed, {}).batch == "batch_0"


# ---------------------------------------------------------------- shipping


def test_what_ships_is_the_file_that_was_measured(workshop: Workshop) -> None:
    with workshop.open() as bench:
        artifact, _ = bench.try_plan(workshop.plan(*WIDE))
        content = artifact.path.read_bytes()
        shipped = bench.ship(artifact)
        folder = bench.config.folder
    assert shipped.path == folder / "model.engine"
    assert shipped.files == (folder / "model.engine", folder / "model.engine.json")
    assert shipped.path.read_bytes() == content
    assert replace(shipped, path=artifact.path, files=artifact.files) == artifact
    assert _inside(bench) == ["model.engine", "model.engine.json"]


def test_a_newer_engine_takes_the_place_of_an_older(workshop: Workshop) -> None:
    with workshop.open() as bench:
        folder = bench.config.folder
        folder.mkdir(exist_ok=True)
        for name in ("model.engine", "model.engine.json", "report.json"):
            (folder / name).write_text("old")
        artifact, _ = bench.try_plan(workshop.plan(*WIDE))
        shipped = bench.ship(artifact)
    assert shipped.path.read_bytes() != b"old"
    assert (folder / "report.json").read_text() == "old"
    assert _inside(bench) == ["model.engine", "model.engine.json", "report.json"]


# ---------------------------------------------------------------- shipping


def _made(folder: Path, *names: str) -> Artifact:
    folder.mkdir()
    files = tuple(folder / name for name in names)
    for file in files:
        file.write_text(f"new {file.name}")
    return Artifact("onnx", files[0], files, (), (), (), 0)


def _ship(artifact: Artifact, folder: Path) -> Artifact:
    bench: Any = SimpleNamespace(config=SimpleNamespace(folder=folder))
    return Bench.ship(bench, artifact)


def test_weights_of_an_earlier_artifact_do_not_stay_beside_one_without(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _made(out, "m.onnx", "m.onnx.data", "other.onnx.data")
    shipped = _ship(_made(tmp_path / "trial", "m.onnx"), out)
    assert shipped.files == (out / "m.onnx",)
    assert {file.name for file in out.iterdir()} == {"m.onnx", "other.onnx.data"}


def test_the_model_is_shipped_behind_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two leaves no new model that reads the weights of another."""
    moved: list[str] = []
    monkeypatch.setattr("os.replace", lambda source, target: moved.append(target.name))
    out = tmp_path / "out"
    out.mkdir()
    shipped = _ship(_made(tmp_path / "trial", "m.onnx", "m.onnx.data"), out)
    assert moved == ["m.onnx.data", "m.onnx"]
    assert (shipped.path, shipped.files) == (out / "m.onnx", (out / "m.onnx", out / "m.onnx.data"))

"""A plan turned into an engine: by weak typing with pins, or by strong typing from the typed ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overflow_fixer.backends import mixed_onnx
from overflow_fixer.backends.fit import check_fit
from overflow_fixer.backends.mixed_onnx.assignment import computes_float
from overflow_fixer.backends.tensorrt.builder import Built, Precision, allows_tf32, build, check_features
from overflow_fixer.backends.tensorrt.capabilities import Capabilities, choose_typing, import_tensorrt, probe
from overflow_fixer.backends.tensorrt.cuda import open_device
from overflow_fixer.backends.tensorrt.engine_file import read_artifact, sidecar_of, write_engine
from overflow_fixer.backends.tensorrt.inspection import EngineLayer, find_fp32_nodes, judge_pins, read_engine
from overflow_fixer.backends.tensorrt.mapping import map_layers, read_layers
from overflow_fixer.backends.tensorrt.network import prepare
from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.backends.tensorrt.source import doubt_opset, parse_graph, parse_typed
from overflow_fixer.backends.tensorrt.weak import WeakBuild, mark_tensors
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.files import is_there, refuse_to_replace
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.progress import Progress, silent
from overflow_fixer.records import (
    Artifact,
    BuildSettings,
    Engine,
    Kept,
    PinOutcome,
    PrecisionPlan,
    Runner,
    Typing,
)

_WITHOUT_FP16 = "Every node that computes floats is pinned, so FP16 was not allowed at all: what was built is TensorRT's FP32 engine."


def open_tensorrt(settings: BuildSettings) -> tuple[Any, Capabilities, Typing]:
    """The module, what it can do, and the typing to build with; plug-ins are loaded.

    Asks the driver first: without a GPU, TensorRT can crash the process. Raises BackendError where one of
    them is missing.
    """
    open_device()
    trt = import_tensorrt()
    found = probe(trt)
    typing = choose_typing(found, settings.typing)
    prepare(trt, settings.plugins)
    return trt, found, typing


def check_settings(settings: BuildSettings) -> None:
    """Raise at once what `emit` would raise later for a TensorRT that cannot do as the settings say."""
    trt, found, _ = open_tensorrt(settings)
    check_features(trt, found, settings)


def emit(
    graph: Graph,
    plan: PrecisionPlan,
    path: Path,
    settings: BuildSettings,
    progress: Progress = silent,
) -> Artifact:
    """Build the plan's engine at `path`, with a sidecar beside it, and read what became of each pin.

    Raises BackendError where TensorRT cannot take or build the model, PlanError as fit.check_fit does and for a pin
    that matches no layer, OutputError where the file cannot be written, or would take the place of the model or its weights.
    """
    check_fit(graph, plan)
    refuse_to_replace(graph.files, name_files(path))
    trt, found, typing = open_tensorrt(settings)
    how = _emit_weak if typing == "weak" else _emit_strong
    return how(trt, found, graph, plan, path, settings, progress)


def name_files(path: Path) -> tuple[Path, ...]:
    """The engine at `path`, its sidecar, and the typed model that it is built from by strong typing, with its weights."""
    return (path, sidecar_of(path), *mixed_onnx.name_files(_name_typed(path)))


def find_foreign(path: Path, settings: BuildSettings) -> Path | None:
    """What something else made, of what `emit` would replace: an engine without a sidecar, or a typed model without a stamp.

    Raises BackendError where such a model is there, and TensorRT is missing or has no such typing.
    """
    if is_there(path) and not is_there(sidecar_of(path)):
        return path
    typed = mixed_onnx.find_foreign(_name_typed(path))
    is_built_from = typed is not None and choose_typing(probe(import_tensorrt()), settings.typing) == "strong"
    return typed if is_built_from else None


def _name_typed(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.engine')}.fp16.onnx")


def describe(graph: Graph, plan: PrecisionPlan, path: Path, settings: BuildSettings) -> Artifact:
    """The artifact of an earlier `emit`. Raises BackendError where there is none, or another plan's."""
    return read_artifact(graph, plan, path, settings)


def open_runner(artifact: Artifact, settings: BuildSettings) -> EngineRunner:
    """The engine in the artifact's file, on the GPU. Raises BackendError where it cannot be read or loaded."""
    trt, _, _ = open_tensorrt(settings)
    try:
        content = artifact.path.read_bytes()
    except OSError as error:
        raise BackendError(
            f"{artifact.path} cannot be read: {error.strerror or error}. Expected an engine. Check the path, or build it "
            "with fix-fp16 build --backend tensorrt."
        ) from error
    return EngineRunner(trt, content)


def open_tracer(
    graph: Graph, plan: PrecisionPlan, artifact: Artifact, tensors: Sequence[str], settings: BuildSettings
) -> Runner:
    """An engine of the same plan with inner tensors as outputs besides: its fusions differ from the artifact's.

    Raises BackendError as `emit` and load_typed do.
    """
    trt, found, typing = open_tensorrt(settings)
    if (artifact.engine.typing if artifact.engine is not None else typing) == "weak":
        weak = WeakBuild(trt, found, graph, plan, settings, silent, tensors)
        return weak.run()[1]
    parsed = parse_typed(trt, found, load_typed(artifact), graph.path, settings.shapes)
    mark_tensors(parsed.network, read_layers(parsed.network), tensors)
    precision = Precision(fp16=False, tf32=allows_tf32(settings, plan))
    return EngineRunner(trt, build(trt, found, parsed.network, precision, settings, silent).plan)


def load_typed(artifact: Artifact) -> Graph:
    """The typed model that an engine was built from. Raises BackendError where it is gone: the engine runs without it."""
    path = next(path for path in artifact.files if path.suffix == ".onnx")
    try:
        return load_graph(path)
    except ModelError as error:
        raise BackendError(
            f"The typed model that {artifact.path.name} was built from is not there as it was: {error} Or build both again with "
            "fix-fp16 build --backend tensorrt."
        ) from error


def emit_fp32(graph: Graph, path: Path, settings: BuildSettings, tf32: bool) -> Artifact:
    """The model's engine in FP32 throughout, with TF32 kernels or without."""
    trt, found, typing = open_tensorrt(settings)
    parsed = parse_graph(trt, found, graph, None, typing, settings.shapes)
    precision = Precision(fp16=False, tf32=tf32)
    built = build(trt, found, parsed.network, precision, settings, silent)
    owners = _owners(parsed.network, graph)
    layers = _inspect(trt, built, owners, settings)
    nothing = PrecisionPlan(graph.sha256, 0.0, ())
    nodes = _computing(graph)
    engine = _summarize(found, typing, precision, layers, built)
    artifact = Artifact(
        "tensorrt", path, (path, sidecar_of(path)), (), nodes, (), engine.reformat_layers, engine
    )
    write_engine(built.plan, path, graph, nothing, settings, precision, artifact)
    return artifact


def inspect_runner(runner: EngineRunner, graph: Graph, settings: BuildSettings) -> tuple[EngineLayer, ...]:
    """The layers of an engine whose shapes are set, with the nodes that their metadata and names tell."""
    trt, _, _ = open_tensorrt(settings)
    owners = {node.label: node.label for node in graph.nodes}
    return read_engine(trt, runner.engine, runner.context, owners)


def _emit_weak(
    trt: Any,
    found: Capabilities,
    graph: Graph,
    plan: PrecisionPlan,
    path: Path,
    settings: BuildSettings,
    progress: Progress,
) -> Artifact:
    weak = WeakBuild(trt, found, graph, plan, settings, progress)
    built, runner, layers, outcomes = weak.run()
    del runner
    engine = _summarize(found, "weak", weak.precision, layers, built, outcomes)
    engine = _complete(engine, weak)
    fp32 = _fp32_nodes(weak, layers, outcomes)
    computing = _computing(graph)
    artifact = Artifact(
        backend="tensorrt",
        path=path,
        files=(path, sidecar_of(path)),
        fp16_nodes=tuple(label for label in computing if label not in fp32),
        fp32_nodes=tuple(label for label in computing if label in fp32),
        kept=tuple(_kept(graph, weak, fp32)),
        cast_count=engine.reformat_layers,
        engine=engine,
    )
    write_engine(built.plan, path, graph, plan, settings, weak.precision, artifact)
    return artifact


def _emit_strong(
    trt: Any,
    found: Capabilities,
    graph: Graph,
    plan: PrecisionPlan,
    path: Path,
    settings: BuildSettings,
    progress: Progress,
) -> Artifact:
    typed_path = _name_typed(path)
    typed = mixed_onnx.emit(graph, plan, typed_path, io_types=settings.io_types)
    typed_graph = load_graph(typed_path)
    parsed = parse_typed(trt, found, typed_graph, graph.path, settings.shapes)
    precision = Precision(fp16=False, tf32=allows_tf32(settings, plan))
    built = build(trt, found, parsed.network, precision, settings, progress)
    layers = _inspect(trt, built, _owners(parsed.network, typed_graph), settings)
    pinned = [node.label for node in graph.nodes if node.label in plan.pinned]
    casts = [node.label for node in typed_graph.nodes if node.op_type == "Cast"]
    engine = _summarize(found, "strong", precision, layers, built, judge_pins(layers, pinned, (), casts))
    doubts = filter(None, [_say_without_tf32(plan, settings), parsed.note])
    engine = replace(engine, warnings=(*doubts, *engine.warnings))
    artifact = Artifact(
        backend="tensorrt",
        path=path,
        files=(path, sidecar_of(path), *typed.files),
        fp16_nodes=typed.fp16_nodes,
        fp32_nodes=typed.fp32_nodes,
        kept=typed.kept,
        cast_count=typed.cast_count,
        engine=engine,
    )
    write_engine(built.plan, path, graph, plan, settings, precision, artifact)
    return artifact


def _inspect(
    trt: Any, built: Built, owners: dict[str, str], settings: BuildSettings
) -> tuple[EngineLayer, ...]:
    runner = EngineRunner(trt, built.plan)
    runner.set_shapes(settings.shapes)
    return read_engine(trt, runner.engine, runner.context, owners)


def _owners(network: Any, graph: Graph) -> dict[str, str]:
    mapped = map_layers(read_layers(network), graph)
    return {layer.name: label for label, layers in mapped.items() for layer in layers}


def _summarize(
    found: Capabilities,
    typing: Typing,
    precision: Precision,
    layers: Sequence[EngineLayer],
    built: Built,
    outcomes: Sequence[PinOutcome] = (),
) -> Engine:
    device = open_device()
    working = [layer for layer in layers if not layer.is_reformat]
    return Engine(
        tensorrt=found.version,
        gpu=device.name,
        compute_capability=device.compute_capability,
        typing=typing,
        constraints=precision.constraints,
        layers=len(layers),
        fp32_layers=sum(layer.is_fp32 for layer in working),
        fp16_layers=sum(layer.is_fp16 for layer in working),
        reformat_layers=len(layers) - len(working),
        opaque_layers=sum(layer.is_opaque for layer in working),
        tf32=precision.tf32,
        tf32_layers=sum(layer.is_tf32 for layer in working),
        pins=tuple(outcomes),
        build_seconds=built.seconds,
        warnings=built.warnings,
    )


def _complete(engine: Engine, weak: WeakBuild) -> Engine:
    without_fp16 = "" if weak.precision.fp16 else _WITHOUT_FP16
    without_tf32 = _say_without_tf32(weak.plan, weak.settings)
    doubts = filter(None, [without_fp16, without_tf32, weak.parsed.note, doubt_opset(weak.graph, weak.found)])
    return replace(
        engine,
        skipped=weak.pinning.skipped,
        dropped=weak.dropped,
        movement_is_free=weak.movement_is_free,
        warnings=(*weak.notes, *doubts, *engine.warnings),
        builds=weak.builds,
        build_seconds=round(weak.seconds, 3),
    )


def _say_without_tf32(plan: PrecisionPlan, settings: BuildSettings) -> str:
    if plan.tf32 or not settings.tf32:
        return ""
    return (
        "The plan forbids TF32 (tf32 in plan.json), in which products round what they multiply to 10 bits, as FP16 does. "
        "A repair forbids it where that makes an engine less wrong."
    )


def _fp32_nodes(
    weak: WeakBuild, layers: Sequence[EngineLayer], outcomes: Sequence[PinOutcome]
) -> frozenset[str]:
    """Nodes in FP32: those that the engine shows so, and of those that it does not show the pinned ones."""
    refused = {outcome.node for outcome in outcomes if outcome.state == "not honoured"}
    asked = {*weak.pinned, *weak.widened} - refused
    return frozenset(asked) | (find_fp32_nodes(layers) - refused)


def _kept(graph: Graph, weak: WeakBuild, fp32: frozenset[str]) -> list[Kept]:
    kept = {*weak.widened, *(fp32 - weak.plan.pinned)}
    return [
        _explain(weak, node) for node in graph.nodes if node.label in kept and computes_float(graph, node)
    ]


def _explain(weak: WeakBuild, node: Node) -> Kept:
    if node.label in weak.widened:
        return Kept(node.label, node.op_type, weak.widened[node.label], "fusion")
    return Kept(node.label, node.op_type, "TensorRT chose FP32 for it by itself", "speed")


def _computing(graph: Graph) -> tuple[str, ...]:
    return tuple(node.label for node in graph.nodes if computes_float(graph, node))

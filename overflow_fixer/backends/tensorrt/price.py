"""What a fix costs: the engines timed in turns, and why FP16 brings nothing where it does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from overflow_fixer.backends.tensorrt.cuda import open_device
from overflow_fixer.backends.tensorrt.emission import inspect_runner, open_runner, open_tensorrt
from overflow_fixer.backends.tensorrt.latency import share_of_time, time_in_turns, time_layers
from overflow_fixer.graph.model import Graph
from overflow_fixer.plurals import agree, say_plural
from overflow_fixer.records import Artifact, Batch, BuildSettings, Latency, Price

FIXED, NAIVE, FP32, FP32_EXACT = "fixed", "naive FP16", "FP32 (TF32)", "FP32 (no TF32)"
_WORTHWHILE = 0.95
_TINY_MS = 0.1
_MANY = 0.3
_NO_FAST_FP16 = frozenset({(5, 0), (5, 2), (6, 1)})


def measure_price(
    graph: Graph, artifacts: Mapping[str, Artifact], batch: Batch, settings: BuildSettings
) -> Price:
    """Time the engines, "fixed" among them, in turns on one batch. Raises BackendError where one does not run."""
    trt, _, _ = open_tensorrt(settings)
    runners = {name: open_runner(artifact, settings) for name, artifact in artifacts.items()}
    latencies = time_in_turns(runners, batch)
    layers = inspect_runner(runners[FIXED], graph, settings)
    times_ms = time_layers(trt, runners[FIXED], batch)
    fp32 = share_of_time(layers, times_ms, lambda layer: layer.is_fp32)
    opaque = share_of_time(layers, times_ms, lambda layer: layer.is_opaque)
    remarks = tuple(_explain_slowness(latencies, artifacts[FIXED]))
    return Price(batch.name, latencies, fp32, opaque, remarks)


def _explain_slowness(latencies: tuple[Latency, ...], fixed: Artifact) -> Iterator[str]:
    """Where the fixed engine is hardly faster than FP32: every cause that the engine shows.

    That is FP32 with TF32, but for a fixed engine to which it is forbidden.
    """
    if fixed.engine is None:
        return
    p50 = {latency.name: latency.p50_ms for latency in latencies}
    name, told = (FP32, "with") if fixed.engine.tf32 else (FP32_EXACT, "without")
    against = p50.get(name, math.nan)
    if not p50[FIXED] > _WORTHWHILE * against:
        return
    yield f"FP16 brings nothing: the fixed engine takes {p50[FIXED]:.4g} ms, FP32 {told} TF32 {against:.4g} ms."
    causes = [
        *_blame_device(),
        *_blame_pins(fixed, p50, against),
        *_blame_layers(fixed),
        *_blame_size(p50[FIXED]),
    ]
    yield from causes or ["What the engine shows of itself does not tell why."]


def _blame_device() -> Iterator[str]:
    major, minor = open_device().compute_capability
    if major < 5 or (major, minor) in _NO_FAST_FP16:
        yield f"This GPU (compute capability {major}.{minor}) has no fast FP16 units."


def _blame_pins(fixed: Artifact, p50: Mapping[str, float], fp32_ms: float) -> Iterator[str]:
    engine = fixed.engine
    assert engine is not None
    total = len(fixed.fp16_nodes) + len(fixed.fp32_nodes)
    pinned = len(engine.pins)
    naive = p50.get(NAIVE, math.inf)
    if not pinned or naive >= _WORTHWHILE * p50[FIXED]:
        return
    told = f"{pinned} of {total} float nodes are pinned, and plain FP16 takes {naive:.4g} ms"
    brings = naive <= _WORTHWHILE * fp32_ms
    yield f"The pins cost it: {told}." if brings else f"{told}, which is no gain over FP32 either."


def _blame_layers(fixed: Artifact) -> Iterator[str]:
    engine = fixed.engine
    assert engine is not None
    many = _MANY * (len(fixed.fp16_nodes) + len(fixed.fp32_nodes))
    own = [kept for kept in fixed.kept if kept.kept_for == "speed"]
    if len(own) > many:
        yield (
            f"TensorRT itself chose FP32 for {say_plural(len(own), 'node')} that nothing pins: by its own timings FP16, with the "
            "conversions around it, was no faster there, or it has no FP16 kernel."
        )
    if len(fixed.kept) - len(own) > many:
        kept = say_plural(len(fixed.kept) - len(own), "node is", "nodes are")
        yield f"{kept} kept in FP32 besides those that are pinned."
    if engine.opaque_layers:
        is_free = engine.typing == "weak" and fixed.fp16_nodes
        choice = ": what runs in FP16 inside is TensorRT's choice" if is_free else ""
        regions = agree(
            engine.opaque_layers,
            "is a region that shows only its borders",
            "are regions that show only their borders",
        )
        yield f"{engine.opaque_layers} of {say_plural(engine.layers, 'layer')} {regions}{choice}."
    if engine.layers and engine.reformat_layers / engine.layers > _MANY:
        convert = agree(engine.reformat_layers, "only converts", "only convert")
        yield f"{engine.reformat_layers} of {say_plural(engine.layers, 'layer')} {convert} between types and formats."


def _blame_size(fixed_ms: float) -> Iterator[str]:
    if fixed_ms < _TINY_MS:
        yield (
            f"One inference takes {fixed_ms:.4g} ms: at this batch size the GPU waits for launches more than it "
            "computes. A larger batch gains more."
        )

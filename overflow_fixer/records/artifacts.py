"""What a backend builds, how it runs and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from overflow_fixer.records.batches import Array, Batch

KeptFor = Literal["type", "fusion", "speed"]
"""What decides it: its type is not the plan's to choose; a pinned node is fused with it; the builder's own timings."""


@dataclass(frozen=True)
class Kept:
    """A node that a backend keeps in FP32 although no finding pins it, and why: `reason` is the sentence to print."""

    node: str
    op_type: str
    reason: str
    kept_for: KeptFor = "type"


PinState = Literal["honoured", "not honoured", "not visible", "no layer"]
Typing = Literal["weak", "strong"]
Constraints = Literal["obey", "prefer", "none"]


@dataclass(frozen=True)
class PinOutcome:
    """What became of one pinned node in an engine.

    "honoured": every float at the borders of its engine layers is FP32. "not visible": it is inside a
    region of which the engine shows only the borders, or, by strong typing, in a layer with a cast beside it.
    "no layer": it was folded away or moved into another's layer. `layers` are the engine's layers that hold it.
    """

    node: str
    state: PinState
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """What a TensorRT engine says of itself and how it was built.

    Layer counts are of the engine's layers, each counted once at most: `reformat_layers` only convert,
    `opaque_layers` (Myelin regions) show only their borders, `fp32_layers` and `fp16_layers` of the rest
    by the floats at their borders. `tf32_layers` are those whose kernels show that they run in TF32, and
    `tf32` is whether any may.
    `constraints` is how pins were enforced: "obey", "prefer" (a last resort: the builder may have
    ignored some), "none" where nothing is pinned or types come from the model. `skipped` are layers of
    pinned nodes that cannot be pinned, `dropped` pins that were given up to get a build at all, both
    with the reason. `movement_is_free`: no layer that only moves values is pinned, also of nodes whose other
    layers are.
    """

    tensorrt: str
    gpu: str
    compute_capability: tuple[int, int]
    typing: Typing
    constraints: Constraints
    layers: int
    fp32_layers: int
    fp16_layers: int
    reformat_layers: int
    opaque_layers: int
    pins: tuple[PinOutcome, ...] = ()
    skipped: tuple[Kept, ...] = ()
    dropped: tuple[Kept, ...] = ()
    movement_is_free: bool = False
    tf32: bool = False
    tf32_layers: int = 0
    builds: int = 1
    build_seconds: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """What a backend built: its files, and which nodes run in what.

    `fp16_nodes` and `fp32_nodes` are labels of nodes with a float output; the rest of the graph
    (integers, shapes, booleans) is in neither. `engine` is there when it is a TensorRT engine, of which
    a node inside an opaque region counts by what was asked for.
    """

    backend: str
    path: Path
    files: tuple[Path, ...]
    fp16_nodes: tuple[str, ...]
    fp32_nodes: tuple[str, ...]
    kept: tuple[Kept, ...]
    cast_count: int
    engine: Engine | None = None


@dataclass(frozen=True)
class ShapeRange:
    """The least, the most usual and the greatest shape of one input, each dimension by itself.

    `values` are the same three of a small integer input's elements, for one that holds a shape.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]
    values: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class BuildSettings:
    """How a backend builds; what one does not know it leaves alone.

    `io_types`: float inputs and outputs keep FP32 or become FP16. The rest is TensorRT's: `typing`;
    `workspace_bytes` and `optimization_level` (None: TensorRT's default); `tactic_sources` by name
    (None: its default); `tf32`, whether FP32 layers may run in TF32, which is TensorRT's default;
    `timing_cache`, a file kept across builds (None: none is kept); `plugins`, libraries to load;
    `shapes`, the range of every input's shape.
    """

    io_types: Literal["keep", "fp16"] = "keep"
    typing: Literal["auto", "weak", "strong"] = "auto"
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    tf32: bool = True
    timing_cache: Path | None = None
    plugins: tuple[Path, ...] = ()
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)


@dataclass(frozen=True)
class Latency:
    """GPU time of one inference, in milliseconds, over `runs` runs interleaved with the others'."""

    name: str
    p50_ms: float
    p95_ms: float
    runs: int


@dataclass(frozen=True)
class Price:
    """What the fix costs: engines of the same model, timed in turns on one batch.

    `fp32_time_share` is the share of the fixed engine's time, layer by layer, in layers seen to be FP32,
    `opaque_time_share` that in regions that show only their borders; NaN where nothing was measured.
    `remarks` say, where FP16 brings nothing, why.
    """

    batch: str
    latencies: tuple[Latency, ...]
    fp32_time_share: float
    opaque_time_share: float
    remarks: tuple[str, ...] = ()


@runtime_checkable
class Runner(Protocol):
    """Something that runs batches: a reference, a simulation, an engine."""

    output_names: tuple[str, ...]

    def run(self, batch: Batch) -> dict[str, Array]: ...

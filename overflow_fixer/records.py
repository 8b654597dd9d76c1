"""Every value that flows between stages. Read this first.

    Graph + batches  --scan-->    RangeTable
    Graph + ranges   --plan-->    PrecisionPlan
    Graph + plan     --build-->   Artifact
    Artifact + data  --verify-->  Verification
    engines timed    --price-->   Price
    all of it        --report-->  FixReport

The names: a *range* is what a scan records of a tensor; a *finding* is one rule's evidence about a
node; a *pin* keeps a node in FP32; a *plan* is all pins and clamps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, get_args

import numpy as np
import numpy.typing as npt

from overflow_fixer.arguments import need_number, need_several, need_word
from overflow_fixer.formats import FP16_MAX, headroom_bits

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Dim = int | str | None
"""A fixed dimension, a symbolic one by its name, or one that nothing is known of."""


def is_fixed(dim: Dim) -> TypeGuard[int]:
    """Whether a dimension is a number; exporters write -1 for one that is not known."""
    return isinstance(dim, int) and dim >= 0


# ---------------------------------------------------------------- calibration data


@dataclass(frozen=True)
class InputSpec:
    """What the model says of one input: its name, ONNX element type and dimensions.

    `elem_type` is an onnx.TensorProto.DataType; `dims` is None when even the rank is unknown.
    """

    name: str
    elem_type: int
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True)
class Batch:
    """One set of inputs, with the name of the file (and the sample in it) that it came from.

    `is_changed` where its values are not quite those of the file: see calibration.jittered.
    """

    name: str
    feeds: Feeds
    is_changed: bool = False


class CalibrationSet(Protocol):
    """Batches that are read one at a time and can be walked again.

    `source` names the data in the report; `synthetic` is True for random data; `fingerprint`
    changes when the data does.
    """

    @property
    def source(self) -> str: ...

    @property
    def synthetic(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...


# ---------------------------------------------------------------- ranges


@dataclass(frozen=True)
class Range:
    """What was seen of one tensor, over all batches.

    `max_abs`, `min` and `max` are over every element that is not NaN, infinities included;
    `min_nonzero_abs` likewise, over the elements that are not zero. Each is NaN when no such
    element was seen. `min_nonzero_abs` is -inf where it was not taken: docs/numerics.md says where it is.
    Counts are totals over the batches (a constant is present in each).
    `over_fp16_count` counts |x| >= 65520, infinities included: what FP16 stores as infinity.
    `worst_batch` is the index of the first batch that holds `max_abs`, or -1 when there is none.
    """

    tensor: str
    max_abs: float
    min: float
    max: float
    min_nonzero_abs: float
    element_count: int
    nan_count: int
    inf_count: int
    over_fp16_count: int
    worst_batch: int

    @property
    def headroom(self) -> float:
        """log2(65504 / max_abs), in bits."""
        return headroom_bits(self.max_abs)

    @property
    def is_finite(self) -> bool:
        """Whether no NaN and no infinity was seen."""
        return self.nan_count + self.inf_count == 0


@dataclass(frozen=True)
class InnerRange:
    """What was seen of a value that a node computes inside, over all batches.

    `quantity` is one that docs/numerics.md names; its `seen.tensor` is "NODE: QUANTITY", and there is no
    `over_fp16_count` in it, no `min` of what cannot be negative, and no `min_nonzero_abs` but of what may be divided by,
    below 65520. Where it `is_bound`, no value of that kind was larger, and the true one may be smaller. `batch_max_abs` is
    float32 [batch].
    """

    node: str
    quantity: str
    is_bound: bool
    seen: Range
    batch_max_abs: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.empty(0, np.float32), repr=False, compare=False
    )


@dataclass(frozen=True, eq=False)
class RangeTable:
    """The ranges of every float tensor of a model, and each tensor's max_abs by batch.

    `batch_max_abs` is float32 [tensor, batch], in the order of `ranges` and `batch_names`; NaN
    where a batch had no element of the tensor that is not NaN.
    """

    model_sha256: str
    calibration: str
    synthetic: bool
    ranges: tuple[Range, ...]
    batch_names: tuple[str, ...]
    batch_max_abs: npt.NDArray[np.float32]
    not_observed: Mapping[str, str] = field(default_factory=dict)
    """Tensors that could not be observed, with the reason."""
    observe: str = "reductions"
    """How they were observed; see docs/scan.md. Values of "optimized" are those of other kernels."""
    provider: str = "cpu"
    """What ran the model: "cpu", "cuda" or "tensorrt"."""
    provider_lack: str | None = None
    """In a sentence, why that is not the provider that was asked for; None if it is."""

    inner: tuple[InnerRange, ...] = ()
    """Of values inside nodes, in the order of the graph."""
    model_stamp: str = ""
    """Of the model's files when they were hashed; see Graph.has_sha256."""
    fractional: frozenset[str] = frozenset()
    """The model's float inputs in which numbers were seen that are not whole."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of each data set that was scanned the path, by its CalibrationSet.fingerprint; of a scan without a store none."""

    @cached_property
    def by_tensor(self) -> Mapping[str, Range]:
        return {r.tensor: r for r in self.ranges}

    @cached_property
    def inner_of(self) -> Mapping[str, Mapping[str, InnerRange]]:
        """By the node's label, then by the quantity."""
        found: dict[str, dict[str, InnerRange]] = {}
        for inner in self.inner:
            found.setdefault(inner.node, {})[inner.quantity] = inner
        return found

    def get(self, tensor: str) -> Range | None:
        return self.by_tensor.get(tensor)

    def worst_batch_of(self, seen: Range) -> str | None:
        """The name of the batch that holds the max_abs of one of the table's ranges; None when there is none."""
        return None if seen.worst_batch < 0 else self.batch_names[seen.worst_batch]


# ---------------------------------------------------------------- plan


Masks = Literal["auto", "pin", "clamp"]
Accumulators = Literal["pin", "report", "off"]


@dataclass(frozen=True)
class PlanPolicy:
    """What the user lets the planner decide.

    `threshold`: magnitude over which a tensor is not trusted to FP16. `include_nodes` and
    `exclude_nodes` are regular expressions searched in node labels; the `_ops` are op types.
    `masks`: "auto" clamps a mask where that provably changes nothing and pins it elsewhere,
    "pin" never clamps, "clamp" clamps every additive mask (the user vouches for its rows).
    `accumulators`: what becomes of a sum of products that may overflow on the way: "pin" its node, "report" it,
    or "off". `protected`: operators whose inner values the backend computes in FP32 by itself, and why.
    Raises ConfigError for a threshold that is not above 0 and of at most 65504, for another word, and for a text in place of several.
    """

    threshold: float = 10000.0
    include_nodes: tuple[str, ...] = ()
    include_ops: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    masks: Masks = "auto"
    accumulators: Accumulators = "pin"
    protected: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        need_number("PlanPolicy.threshold", self.threshold, above=0, most=FP16_MAX)
        need_word("PlanPolicy.masks", self.masks, get_args(Masks))
        need_word("PlanPolicy.accumulators", self.accumulators, get_args(Accumulators))
        for name in ("include_nodes", "include_ops", "exclude_nodes", "exclude_ops"):
            need_several(f"PlanPolicy.{name}", getattr(self, name))


Action = Literal["pin", "clamp", "none", "protected"]
Severity = Literal["high", "low"]


@dataclass(frozen=True)
class Finding:
    """One rule's evidence about one node.

    `value` is what was measured or read (NaN where the evidence is not a number) and `limit` what
    it was held against; `batch` names where the value was seen, None for a constant. `action` is
    what follows: "pin" the node, "clamp" the constant `tensor`, "protected" (the backend computes it in FP32 by
    itself), or "none" (for the record). `severity` is "low" where it depends on the order in which a kernel adds.
    """

    rule: str
    node: str
    tensor: str
    value: float
    limit: float
    reason: str
    batch: str | None = None
    action: Action = "pin"
    severity: Severity = "high"


@dataclass(frozen=True)
class Pin:
    """One node that stays in FP32, with every finding that says so."""

    node: str
    op_type: str
    outputs: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Clamp:
    """A constant whose elements beyond +-`magnitude` are replaced by +-`magnitude` in FP16.

    `covers` are the tensors whose values differ from FP32 because of it, and by design.
    """

    tensor: str
    magnitude: float
    reason: str
    covers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrecisionPlan:
    """All pins and clamps, and what was considered and left in FP16."""

    model_sha256: str
    threshold: float
    pins: tuple[Pin, ...]
    clamps: tuple[Clamp, ...] = ()
    considered: tuple[Finding, ...] = ()

    @cached_property
    def pinned(self) -> frozenset[str]:
        """Labels of the nodes that stay in FP32."""
        return frozenset(pin.node for pin in self.pins)

    @cached_property
    def clamped(self) -> frozenset[str]:
        """The tensors that are clamped masks, or made of them alone."""
        return frozenset(name for clamp in self.clamps for name in (clamp.tensor, *clamp.covers))


@dataclass(frozen=True)
class Growth:
    """How the largest magnitude of a tensor, or of a value inside a node ("NODE: QUANTITY"), grew with the batches.

    `headroom_bits` is up to FP16's limit and `margin_bits` up to the threshold (of a bound: 65504); `growth_bits` is by how much it
    grew, on average, from a random half of the batches to all of them. `worst_batch` is the first with the maximum.
    """

    tensor: str
    max_abs: float
    headroom_bits: float
    margin_bits: float
    growth_bits: float
    worst_batch: int


@dataclass(frozen=True)
class Confidence:
    """How sure a plan is. `nearest` are the values that could still pin a node, nearest to their limit first;
    `at_risk` those of them that four times the data would bring over it, at the rate at which they grew."""

    batch_count: int
    nearest: tuple[Growth, ...]
    at_risk: tuple[Growth, ...]


# ---------------------------------------------------------------- artifact


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
    region of which the engine shows only the borders. "no layer": it was folded away or moved into
    another's layer. `layers` are the engine's layers that hold it.
    """

    node: str
    state: PinState
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """What a TensorRT engine says of itself and how it was built.

    Layer counts are of the engine's layers, each counted once at most: `reformat_layers` only convert,
    `opaque_layers` (Myelin regions) show only their borders, `fp32_layers` and `fp16_layers` of the rest
    by the floats at their borders.
    `constraints` is how pins were enforced: "obey", "prefer" (a last resort: the builder may have
    ignored some), "none" where nothing is pinned or types come from the model. `skipped` are layers of
    pinned nodes that cannot be pinned, `dropped` pins that were given up to get a build at all, both
    with the reason.
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


class Runner(Protocol):
    """Something that runs batches: a reference, a simulation, an engine."""

    output_names: tuple[str, ...]

    def run(self, batch: Batch) -> dict[str, Array]: ...


# ---------------------------------------------------------------- verification


@dataclass(frozen=True)
class Tolerance:
    """When an output counts as right: SNR at least `min_snr_db`, per output if named.

    `parts` of outputs, as NumPy indexes them ("boxes[:, 4:]"), are judged by themselves beside the whole; so are those that
    `per_output` names. `max_abs_error` is a second way to pass, for outputs whose reference is (nearly) zero. Outputs
    that are not floats pass when at least `min_agreement` of their elements are equal. `fills` are constants of the model, by output,
    that fill elements of it, or are added to them as a mask: where FP32 has one that hides all else and the candidate has it too, rounded, both
    count as 0, so that they are no signal. Raises ConfigError for an SNR that is not finite, a share that is not from 0 to 1, an error below 0,
    and for a text in place of several parts.
    """

    min_snr_db: float = 30.0
    min_agreement: float = 0.99
    per_output: Mapping[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    parts: tuple[str, ...] = ()
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        need_number("Tolerance.min_snr_db", self.min_snr_db)
        for output, snr_db in self.per_output.items():
            need_number(f"Tolerance.per_output[{output!r}]", snr_db)
        need_number("Tolerance.min_agreement", self.min_agreement, least=0, most=1)
        need_number("Tolerance.max_abs_error", self.max_abs_error, least=0)
        need_several("Tolerance.parts", self.parts)

    def min_snr_of(self, output: str, part: str = "") -> float:
        """In dB, of an output or a part of it, which has the output's where it has none of its own."""
        return self.per_output.get(output + part, self.per_output.get(output, self.min_snr_db))


@dataclass(frozen=True)
class TensorError:
    """How a candidate's tensor differs from the reference's, over all batches compared.

    Counts first: `candidate_nan`, `candidate_inf`, `reference_nan`, `reference_inf` are elements;
    `mismatched` counts those that are non-finite on one side and not the same on the other, the
    elements of differing shapes, and for tensors that are not floats those that are not equal.
    The errors are over the `compared` elements, finite on both sides; NaN when there are none.
    `snr_db` is 10 log10(sum ref^2 / sum (ref - cand)^2): inf when equal. `worst_batch_snr_db` is the
    least of a batch, where sum ref^2 is taken as at least a hundredth of what the mean batch would have
    for its elements: a batch that is wrong shows beside louder ones, and silence is not judged by its
    noise. `quiet_batch` is the worst of the `quiet_count` for which that was done, `quiet_batch_snr_db` its SNR
    without it; None and NaN where there are none. `worst_batch_agreement` is the least share of equal elements in a
    batch, of what is not of floats; else NaN. `log_energy` is log10 of the mean of ref^2 over the compared elements,
    -inf for 0 or of none. `cosine` is in [-1, 1]. `worst_batch` names a batch that failed, else the one with the
    largest share of mismatches, then the lowest SNR. `failure` is why the candidate could not compute it on that
    batch; None where it could on all. `other_shape` tells both shapes, and the first batch where they differ; None
    where they do not. `part` is of an output that part of it which is compared, as NumPy indexes it ("[:, 4:]"); ""
    for the whole. Of floats, `sizable_count` elements are finite and at least 2^-14 (FP16's least normal number) in
    FP32, and of these `far_off_count` off by more than a tenth of themselves, or not finite.
    """

    tensor: str
    element_count: int
    compared: int
    candidate_nan: int
    candidate_inf: int
    reference_nan: int
    reference_inf: int
    mismatched: int
    max_abs_error: float
    mean_abs_error: float
    max_rel_error: float
    max_abs_reference: float
    cosine: float
    snr_db: float
    worst_batch: str | None
    is_float: bool = True
    worst_batch_snr_db: float = math.nan
    quiet_batch: str | None = None
    quiet_batch_snr_db: float = math.nan
    quiet_count: int = 0
    worst_batch_agreement: float = math.nan
    failure: str | None = None
    log_energy: float = -math.inf
    other_shape: str | None = None
    part: str = ""
    sizable_count: int = 0
    far_off_count: int = 0

    @property
    def name(self) -> str:
        """What is compared: the tensor, or a part of it."""
        return self.tensor + self.part

    @property
    def lost_count(self) -> int:
        """How many more elements are NaN or infinite than in FP32."""
        return self.candidate_nan + self.candidate_inf - self.reference_nan - self.reference_inf


@dataclass(frozen=True)
class OutputVerdict:
    """The error of an output, or of a part of one, whether it passes and, if not, why."""

    error: TensorError
    passed: bool
    reason: str


@dataclass(frozen=True)
class HiddenSlice:
    """A part of an output that is under its SNR, where the output's does not show it: smaller than the rest, or one of very many.

    The worst of `count` such, at `index` along `axis`, which may be the last. `rms` and `output_rms` are the root mean squares
    of its FP32 values and of all.
    """

    tensor: str
    axis: int
    index: int
    count: int
    snr_db: float
    rms: float
    output_rms: float
    is_last: bool

    @property
    def part(self) -> str:
        """As NumPy indexes it."""
        return _say_index(self.axis, self.index, self.is_last)

    @property
    def is_small(self) -> bool:
        """Whether it has less than 1 % of the output's mean energy."""
        return self.rms**2 < 0.01 * self.output_rms**2


@dataclass(frozen=True)
class HiddenVariation:
    """What of an output varies, where that has too low an SNR, and is so much smaller than the output that the output's hides it.

    `rms` is the root mean square of FP32's values less their mean, which is each sample's own where it is `within_samples`;
    `output_rms` that of the values. Of an output of several channels it is the worst of `count` such, all three numbers those of
    the channel: at `index` along `axis`, which may be the last, and each sample's own mean there. `axis` and `index` are None of
    an output as a whole.
    """

    tensor: str
    snr_db: float
    rms: float
    output_rms: float
    within_samples: bool
    axis: int | None = None
    index: int | None = None
    count: int = 1
    is_last: bool = False

    @property
    def part(self) -> str:
        """As NumPy indexes the channel; "" for the whole."""
        if self.axis is None or self.index is None:
            return ""
        return _say_index(self.axis, self.index, self.is_last)


def _say_index(axis: int, index: int, is_last: bool) -> str:
    before = "..., " if is_last and axis > 1 else ":, " * axis
    return f"[{before}{index}]"


@dataclass(frozen=True)
class HiddenClass:
    """A value of an output of integers of which few elements are as in FP32, where the share of all that are does not show it.

    The worst of `count` such: FP32 has `elements` of it over all batches, and of these `equal` are equal.
    """

    tensor: str
    value: int
    count: int
    elements: int
    equal: int


@dataclass(frozen=True)
class GainedClass:
    """A value of an output of integers of which the candidate has several times as many elements as FP32, unseen in the share of all that are equal.

    The one that gains most of `count` such: FP32 has `elements` of it over all batches, the candidate `found`.
    """

    tensor: str
    value: int
    count: int
    elements: int
    found: int


Becomes = Literal["negative", "zero"]


@dataclass(frozen=True)
class SignChange:
    """Elements of an output, or of a part of it, that the candidate has negative, or zero, as FP32 has none over all batches.

    `count` of `elements` become so. The worst (the least of negative ones, of zeros the largest in FP32) is `candidate`, where FP32
    has `reference`, in `batch`. `part` is as NumPy indexes it; "" for the whole.
    """

    tensor: str
    part: str
    becomes: Becomes
    count: int
    elements: int
    reference: float
    candidate: float
    batch: str

    @property
    def name(self) -> str:
        """What is compared: the tensor, or a part of it."""
        return self.tensor + self.part


TracedIn = Literal["candidate", "simulation", "marked engine"]


@dataclass(frozen=True)
class Verification:
    """A candidate against FP32 on the calibration batches, and on `changed_count` changed copies of them.

    `first_wrong` is the first tensor in topological order that goes wrong, inputs that are FP16 included; None when nothing
    failed or it was not looked for. `trace` has every tensor compared, in topological order. `traced_in`
    is what they were taken from: the candidate itself; for an engine, which shows no inner tensors, a
    "simulation" of its precisions node by node, or a "marked engine", built again with inner tensors as
    outputs, whose fusions differ. `hidden` are parts of outputs that fail unseen: at most one of each output; `hidden_variations` outputs of which what
    varies does; `hidden_classes` values of outputs of integers that are lost unseen, `gained_classes` such that are gained; `sign_changes`
    outputs, and parts, of which elements become negative or zero.
    """

    outputs: tuple[OutputVerdict, ...]
    batch_count: int
    first_wrong: TensorError | None = None
    trace: tuple[TensorError, ...] = ()
    traced_in: TracedIn = "candidate"
    changed_count: int = 0
    hidden: tuple[HiddenSlice, ...] = ()
    hidden_variations: tuple[HiddenVariation, ...] = ()
    hidden_classes: tuple[HiddenClass, ...] = ()
    gained_classes: tuple[GainedClass, ...] = ()
    sign_changes: tuple[SignChange, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every output passed, and at least one had an element to compare."""
        compared = any(verdict.error.element_count for verdict in self.outputs)
        return self.batch_count > 0 and compared and all(verdict.passed for verdict in self.outputs)

    @property
    def first_not_finite(self) -> TensorError | None:
        """The first tensor with more NaN and infinities than in FP32, of the trace or an input that goes wrong; None for none."""
        first = () if self.first_wrong is None else (self.first_wrong,)
        return next((error for error in (*first, *self.trace) if error.lost_count > 0), None)


# ---------------------------------------------------------------- repair and report


@dataclass(frozen=True)
class Budget:
    """How much a repair may take: rounds of widening (and as many of narrowing), builds in all, minutes.

    The first build counts as one; no round is begun once the builds or the minutes are spent.
    """

    max_rounds: int = 6
    max_builds: int = 40
    max_minutes: float = 120.0


@dataclass(frozen=True)
class RepairRound:
    """One round of widening the plan: what was tried, what it gave, whether it was kept."""

    index: int
    action: str
    added: tuple[str, ...]
    threshold: float
    passed: bool
    worst_snr_db: float
    mismatched: int
    kept: bool


@dataclass(frozen=True)
class Share:
    """How much of the model runs in FP16, by nodes with a float output and by FLOPs.

    `unknown_flops_nodes` are compute nodes whose FLOPs could not be counted (unknown shapes).
    """

    fp16_nodes: int
    float_nodes: int
    fp16_flops: int
    flops: int
    unknown_flops_nodes: int


@dataclass(frozen=True)
class FusedModel:
    """A model whose LayerNorms, written out as several nodes in the `source`, are LayerNormalization nodes.

    `files` are the model and, if its weights lie beside it, their file. `fused` are the tensors that the nodes write;
    `left` gives, for the output of each LayerNorm that was not fused, the reason. It was proved equal:
    `max_relative_error` is the largest |difference| of an output in a batch, as a share of that output's largest |x| there.
    """

    source: Path
    source_sha256: str
    files: tuple[Path, ...]
    fused: tuple[str, ...]
    left: Mapping[str, str]
    max_relative_error: float


@dataclass(frozen=True)
class FixReport:
    """Everything the main job learned: what `report.json` and the closing table are made from.

    `naive` is None where the comparison with plain FP16 was not wanted. `price` and `fp32_engine` (the
    backend's own FP32 engine, TF32 off, held against the reference) are there for engines alone. `calibration` names the
    data that it was verified on, `synthetic` where they are random; those of `ranges` may be others. `confidence`
    tells how sure `plan` is. `fused` is there where `model` was made from the user's: see FusedModel.
    """

    model: Path
    model_sha256: str
    tool_version: str
    versions: Mapping[str, str]
    backend: str
    backend_reason: str
    calibration: str
    synthetic: bool
    ranges: RangeTable
    plan: PrecisionPlan
    initial_pins: int
    artifact: Artifact
    naive: Verification | None
    fixed: Verification
    rounds: tuple[RepairRound, ...]
    share: Share
    tolerance: Tolerance
    files: tuple[Path, ...]
    durations_seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    price: Price | None = None
    fp32_engine: Verification | None = None
    confidence: Confidence = field(default_factory=lambda: Confidence(0, (), ()))
    fused: FusedModel | None = None

    @property
    def passed(self) -> bool:
        return self.fixed.passed

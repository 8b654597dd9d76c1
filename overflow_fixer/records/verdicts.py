"""How a candidate's outputs differ from the reference's, and whether that will do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from overflow_fixer.annotations import need_types
from overflow_fixer.arguments import need_number, need_several

LEAST_SAMPLE = 64.0
"""A step of 1 is little beside the largest sample from here on."""


@dataclass(frozen=True)
class Tolerance:
    """When an output counts as right: SNR at least `min_snr_db`, per output if named.

    `parts` of outputs, as NumPy indexes them ("boxes[:, 4:]"), are judged by themselves beside the whole; so are those that
    `per_output` names. `max_abs_error` is a second way to pass, for outputs whose reference is (nearly) zero. Outputs that are
    not floats pass when at least `min_agreement` of their elements are equal. `fills` are constants of the model, by output, that
    fill elements of it, or are added to them as a mask: where FP32 has one that hides all else and the candidate has it too,
    rounded, both count as 0, so that they are no signal. `samples` are outputs of integers that are judged as floats, by their SNR,
    and pass as well where nothing is off by more than 1, a step of theirs, and FP32 reaches 64 or at least `min_agreement` are
    equal. Raises ConfigError for an SNR that is not finite, a share that is not from 0 to 1, an error below 0, a text in place of
    several parts, and for what is of another type.
    """

    min_snr_db: float = 30.0
    min_agreement: float = 0.99
    per_output: Mapping[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    parts: tuple[str, ...] = ()
    fills: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    samples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        need_number("Tolerance.min_snr_db", self.min_snr_db)
        need_types(self, "per_output")
        for output, snr_db in self.per_output.items():
            need_number(f"Tolerance.per_output[{output!r}]", snr_db)
        need_number("Tolerance.min_agreement", self.min_agreement, least=0, most=1)
        need_number("Tolerance.max_abs_error", self.max_abs_error, least=0)
        need_several("Tolerance.parts", self.parts)
        need_several("Tolerance.samples", self.samples)
        need_types(self, "parts", "fills", "samples")

    def min_snr_of(self, output: str, part: str = "") -> float:
        """In dB, of an output or a part of it, which has the output's where it has none of its own."""
        return self.per_output.get(output + part, self.per_output.get(output, self.min_snr_db))

    def max_abs_error_of(self, error: TensorError) -> float:
        """Up to which an output, or a part of it, passes whatever its SNR."""
        is_little = error.max_abs_reference >= LEAST_SAMPLE or error.mean_abs_error <= 1 - self.min_agreement
        return max(self.max_abs_error, 1.0 if error.tensor in self.samples and is_little else 0.0)


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
    """A value of an output of integers of which the candidate has several times as many elements as FP32, unseen in the share of
    all that are equal.

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
    failed or it was not looked for. `trace` has every tensor compared, in topological order. `traced_in` is what they were taken
    from: the candidate itself; for an engine, which shows no inner tensors, a "simulation" of its precisions node by node, or a
    "marked engine", built again with inner tensors as outputs, whose fusions differ. `hidden` are parts of outputs that fail
    unseen: at most one of each output; `hidden_variations` outputs of which what varies does; `hidden_classes` values of outputs
    of integers that are lost unseen, `gained_classes` such that are gained; `sign_changes` outputs, and parts, of which elements
    become negative or zero.
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

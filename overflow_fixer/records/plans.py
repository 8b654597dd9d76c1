"""What rules find, and which nodes stay in FP32 for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from overflow_fixer.annotations import need_types
from overflow_fixer.arguments import need_number, need_several, need_word
from overflow_fixer.formats import FP16_MAX

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
    Raises ConfigError for a threshold that is not above 0 and of at most 65504, for another word, for a text in place of several, and
    for what is of another type.
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
        several = ("include_nodes", "include_ops", "exclude_nodes", "exclude_ops")
        for name in several:
            need_several(f"PlanPolicy.{name}", getattr(self, name))
        need_types(self, *several, "protected")


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
    """All pins and clamps, and what was considered and pins nothing.

    `tf32`: whether FP32 layers of an engine may run in TF32, where the settings let them. Raises ConfigError for what is of
    another type.
    """

    model_sha256: str
    threshold: float
    pins: tuple[Pin, ...]
    clamps: tuple[Clamp, ...] = ()
    considered: tuple[Finding, ...] = ()
    tf32: bool = True

    def __post_init__(self) -> None:
        need_types(self, "model_sha256", "threshold", "pins", "clamps", "considered", "tf32")

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

    `headroom_bits` is up to FP16's limit and `margin_bits` up to the threshold (of a bound: 65504); `growth_bits` is by how much
    it grew, on average, from a random half of the batches that show it to all of them, NaN where one alone does. `worst_batch` is
    the first with the maximum.
    """

    tensor: str
    max_abs: float
    headroom_bits: float
    margin_bits: float
    growth_bits: float
    worst_batch: int


@dataclass(frozen=True)
class Fall:
    """How small a tensor came that is divided by, or of which a logarithm is taken.

    `margin_bits` is down to 2^-21, eight of FP16's steps, from where on the rule vanishing_divisor pins it; `fall_bits` is by how
    much the smallest of its n elements falls with each doubling of them, as they are spread: log2(max / min) / log2(n).
    """

    tensor: str
    min_nonzero_abs: float
    margin_bits: float
    fall_bits: float


@dataclass(frozen=True)
class Confidence:
    """How sure a plan is. `nearest` are the values that could still pin a node, nearest to their limit first;
    `at_risk` those of them that four times the data would bring over it, at the rate at which they grew; `falling` those that are
    divided by and that four times the data would bring under what FP16 holds, as they are spread."""

    batch_count: int
    nearest: tuple[Growth, ...]
    at_risk: tuple[Growth, ...]
    falling: tuple[Fall, ...] = ()

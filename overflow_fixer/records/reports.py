"""What a repair tried, and everything that the main job learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from overflow_fixer.records.artifacts import Artifact, Price
from overflow_fixer.records.plans import Confidence, PrecisionPlan
from overflow_fixer.records.ranges import RangeTable
from overflow_fixer.records.verdicts import Tolerance, Verification


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
    """How much of the model runs in FP16, by nodes with a float output and by FLOPs of products: see flops.COUNTERS.

    `unknown_flops_nodes` are nodes that may compute products and could not be counted.
    """

    fp16_nodes: int
    float_nodes: int
    fp16_flops: int
    flops: int
    unknown_flops_nodes: int

    @property
    def of_nodes(self) -> float:
        """NaN where the model has no such nodes."""
        return self.fp16_nodes / self.float_nodes if self.float_nodes else math.nan

    @property
    def of_flops(self) -> float:
        """NaN where the model computes no products."""
        return self.fp16_flops / self.flops if self.flops else math.nan


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

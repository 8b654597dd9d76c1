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

from overflow_fixer.records.artifacts import (
    Artifact,
    BuildSettings,
    Constraints,
    Engine,
    Kept,
    KeptFor,
    Latency,
    PinOutcome,
    PinState,
    Price,
    Runner,
    ShapeRange,
    Typing,
)
from overflow_fixer.records.batches import Array, Batch, CalibrationSet, Dim, Feeds, InputSpec, is_fixed
from overflow_fixer.records.plans import (
    Accumulators,
    Action,
    Clamp,
    Confidence,
    Fall,
    Finding,
    Growth,
    Masks,
    Pin,
    PlanPolicy,
    PrecisionPlan,
    Severity,
)
from overflow_fixer.records.ranges import InnerRange, Range, RangeTable
from overflow_fixer.records.reports import Budget, FixReport, FusedModel, RepairRound, Share
from overflow_fixer.records.verdicts import (
    LEAST_SAMPLE,
    Becomes,
    GainedClass,
    HiddenClass,
    HiddenSlice,
    HiddenVariation,
    OutputVerdict,
    SignChange,
    TensorError,
    Tolerance,
    TracedIn,
    Verification,
)

__all__ = [
    "LEAST_SAMPLE",
    "Accumulators",
    "Action",
    "Array",
    "Artifact",
    "Batch",
    "Becomes",
    "Budget",
    "BuildSettings",
    "CalibrationSet",
    "Clamp",
    "Confidence",
    "Constraints",
    "Dim",
    "Engine",
    "Fall",
    "Feeds",
    "Finding",
    "FixReport",
    "FusedModel",
    "GainedClass",
    "Growth",
    "HiddenClass",
    "HiddenSlice",
    "HiddenVariation",
    "InnerRange",
    "InputSpec",
    "Kept",
    "KeptFor",
    "Latency",
    "Masks",
    "OutputVerdict",
    "Pin",
    "PinOutcome",
    "PinState",
    "PlanPolicy",
    "PrecisionPlan",
    "Price",
    "Range",
    "RangeTable",
    "RepairRound",
    "Runner",
    "Severity",
    "ShapeRange",
    "Share",
    "SignChange",
    "TensorError",
    "Tolerance",
    "TracedIn",
    "Typing",
    "Verification",
    "is_fixed",
]

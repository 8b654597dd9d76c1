"""overflow_fixer: find what overflows in FP16 in an ONNX model, keep just that in FP32, prove it.

    from overflow_fixer import FixConfig, fix
    report = fix(FixConfig(model="model.onnx", calib="calib/"))
    report.passed, report.plan.pins, report.artifact.path

The stages are functions of their own, one type in and one out: `load_graph`, `open_calibration`,
`collect_ranges`, `plan_precision`, `emit`, `open_runner`, `verify`. docs/python.md shows them.

ONNX Runtime is told to collect no telemetry, unless ORT_DISABLE_TELEMETRY is set: from 1.32 on it does where it is imported, and
writes to the home folder, or a warning on stderr where it cannot.
"""

import os
from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

__version__ = "0.1.0"

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from overflow_fixer.backends.mixed_onnx.emission import emit, open_runner
    from overflow_fixer.calibration import open_calibration
    from overflow_fixer.config import FixConfig
    from overflow_fixer.errors import FixError
    from overflow_fixer.evidence.integers.integer_samples import find_samples
    from overflow_fixer.graph.model import load_graph
    from overflow_fixer.pipeline import fix
    from overflow_fixer.planning.confidence import judge_confidence
    from overflow_fixer.planning.plan import plan_precision
    from overflow_fixer.ranges import collect_ranges, load_ranges, merge_ranges
    from overflow_fixer.records import (
        Batch,
        CalibrationSet,
        FixReport,
        PlanPolicy,
        PrecisionPlan,
        RangeTable,
        Tolerance,
        Verification,
    )
    from overflow_fixer.reports import load_plan, save_plan
    from overflow_fixer.verification.comparison import open_reference, verify
    from overflow_fixer.verification.filled_outputs import find_fills

__all__ = [
    "Batch",
    "CalibrationSet",
    "FixConfig",
    "FixError",
    "FixReport",
    "PlanPolicy",
    "PrecisionPlan",
    "RangeTable",
    "Tolerance",
    "Verification",
    "__version__",
    "collect_ranges",
    "emit",
    "find_fills",
    "find_samples",
    "fix",
    "judge_confidence",
    "load_graph",
    "load_plan",
    "load_ranges",
    "merge_ranges",
    "open_calibration",
    "open_reference",
    "open_runner",
    "plan_precision",
    "save_plan",
    "verify",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "backends.mixed_onnx": ("emit", "open_runner"),
            "calibration": ("open_calibration",),
            "planning.confidence": ("judge_confidence",),
            "config": ("FixConfig",),
            "errors": ("FixError",),
            "verification.filled_outputs": ("find_fills",),
            "evidence.integers.integer_samples": ("find_samples",),
            "graph.model": ("load_graph",),
            "pipeline": ("fix",),
            "planning.plan": ("plan_precision",),
            "ranges": ("collect_ranges", "load_ranges", "merge_ranges"),
            "records": (
                "Batch",
                "CalibrationSet",
                "FixReport",
                "PlanPolicy",
                "PrecisionPlan",
                "RangeTable",
                "Tolerance",
                "Verification",
            ),
            "reports": ("load_plan", "save_plan"),
            "verification.comparison": ("open_reference", "verify"),
        },
    )

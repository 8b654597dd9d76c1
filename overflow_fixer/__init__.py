"""overflow_fixer: find what overflows in FP16 in an ONNX model, keep just that in FP32, prove it.

    from overflow_fixer import FixConfig, fix
    report = fix(FixConfig(model="model.onnx", calib="calib/"))
    report.passed, report.plan.pins, report.artifact.path

The stages are functions of their own, one type in and one out: `load_graph`, `open_calibration`,
`collect_ranges`, `plan_precision`, `emit`, `open_runner`, `verify`. docs/python.md shows them.
"""

__version__ = "0.1.0"

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import FixError
from overflow_fixer.graph import load_graph
from overflow_fixer.pipeline import fix
from overflow_fixer.planning import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import FixReport, PlanPolicy, PrecisionPlan, RangeTable, Tolerance, Verification
from overflow_fixer.verification import open_reference, verify

__all__ = [
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
    "fix",
    "load_graph",
    "open_calibration",
    "open_reference",
    "open_runner",
    "plan_precision",
    "verify",
]

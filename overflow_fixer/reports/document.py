"""The content of a report, in plain JSON types: what report.json holds and every format shows.

Its shape is report.schema.json, which describes each field and its unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from overflow_fixer.records import (
    Engine,
    FixReport,
    FusedModel,
    Growth,
    Latency,
    Price,
    Range,
    RangeTable,
    Share,
    Tolerance,
)
from overflow_fixer.reports.confidence_wording import say_confidence
from overflow_fixer.reports.numbers_json import JsonNumber, encode_number, encode_record
from overflow_fixer.reports.verdict import judge, select_over, warn_of_random
from overflow_fixer.reports.verification_document import describe_verification
from overflow_fixer.reports.wording import say_values

SCHEMA_VERSION = "3.5"
FIXED_ENGINE = "fixed"
Document: TypeAlias = dict[str, Any]

_MOST_NEAREST = 20


def build_document(report: FixReport) -> Document:
    """The whole report. Looks up the sizes of the report's files on disk, and reads nothing else."""
    verdict = judge(report)
    return {
        "schema_version": SCHEMA_VERSION,
        "synthetic_data_warning": warn_of_random(report),
        "verdict": {"status": verdict.status, "passed": verdict.passed, "sentence": verdict.sentence},
        "warnings": list(report.warnings),
        "model": {"path": str(report.model), "sha256": report.model_sha256},
        "fused": None if report.fused is None else _describe_fused(report.fused),
        "tool_version": report.tool_version,
        "versions": dict(report.versions),
        "backend": _describe_backend(report),
        "engine": None if report.artifact.engine is None else _describe_engine(report.artifact.engine),
        "calibration": _describe_calibration(report.ranges),
        "tolerance": _describe_tolerance(report.tolerance),
        "ranges": _describe_ranges(report),
        "plan": _describe_plan(report),
        "confidence": _describe_confidence(report),
        "kept_in_fp32": [encode_record(kept) for kept in report.artifact.kept],
        "share": _describe_share(report.share),
        "price": None if report.price is None else _describe_price(report.price),
        "verification": {
            "source": report.calibration,
            "synthetic": report.synthetic,
            "naive": describe_verification(report.naive),
            "fixed": describe_verification(report.fixed),
            "fp32_engine": describe_verification(report.fp32_engine),
        },
        "repair_rounds": [encode_record(found) for found in report.rounds],
        "files": [_describe_file(path) for path in report.files],
        "durations_seconds": _encode_all(report.durations_seconds),
    }


def _describe_fused(fused: FusedModel) -> Document:
    return {
        "source": str(fused.source),
        "source_sha256": fused.source_sha256,
        "outputs": list(fused.fused),
        "left": [{"output": output, "reason": reason} for output, reason in fused.left.items()],
        "max_relative_error": encode_number(fused.max_relative_error),
    }


def _describe_backend(report: FixReport) -> Document:
    return {
        "name": report.backend,
        "reason": report.backend_reason,
        "artifact": str(report.artifact.path),
        "fp16_node_count": len(report.artifact.fp16_nodes),
        "fp32_node_count": len(report.artifact.fp32_nodes),
        "cast_count": report.artifact.cast_count,
    }


def _describe_engine(engine: Engine) -> Document:
    major, minor = engine.compute_capability
    return {
        "tensorrt": engine.tensorrt,
        "gpu": engine.gpu,
        "compute_capability": f"{major}.{minor}",
        "typing": engine.typing,
        "constraints": engine.constraints,
        "layers": int(engine.layers),
        "fp32_layers": int(engine.fp32_layers),
        "fp16_layers": int(engine.fp16_layers),
        "reformat_layers": int(engine.reformat_layers),
        "opaque_layers": int(engine.opaque_layers),
        "tf32": engine.tf32,
        "tf32_layers": int(engine.tf32_layers),
        "fp32_layer_share": _divide(engine.fp32_layers, engine.layers),
        "pins": [encode_record(outcome) for outcome in engine.pins],
        "skipped": [encode_record(kept) for kept in engine.skipped],
        "dropped": [encode_record(kept) for kept in engine.dropped],
        "builds": int(engine.builds),
        "build_seconds": encode_number(engine.build_seconds),
        "warnings": list(engine.warnings),
    }


def _describe_calibration(ranges: RangeTable) -> Document:
    return {
        "source": ranges.calibration,
        "synthetic": ranges.synthetic,
        "batch_names": list(ranges.batch_names),
    }


def _describe_tolerance(tolerance: Tolerance) -> Document:
    return {
        "min_snr_db": encode_number(tolerance.min_snr_db),
        "min_agreement": encode_number(tolerance.min_agreement),
        "per_output": [
            {"output": output, "min_snr_db": encode_number(snr)}
            for output, snr in tolerance.per_output.items()
        ],
        "max_abs_error": encode_number(tolerance.max_abs_error),
        "parts": list(tolerance.parts),
        "fills": [
            {"output": output, "values": [encode_number(value) for value in values]}
            for output, values in tolerance.fills.items()
        ],
        "samples": list(tolerance.samples),
    }


def _describe_ranges(report: FixReport) -> Document:
    return {"file": _name_read(report, 0), **describe_observed(report.ranges, report.plan.threshold)}


def describe_observed(ranges: RangeTable, threshold: float) -> Document:
    """What a scan saw, held against a threshold: the part of a report by which its ranges are known again."""
    return {
        "observe": ranges.observe,
        "provider": ranges.provider,
        "values": say_values(ranges.observe, ranges.provider),
        "threshold": encode_number(threshold),
        "tensor_count": len(ranges.ranges),
        "over_threshold": [
            {**_describe_range(found), "batch": ranges.worst_batch_of(found)}
            for found in select_over(ranges, threshold)
        ],
        "not_observed": [
            {"tensor": tensor, "reason": reason} for tensor, reason in ranges.not_observed.items()
        ],
    }


def _describe_range(found: Range) -> Document:
    return {
        "tensor": found.tensor,
        "max_abs": encode_number(found.max_abs),
        "min": encode_number(found.min),
        "max": encode_number(found.max),
        "headroom_bits": encode_number(math.nan if math.isnan(found.max_abs) else found.headroom),
        "element_count": int(found.element_count),
        "nan_count": int(found.nan_count),
        "inf_count": int(found.inf_count),
        "over_fp16_count": int(found.over_fp16_count),
    }


def _describe_plan(report: FixReport) -> Document:
    return {
        "file": _name_read(report, 1),
        "initial_pin_count": int(report.initial_pins),
        "pins": [encode_record(pin) for pin in report.plan.pins],
        "clamps": [encode_record(clamp) for clamp in report.plan.clamps],
        "considered": [encode_record(finding) for finding in report.plan.considered],
        "tf32": report.plan.tf32,
    }


def _describe_confidence(report: FixReport) -> Document:
    found = report.confidence
    return {
        "sentence": say_confidence(found),
        "batch_count": int(found.batch_count),
        "at_risk_count": len(found.at_risk),
        "nearest": [_describe_growth(report, growth) for growth in found.nearest[:_MOST_NEAREST]],
    }


def _describe_growth(report: FixReport, growth: Growth) -> Document:
    return {
        "tensor": growth.tensor,
        "max_abs": encode_number(growth.max_abs),
        "headroom_bits": encode_number(growth.headroom_bits),
        "margin_bits": encode_number(growth.margin_bits),
        "growth_bits": encode_number(growth.growth_bits),
        "is_at_risk": growth in report.confidence.at_risk,
        "batch": report.ranges.batch_names[growth.worst_batch] if growth.worst_batch >= 0 else None,
    }


def _describe_share(share: Share) -> Document:
    return {
        "fp16_nodes": int(share.fp16_nodes),
        "float_nodes": int(share.float_nodes),
        "fp16_node_share": encode_number(share.of_nodes),
        "fp16_flops": int(share.fp16_flops),
        "flops": int(share.flops),
        "fp16_flops_share": encode_number(share.of_flops),
        "unknown_flops_nodes": int(share.unknown_flops_nodes),
    }


def _describe_price(price: Price) -> Document:
    fixed = next((found.p50_ms for found in price.latencies if found.name == FIXED_ENGINE), math.nan)
    return {
        "batch": price.batch,
        "latencies": [_describe_latency(found, fixed) for found in price.latencies],
        "fp32_time_share": encode_number(price.fp32_time_share),
        "opaque_time_share": encode_number(price.opaque_time_share),
        "remarks": list(price.remarks),
    }


def _describe_latency(found: Latency, fixed_ms: float) -> Document:
    return {
        "name": found.name,
        "p50_ms": encode_number(found.p50_ms),
        "p95_ms": encode_number(found.p95_ms),
        "runs": int(found.runs),
        "p50_ratio": _divide(found.p50_ms, fixed_ms),
    }


def _divide(part: float, whole: float) -> JsonNumber:
    return encode_number(part / whole if whole else math.nan)


def _describe_file(path: Path) -> Document:
    try:
        size: int | None = path.stat().st_size
    except OSError:
        size = None
    return {"path": str(path), "size_bytes": size}


def _name_read(report: FixReport, place: int) -> str | None:
    """Of the ranges (0) or the plan (1), which FixReport.files begin with behind a fused model, whatever these were named."""
    fused = () if report.fused is None else report.fused.files
    read = [str(path) for path in report.files if path not in fused]
    return read[place] if place < len(read) else None


def _encode_all(numbers: Mapping[str, float]) -> dict[str, JsonNumber]:
    return {name: encode_number(value) for name, value in numbers.items()}

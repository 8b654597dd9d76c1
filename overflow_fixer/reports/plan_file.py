"""plan.json: a precision plan on disk, to be read, edited and built from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overflow_fixer import __version__
from overflow_fixer.annotations import held_to_types
from overflow_fixer.errors import PlanError
from overflow_fixer.files import write_text
from overflow_fixer.records import Clamp, Finding, Pin, PrecisionPlan
from overflow_fixer.reports.numbers_json import (
    decode_number,
    dump_json,
    encode_number,
    encode_record,
    parse_json,
)
from overflow_fixer.reports.schemas import read_checked

PLAN_SCHEMA = "plan.schema.json"
PLAN_SCHEMA_VERSION = "1.2"


@held_to_types
def save_plan(plan: PrecisionPlan, path: Path | str) -> None:
    """Write `plan`, whole or not at all. Raises OutputError where `path` cannot be written."""
    document = {
        "schema_version": PLAN_SCHEMA_VERSION,
        "tool_version": __version__,
        "model_sha256": plan.model_sha256,
        "threshold": encode_number(plan.threshold),
        "pins": [encode_record(pin) for pin in plan.pins],
        "clamps": [encode_record(clamp) for clamp in plan.clamps],
        "considered": [encode_record(finding) for finding in plan.considered],
        "tf32": plan.tf32,
    }
    write_text(Path(path), dump_json(document))


@held_to_types
def load_plan(path: Path | str) -> PrecisionPlan:
    """The plan that `save_plan` wrote, every float exact, NaN and infinities included.

    Raises PlanError, which names the entry, for a file that is not such a plan. Whether the plan
    fits a model is not asked here.
    """
    advice = (
        "Expected a plan as fix-fp16 plan writes it, by plan.schema.json. Write it with fix-fp16 plan, or, "
        "if it was edited by hand, mend that entry."
    )
    absent = (
        "Expected the plan that fix-fp16 plan writes to plan.json in the folder of --out. Run that first, or name a plan that "
        "lies elsewhere with --plan, to fix-fp16 build and to fix-fp16 verify alike."
    )
    return _read_plan(read_checked(Path(path), PLAN_SCHEMA, advice, absent, PlanError))


def find_earlier_plan(path: Path, model_sha256: str) -> PrecisionPlan | None:
    """The plan of this model that is at `path` already, to compare another with; None for anything else there.

    Nothing is built of it, so it is not held against the schema, which takes longer than to plan.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
        is_known = document["schema_version"] == PLAN_SCHEMA_VERSION
        return _read_plan(document) if is_known and document["model_sha256"] == model_sha256 else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def read_reported(document: dict[str, Any]) -> PrecisionPlan:
    """The plan that a report's document tells of."""
    ranges, model = document["ranges"], document["model"]
    return _read_plan({**document["plan"], "threshold": ranges["threshold"], "model_sha256": model["sha256"]})


def _read_plan(document: dict[str, Any]) -> PrecisionPlan:
    return PrecisionPlan(
        model_sha256=document["model_sha256"],
        threshold=decode_number(document["threshold"]),
        pins=tuple(_read_pin(entry) for entry in document["pins"]),
        clamps=tuple(_read_clamp(entry) for entry in document["clamps"]),
        considered=tuple(_read_finding(entry) for entry in document["considered"]),
        tf32=document["tf32"],
    )


def _read_pin(entry: dict[str, Any]) -> Pin:
    findings = tuple(_read_finding(finding) for finding in entry["findings"])
    return Pin(entry["node"], entry["op_type"], tuple(entry["outputs"]), findings)


def _read_clamp(entry: dict[str, Any]) -> Clamp:
    return Clamp(entry["tensor"], decode_number(entry["magnitude"]), entry["reason"], tuple(entry["covers"]))


def _read_finding(entry: dict[str, Any]) -> Finding:
    numbers = {name: decode_number(entry[name]) for name in ("value", "limit")}
    return Finding(**{**entry, **numbers})

"""report.json: the report for programs."""

from __future__ import annotations

from pathlib import Path

from overflow_fixer.errors import ConfigError, PlanError
from overflow_fixer.records import FixReport
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.numbers_json import dump_json
from overflow_fixer.reports.schemas import read_checked
from overflow_fixer.reports.verdict import NOT_VERIFIED

REPORT_SCHEMA = "report.schema.json"


def render_json(report: FixReport) -> str:
    """JSON text that obeys report.schema.json; NaN and infinities as strings."""
    return dump_json(build_document(report))


def load_document(path: Path) -> Document:
    """The document in a report.json, as `build_document` made it.

    Raises ConfigError for another file, PlanError for one whose verdict is not that of the outputs in it.
    """
    advice = (
        "Expected a report.json as fix-fp16 writes it. Name that file, or run fix-fp16 on the model again."
    )
    absent = (
        "Expected the report that fix-fp16 MODEL and fix-fp16 verify write to report.json in the folder of --out. Name that "
        "folder, or run one of these first."
    )
    document: Document = read_checked(path, REPORT_SCHEMA, advice, absent, ConfigError)
    contradiction = _find_contradiction(document)
    if contradiction is not None:
        raise PlanError(f"{path} contradicts itself, and was edited or damaged: {contradiction}. {advice}")
    return document


def _find_contradiction(document: Document) -> str | None:
    """Where the document says in one place that the artifact passes, and in another that it does not; None for nowhere."""
    verdict, fixed = document["verdict"], document["verification"]["fixed"]
    outputs = fixed["outputs"]
    has_compared = fixed["batch_count"] > 0 and any(found["error"]["element_count"] for found in outputs)
    said = {
        "by its outputs": has_compared and all(found["passed"] for found in outputs),
        "by verification.fixed.passed": fixed["passed"],
        "by verdict.passed": verdict["passed"],
        "by verdict.status": verdict["status"] != "not_verified",
        "by verdict.sentence": not verdict["sentence"].startswith(NOT_VERIFIED),
    }
    passing, failing = ([place for place, passed in said.items() if passed is side] for side in (True, False))
    if not passing or not failing:
        return None
    return f"it passes {', '.join(passing)}, and does not {', '.join(failing)}"

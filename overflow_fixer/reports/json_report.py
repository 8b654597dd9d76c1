"""report.json: the report for programs."""

from __future__ import annotations

from pathlib import Path

from overflow_fixer.errors import ConfigError
from overflow_fixer.records import FixReport
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.numbers_json import dump_json
from overflow_fixer.reports.schemas import read_checked

REPORT_SCHEMA = "report.schema.json"


def render_json(report: FixReport) -> str:
    """JSON text that obeys report.schema.json; NaN and infinities as strings."""
    return dump_json(build_document(report))


def load_document(path: Path) -> Document:
    """The document in a report.json, as `build_document` made it. Raises ConfigError for another file."""
    advice = (
        "Expected a report.json as fix-fp16 writes it. Name that file, or run fix-fp16 on the model again."
    )
    document: Document = read_checked(path, REPORT_SCHEMA, advice, ConfigError)
    return document

"""A report in every format, and the files that are written of it. A newcomer adds a module and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from overflow_fixer.files import write_text
from overflow_fixer.records import FixReport
from overflow_fixer.reports.html_report import render_html
from overflow_fixer.reports.json_report import render_json
from overflow_fixer.reports.terminal import render_text

RENDERERS: dict[str, Callable[[FixReport], str]] = {
    "json": render_json,
    "html": render_html,
    "text": render_text,
}

_FILES = {"json": "report.json", "html": "report.html"}


def write_reports(report: FixReport, folder: Path) -> tuple[Path, ...]:
    """Write report.json and report.html to `folder`, each whole or not at all; return their paths.

    They list `report.files` but not themselves, whose sizes they cannot know. Raises OutputError
    where the folder cannot be written.
    """
    targets = {kind: folder / name for kind, name in _FILES.items()}
    others = replace(report, files=tuple(path for path in report.files if path not in targets.values()))
    for kind, path in targets.items():
        write_text(path, RENDERERS[kind](others))
    return tuple(targets.values())

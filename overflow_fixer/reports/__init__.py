"""What the main job learned, told: FixReport in, text and files out. A format is one module here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from overflow_fixer.files import write_text
from overflow_fixer.records import FixReport
from overflow_fixer.reports.confidence_wording import say_confidence
from overflow_fixer.reports.html_report import fill_template, render_html
from overflow_fixer.reports.json_report import load_document, render_json
from overflow_fixer.reports.plan_file import load_plan, save_plan
from overflow_fixer.reports.terminal import closing_table, lay_out, print_document, render_text

__all__ = [
    "RENDERERS",
    "closing_table",
    "fill_template",
    "lay_out",
    "load_document",
    "load_plan",
    "print_document",
    "render_html",
    "render_json",
    "render_text",
    "save_plan",
    "say_confidence",
    "write_reports",
]

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

"""What the main job learned, told: FixReport in, text and files out. `renderers` has the table of formats."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.reports.confidence_wording import say_confidence
    from overflow_fixer.reports.html_report import fill_template, render_html
    from overflow_fixer.reports.json_report import load_document, render_json
    from overflow_fixer.reports.plan_file import find_earlier_plan, load_plan, save_plan
    from overflow_fixer.reports.renderers import RENDERERS, write_reports
    from overflow_fixer.reports.terminal import closing_table, lay_out, print_document, render_text

__all__ = [
    "RENDERERS",
    "closing_table",
    "fill_template",
    "find_earlier_plan",
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "confidence_wording": ("say_confidence",),
            "html_report": ("fill_template", "render_html"),
            "json_report": ("load_document", "render_json"),
            "plan_file": ("find_earlier_plan", "load_plan", "save_plan"),
            "renderers": ("RENDERERS", "write_reports"),
            "terminal": ("closing_table", "lay_out", "print_document", "render_text"),
        },
    )

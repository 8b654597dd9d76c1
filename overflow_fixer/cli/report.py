"""`fix-fp16 report`: report.json told again, on the terminal and as HTML."""

from __future__ import annotations

from pathlib import Path

import click

from overflow_fixer.cli.console import open_console
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED
from overflow_fixer.files import write_text
from overflow_fixer.reports import fill_template, lay_out, load_document


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def report_command(folder: Path, quiet: bool, debug: bool) -> int:
    """Tell FOLDER/report.json again: the closing table, and FOLDER/report.html made anew."""
    document = load_document(folder / "report.json")
    write_text(folder / "report.html", fill_template(document))
    if not quiet:
        open_console().print(lay_out(document))
    return EXIT_FIXED if document["verdict"]["passed"] else EXIT_NOT_VERIFIED

"""`fix-fp16 report`: report.json told again, on the terminal and as HTML."""

from __future__ import annotations

import os
from pathlib import Path

import click

from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.tables import show
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED, OutputError
from overflow_fixer.files import write_text
from overflow_fixer.reports import fill_template, lay_out, load_document
from overflow_fixer.reports.staleness import find_stale, is_at_home


@click.command("report", cls=TellsHelp)
@click.argument("path", type=NamedPath(), metavar="FOLDER")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def report_command(path: Path, quiet: bool, debug: bool) -> int:
    """Tell FOLDER/report.json, or a file of its kind, again: the closing table, and report.html beside it made anew, where
    that can be written. A report.json that was copied elsewhere alone, or has another name, is told as it stands if
    that file itself is named; where its FOLDER is, what was built is missing there.

    Exit code: 0 fixed and verified, 1 not verified, 5 or 6 where FOLDER holds another plan than the one verified, other
    ranges, or other than what was built from it; 5 too for a report that contradicts itself. What was built is known by its
    size and the plan that it is stamped with: its weights are not read, which verify alone does.
    """
    is_file = path.suffix == ".json" and os.path.isfile(path)
    file = path if is_file else path / "report.json"
    document = load_document(file)
    stale = find_stale(document, file.parent) if not is_file or is_at_home(document, file) else None
    if stale is not None:
        document["warnings"] = [str(stale), *document["warnings"]]
    _write_page(file.with_suffix(".html"), fill_template(document))
    if not quiet:
        show(lay_out(document))
    elif stale is not None:
        click.echo(f"fix-fp16: {stale}", err=True)
    if stale is not None:
        return stale.exit_code
    return EXIT_FIXED if document["verdict"]["passed"] else EXIT_NOT_VERIFIED


def _write_page(path: Path, page: str) -> None:
    """What cannot be written is said on stderr: the report is told all the same."""
    try:
        write_text(path, page)
    except OutputError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__
        click.echo(
            f"fix-fp16: {path} was not written: {reason}. Expected a folder that can be written to, with room left on its disk. "
            "The report is told all the same; for the page copy the folder to where there is one.",
            err=True,
        )

"""`fix-fp16 MODEL --calib PATH`: the main job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from overflow_fixer.cli import options
from overflow_fixer.cli.console import show_progress
from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.results import say
from overflow_fixer.cli.tables import show
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED
from overflow_fixer.pipeline import fix
from overflow_fixer.ranges import Existing
from overflow_fixer.records import FixReport
from overflow_fixer.reports import closing_table, render_json

_NO_SCAN = "ranges that are named are taken as they are, and nothing is scanned. Take one of them out."


@click.command("fix", cls=TellsHelp)
@options.model_argument
@click.option("--fresh", is_flag=True, help="Start over, whatever OUT/ranges.h5 holds.")
@click.option(
    "--ranges", type=NamedPath(), metavar="RANGES", help="Plan from these, of a scan or a merge: no scan."
)
@click.option(
    "--refuse-layernorm",
    is_flag=True,
    default=None,
    help="Make LayerNorms that are written out LayerNormalization nodes first.",
)
@options.calibration_options
@options.scan_options
@options.plan_options
@options.build_options
@options.compare_option
@options.export_options
@options.verify_options
@options.repair_options
@options.common_options
@options.verbose_option
def fix_command(
    fresh: bool,
    ranges: Path | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    debug: bool,
    **flags: Any,
) -> int:
    """Scan, plan, build, verify and repair MODEL: the main job.

    With --ranges nothing is scanned: the plan is made of those ranges, and verified on the data that --calib names.

    Exit code: 0 fixed and verified, 1 built but verification failed, 2 usage or config, 3 model,
    4 calibration data, 5 plan, 6 backend, 70 a fault of fix-fp16 itself, 130 stopped.
    """
    if ranges is not None:
        of_scans = {
            "fresh": fresh or None,
            "observe or --fast": flags["observe"],
            "provider": flags["provider"],
        }
        options.refuse_beside("--ranges", of_scans, _NO_SCAN)
    config = options.settings(**flags)
    existing: Existing = "overwrite" if fresh else "renew"
    with show_progress(quiet or as_json) as progress:
        report = fix(config, progress, over=progress.over, existing=existing, ranges_path=ranges)
    if as_json:
        say(render_json(report))
    elif not quiet:
        show(closing_table(report), *_tell(report, verbose))
    return EXIT_FIXED if report.passed else EXIT_NOT_VERIFIED


def _tell(report: FixReport, verbose: bool) -> Iterator[RenderableType]:
    """What the table does not say."""
    yield f"Backend: {report.backend} ({report.backend_reason})"
    if not verbose:
        return
    for stage, seconds in report.durations_seconds.items():
        yield f"{stage}: {seconds:.2f} s"
    for pin in report.plan.pins:
        yield f"FP32 {pin.node} ({pin.op_type})"
        for finding in pin.findings:
            yield f"     {finding.rule}: {finding.reason}"
    for kept in report.artifact.kept:
        yield f"kept in FP32 {kept.node} ({kept.op_type}): {kept.reason}"

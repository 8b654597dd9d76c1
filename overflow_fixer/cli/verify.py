"""`fix-fp16 verify`: what was built, or another tool's typed model, against FP32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from overflow_fixer.cli import options
from overflow_fixer.cli.console import show_progress
from overflow_fixer.cli.fused_models import name_fused
from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.results import say
from overflow_fixer.cli.tables import show
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import verify_built
from overflow_fixer.progress import Progress
from overflow_fixer.records import OutputVerdict, Verification
from overflow_fixer.reports import closing_table, render_json
from overflow_fixer.reports.caveats import say_left_out
from overflow_fixer.reports.unseen import say_unseen
from overflow_fixer.reports.wording import say_batches
from overflow_fixer.trials.bench import make_tolerance
from overflow_fixer.trials.foreign import verify_foreign

_OF_BUILDS = {
    "ranges": "ranges",
    "plan": "plan",
    "backend": "backend",
    "io-types": "io_types",
    "typing": "typing",
    "profile": "profile",
    "workspace-gib": "workspace_gib",
    "optimization-level": "optimization_level",
    "tactic-source": "tactic_sources",
    "timing-cache": "timing_cache",
    "compare": "compare",
}
"""The flags that count for what is built here, with the names of their values."""
_HAS_NO_PLAN = "an artifact is built already and has no plan, its name tells its backend, and it is compared with FP32 alone."


@click.command("verify", cls=TellsHelp)
@options.model_argument
@click.option(
    "--artifact",
    type=NamedPath(),
    help="Another tool's typed model or engine, without a plan.",
)
@click.option("--ranges", type=NamedPath(), help="Ranges of a scan [OUT/ranges.h5].")
@click.option("--plan", "plan_path", type=NamedPath(), help="The plan that was built [OUT/plan.json].")
@options.calibration_options
@options.build_options
@options.compare_option
@options.verify_options
@options.common_options
def verify_command(
    artifact: Path | None,
    ranges: Path | None,
    plan_path: Path | None,
    quiet: bool,
    as_json: bool,
    debug: bool,
    **flags: Any,
) -> int:
    """Compare what was built from MODEL with FP32 on the calibration data, as FP16 hardware would run it.

    Takes the model in OUT, and ranges.h5 and plan.json there unless others are named, and writes report.json and
    report.html there. With --artifact, only compares that file and writes nothing.
    """
    if artifact is not None:
        given = {"ranges": ranges, "plan": plan_path, **flags}
        options.refuse_beside(
            "--artifact", {flag: given[name] for flag, name in _OF_BUILDS.items()}, _HAS_NO_PLAN
        )
    config = options.settings(**flags)
    with name_fused(config, quiet), show_progress(quiet or as_json) as progress:
        if artifact is not None:
            found, warnings = _verify_foreign(config, artifact, progress)
        else:
            report = verify_built(config, progress, ranges, plan_path)
            found = report.fixed
    if artifact is not None:
        _print(found, warnings, quiet, as_json)
    elif as_json:
        say(render_json(report))
    elif not quiet:
        show(closing_table(report))
    return EXIT_FIXED if found.passed else EXIT_NOT_VERIFIED


def _verify_foreign(
    config: FixConfig, artifact: Path, progress: Progress
) -> tuple[Verification, tuple[str, ...]]:
    """What was found of it, and what to know of that."""
    graph = load_graph(config.model)
    found, remarks = verify_foreign(config, graph, artifact, progress)
    unseen = say_unseen(found, graph, make_tolerance(config, graph))
    return found, (*remarks, *say_left_out(found, config.verify.jitter), *unseen)


def _print(found: Verification, warnings: Sequence[str], quiet: bool, as_json: bool) -> None:
    if as_json:
        rows = [_row(verdict) for verdict in found.outputs]
        counts = {"batches": found.batch_count, "changed": found.changed_count}
        say(options.to_json(passed=found.passed, **counts, warnings=list(warnings), outputs=rows))
    elif not quiet:
        for verdict in found.outputs:
            mark = "WRONG" if not verdict.passed else "ok" if verdict.error.element_count else "EMPTY"
            say(
                f"{mark:5} {verdict.error.name}: {verdict.reason} (max error {verdict.error.max_abs_error:.6g})"
            )
        say(f"Compared with FP32 on {say_batches(found.batch_count, found.changed_count)}.")
        for warning in warnings:
            say(f"Warning: {warning}")


def _row(verdict: OutputVerdict) -> dict[str, object]:
    return {"passed": verdict.passed, "reason": verdict.reason, **vars(verdict.error)}

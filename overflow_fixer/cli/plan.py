"""`fix-fp16 plan`: ranges.h5 to plan.json, without running the model again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from overflow_fixer.backends import choose_backend, find_protected
from overflow_fixer.cli import options
from overflow_fixer.cli.fused_models import name_fused
from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.results import say
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.config import read_config_file
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.foreign_operators import count_foreign
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.locks import claim_folder
from overflow_fixer.model_file.malformed import refuse_malformed
from overflow_fixer.planning.confidence import judge_confidence
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.planning.plan_changes import compare_plans, say_change
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges import load_ranges
from overflow_fixer.ranges.store import load_header
from overflow_fixer.records import PlanPolicy, PrecisionPlan, RangeTable
from overflow_fixer.reports import find_earlier_plan, save_plan, say_confidence
from overflow_fixer.reports.caveats import say_unclamped
from overflow_fixer.reports.wording import say_foreign, say_unobserved
from overflow_fixer.trials.results import check_results


@click.command("plan", cls=TellsHelp)
@options.model_argument
@click.option("--ranges", type=NamedPath(), metavar="RANGES", help="Ranges of a scan [OUT/ranges.h5].")
@options.plan_options
@options.common_options
@options.verbose_option
def plan_command(
    ranges: Path | None, quiet: bool, verbose: bool, as_json: bool, debug: bool, **flags: Any
) -> None:
    """Decide from MODEL's recorded ranges which nodes stay in FP32, and write OUT/plan.json.

    Nothing is run: another --threshold is tried in no time. Says what changed against the plan that is there (or beside
    RANGES), and whether more calibration data would change it. With RANGES, MODEL may be left out: it is then the one that was
    scanned, and OUT the folder of RANGES.
    """
    if ranges is not None and not _names_model(flags):
        flags.update(_read_places(ranges, flags["out"]))
    config = options.settings(calib="random", **flags)
    graph = load_graph(config.model)
    check_results(config, graph)
    backend, _ = choose_backend(config.build.backend)
    policy = config.plan.policy(find_protected(backend, config.build.typing))
    path = config.folder / "plan.json"
    ranges = ranges or config.folder / "ranges.h5"
    with claim_folder(config.folder):
        table = load_ranges(ranges)
        with name_fused(config, quiet), refuse_malformed(config.model):
            plan = plan_precision(graph, table, policy)
        places = (path, ranges.with_name("plan.json"))
        before = next(filter(None, (find_earlier_plan(one, plan.model_sha256) for one in places)), None)
        save_plan(plan, path)
    if as_json:
        say(path.read_text(encoding="utf-8"))
    elif not quiet:
        _print(plan, before, path, len(graph.nodes), verbose)
        for line in _say_more(graph, table, plan, policy):
            say(line)


def _print(plan: PrecisionPlan, before: PrecisionPlan | None, path: Path, count: int, verbose: bool) -> None:
    """The plan of a graph of so many nodes, and what changed against the one before."""
    say(
        f"{path}: {len(plan.pins)} of {say_plural(count, 'node')} pinned, "
        f"{say_plural(len(plan.clamps), 'constant')} clamped"
    )
    for pin in plan.pins if verbose else ():
        say(f"{pin.node} ({pin.op_type}): {'; '.join(finding.reason for finding in pin.findings)}")
    for line in say_change(compare_plans(before, plan)) if before is not None else ():
        say(line)


def _say_more(graph: Graph, table: RangeTable, plan: PrecisionPlan, policy: PlanPolicy) -> Iterator[str]:
    """What the plan does not tell of, and how sure it is."""
    foreign = count_foreign(graph)
    if foreign:
        yield say_foreign(foreign)
    yield from say_unclamped(graph, table, plan, policy)
    yield from say_unobserved(table.not_observed)
    yield say_confidence(judge_confidence(graph, table, plan, policy))


def _names_model(flags: Mapping[str, Any]) -> bool:
    """Whether MODEL is given, or named by the config file."""
    config = flags["config"]
    return flags["model"] is not None or (config is not None and "model" in read_config_file(config))


def _read_places(ranges: Path, out: Path | None) -> dict[str, Path]:
    """The model that the ranges are of, and where its plan goes. Raises PlanError where it is not there any more."""
    model = Path(load_header(ranges).model_path)
    if not os.path.isfile(model):
        found = f"are of {model}, which is not there" if model.name else "do not say of which file they are"
        raise PlanError(
            f"No model was named, and the ranges in {ranges} {found}. Expected the model that was scanned. Name it: fix-fp16 plan "
            f"MODEL --ranges {ranges}."
        )
    return {"model": model, "out": out or ranges.parent}

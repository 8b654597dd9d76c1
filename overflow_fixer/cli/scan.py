"""`fix-fp16 scan`: the ranges of every tensor, into ranges.h5; or those of several scans, merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from overflow_fixer.calibration import open_calibration, say_unheeded
from overflow_fixer.cli import options
from overflow_fixer.cli.console import show_progress
from overflow_fixer.cli.fused_models import name_fused
from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.results import say
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.config import check_folders
from overflow_fixer.graph.model import load_graph
from overflow_fixer.locks import claim_folder
from overflow_fixer.pipeline import scan
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges import Existing, merge_ranges
from overflow_fixer.records import RangeTable
from overflow_fixer.trials.results import check_results

_OF_MERGE = frozenset({"out"})
_FILES = NamedPath()


@click.command("scan", cls=TellsHelp)
@click.argument("paths", type=_FILES, nargs=-1, metavar="MODEL | --merge RANGES RANGES...")
@click.option("--merge", is_flag=True, help="Join finished scans of parts of the data into OUT/ranges.h5.")
@click.option("--fresh", is_flag=True, help="Start over, whatever OUT/ranges.h5 holds.")
@options.calibration_options
@options.scan_options
@options.common_options
def scan_command(
    paths: tuple[Path, ...],
    merge: bool,
    fresh: bool,
    quiet: bool,
    as_json: bool,
    debug: bool,
    **flags: Any,
) -> None:
    """Run MODEL on the calibration data and record every float tensor's range in OUT/ranges.h5.

    A scan that was stopped goes on after its last batch. With --merge, the ranges files of scans of
    parts of the data become one, in the order given: docs/scan.md.
    """
    existing: Existing = "overwrite" if fresh else "keep"
    warnings: list[str] = []
    if merge:
        path = _check_merge(paths, flags)
        with claim_folder(path.parent):
            ranges = merge_ranges(paths, path, existing=existing)
    else:
        ranges, path, warnings = _scan(_check_one(paths), flags, existing, quiet or as_json)
    if as_json:
        say(_to_json(ranges, path, warnings))
    elif not quiet:
        for warning in warnings:
            click.echo(warning, err=True)
        say(_say(ranges, path))


def _scan(
    model: Path | None, flags: dict[str, Any], existing: Existing, quiet: bool
) -> tuple[RangeTable, Path, list[str]]:
    """The ranges, where they are, and what is to be said of how they came about."""
    config = options.settings(model=model, **flags)
    check_folders(config.folder, config.calib)
    graph = load_graph(config.model)
    check_results(config, graph)
    calibration = open_calibration(config.calib, graph.inputs, config.calibration)
    with name_fused(config, quiet), claim_folder(config.folder), show_progress(quiet) as progress:
        ranges = scan(config, graph, calibration, progress, progress.over, existing)
    warnings = [ranges.provider_lack] if ranges.provider_lack is not None else []
    warnings += say_unheeded(config.calibration, config.calib, calibration)
    return ranges, config.folder / "ranges.h5", warnings


def _check_one(paths: tuple[Path, ...]) -> Path | None:
    """None where the config file is to name it."""
    if len(paths) > 1:
        raise click.UsageError(
            f"{len(paths)} models were named, {paths[0]} first. Expected one, or --merge before ranges files."
        )
    return paths[0] if paths else None


def _check_merge(paths: Sequence[Path], flags: dict[str, Any]) -> Path:
    """The file that a merge writes. Nothing else of a scan applies to it."""
    given = [name for name, value in flags.items() if value not in (None, ()) and name not in _OF_MERGE]
    if not paths:
        raise click.UsageError(
            "--merge was given without a file. Expected the ranges files of two scans or more."
        )
    if given or flags["out"] is None:
        found = f"--{given[0].replace('_', '-')}" if given else "no --out"
        raise click.UsageError(
            f"--merge was given with {found}. Expected ranges files and --out DIR alone: the data and the settings are "
            "those of the scans."
        )
    return Path(flags["out"]) / "ranges.h5"


def _to_json(ranges: RangeTable, path: Path, warnings: Sequence[str]) -> str:
    return options.to_json(
        path=path,
        tensors=len(ranges.ranges),
        batches=len(ranges.batch_names),
        over_fp16=_overflowing(ranges),
        nan=_with_nan(ranges),
        observe=ranges.observe,
        provider=ranges.provider,
        provider_lack=ranges.provider_lack,
        warnings=list(warnings),
    )


def _say(ranges: RangeTable, path: Path) -> str:
    over, with_nan = _overflowing(ranges), _with_nan(ranges)
    batches = say_plural(len(ranges.batch_names), "batch", "batches")
    said = f"{path}: {say_plural(len(ranges.ranges), 'tensor')} over {batches}"
    if over:
        worst = min((ranges.by_tensor[name] for name in over), key=lambda found: found.headroom)
        said += f"; {say_plural(len(over), 'overflows', 'overflow')} in FP16, the worst {worst.tensor} (max |x| {worst.max_abs:.6g})"
    else:
        said += "; none overflows in FP16"
    return (
        f"{said}; {say_plural(len(with_nan), 'holds', 'hold')} NaN, the first {with_nan[0]}"
        if with_nan
        else said
    )


def _overflowing(ranges: RangeTable) -> list[str]:
    return [found.tensor for found in ranges.ranges if found.over_fp16_count]


def _with_nan(ranges: RangeTable) -> list[str]:
    return [found.tensor for found in ranges.ranges if found.nan_count]

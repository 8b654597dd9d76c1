"""`fix-fp16 scan`: the ranges of every tensor, into ranges.h5."""

from __future__ import annotations

from typing import Any

import click

from overflow_fixer.calibration import open_calibration
from overflow_fixer.cli import options
from overflow_fixer.cli.console import show_progress
from overflow_fixer.files import make_folder
from overflow_fixer.graph import load_graph
from overflow_fixer.pipeline import scan
from overflow_fixer.records import RangeTable


@click.command("scan")
@options.model_argument
@options.calibration_options
@options.common_options
def scan_command(quiet: bool, verbose: bool, as_json: bool, debug: bool, **flags: Any) -> None:
    """Run MODEL on the calibration data and record every float tensor's range in OUT/ranges.h5."""
    config = options.settings(**flags)
    graph = load_graph(config.model)
    calibration = open_calibration(config.calib, graph.inputs, config.calibration)
    make_folder(config.folder)
    with show_progress(quiet or as_json) as progress:
        ranges = scan(config, graph, calibration, progress)
    path = config.folder / "ranges.h5"
    over = [r.tensor for r in ranges.ranges if r.over_fp16_count or r.nan_count]
    if as_json:
        click.echo(
            options.to_json(
                path=path, tensors=len(ranges.ranges), batches=len(ranges.batch_names), over_fp16=over
            )
        )
    elif not quiet:
        click.echo(
            f"{path}: {len(ranges.ranges)} tensors over {len(ranges.batch_names)} batches; {_say_over(ranges, over)}"
        )


def _say_over(ranges: RangeTable, over: list[str]) -> str:
    if not over:
        return "none overflows in FP16"
    worst = min((ranges.by_tensor[name] for name in over), key=lambda found: found.headroom)
    return f"{len(over)} overflow in FP16, the worst {worst.tensor} (max |x| {worst.max_abs:.6g})"

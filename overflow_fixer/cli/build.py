"""`fix-fp16 build`: plan.json to an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from overflow_fixer.backends import BACKENDS, choose_backend
from overflow_fixer.cli import options
from overflow_fixer.files import make_folder
from overflow_fixer.graph import load_graph
from overflow_fixer.planning import check_plan
from overflow_fixer.reports import load_plan


@click.command("build")
@options.model_argument
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="A plan [OUT/plan.json].")
@options.build_options
@options.common_options
def build_command(
    plan_path: Path | None, quiet: bool, verbose: bool, as_json: bool, debug: bool, **flags: Any
) -> None:
    """Build MODEL with the nodes of a plan in FP32. Nothing is verified: see `fix-fp16 verify`."""
    config = options.settings(calib="random", **flags)
    name, reason = choose_backend(config.build.backend)
    graph = load_graph(config.model)
    plan = load_plan(plan_path or config.folder / "plan.json")
    check_plan(graph, plan)
    make_folder(config.folder)
    path = config.folder / f"{config.model.stem}{BACKENDS[name].suffix}"
    artifact = BACKENDS[name].emit(graph, plan, path, io_types=config.build.io_types)
    counts = {"fp16_nodes": len(artifact.fp16_nodes), "fp32_nodes": len(artifact.fp32_nodes)}
    if as_json:
        click.echo(
            options.to_json(
                path=artifact.path, backend=name, reason=reason, casts=artifact.cast_count, **counts
            )
        )
    elif not quiet:
        click.echo(
            f"{artifact.path}: {counts['fp16_nodes']} float nodes in FP16, {counts['fp32_nodes']} in FP32, "
            f"{artifact.cast_count} casts inserted. Backend {name}: {reason}. Not verified yet."
        )

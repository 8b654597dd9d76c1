"""`fix-fp16 build`: plan.json to an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from overflow_fixer.backends import BACKENDS, choose_backend
from overflow_fixer.backends.tensorrt.engine_file import sidecar_of
from overflow_fixer.backends.tensorrt.exports import check_exports, write_exports
from overflow_fixer.backends.tensorrt.exports.export import Export
from overflow_fixer.calibration import open_calibration
from overflow_fixer.cli import options
from overflow_fixer.cli.fused_models import name_fused
from overflow_fixer.cli.named_path import NamedPath, NamedSource
from overflow_fixer.cli.results import say
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.graph.model import load_graph
from overflow_fixer.locks import claim_folder
from overflow_fixer.planning.plan_fit import check_plan
from overflow_fixer.plurals import say_plural
from overflow_fixer.progress import silent
from overflow_fixer.records import Artifact
from overflow_fixer.reports import load_plan
from overflow_fixer.reports.caveats import say_without_effect
from overflow_fixer.trials.bench import make_settings
from overflow_fixer.trials.place import check_place, name_artifact

_MOST_WARNINGS = 5


@click.command("build", cls=TellsHelp)
@options.model_argument
@click.option(
    "--plan",
    "plan_path",
    type=NamedPath(),
    help="A plan [OUT/plan.json]; one that lies elsewhere is named to verify as well.",
)
@click.option("--calib", type=NamedSource(), help="Calibration data, for the shapes an engine is built for.")
@options.build_options
@options.export_options
@options.common_options
def build_command(plan_path: Path | None, quiet: bool, as_json: bool, debug: bool, **flags: Any) -> None:
    """Build MODEL with the nodes of a plan in FP32. Nothing is verified: see `fix-fp16 verify`."""
    has_data = flags["calib"] is not None
    config = options.settings(**{**flags, "calib": flags["calib"] or "random"})
    name, reason = choose_backend(config.build.backend)
    check_exports(config.build.exports, name)
    graph = load_graph(config.model)
    check_place(config, graph, name, () if plan_path is None else (plan_path,))
    with claim_folder(config.folder):
        plan = load_plan(plan_path or config.folder / "plan.json")
        with name_fused(config, quiet):
            check_plan(graph, plan)
        calibration = open_calibration(config.calib, graph.inputs, config.calibration) if has_data else None
        settings = make_settings(config, graph, calibration, BACKENDS[name])
        artifact = BACKENDS[name].emit(graph, plan, name_artifact(config, name), settings, silent)
        exported = write_exports(config.build.exports, Export(graph, plan, artifact, settings, config.folder))
    told = () if artifact.engine is None else artifact.engine.warnings
    warnings = [*say_without_effect(config.build, BACKENDS[name].is_engine), *told]
    if as_json:
        say(_to_json(artifact, reason, exported, warnings))
    elif not quiet:
        _print(artifact, reason, exported, warnings)


def _to_json(artifact: Artifact, reason: str, exported: Sequence[Path], warnings: list[str]) -> str:
    return options.to_json(
        path=artifact.path,
        backend=artifact.backend,
        reason=reason,
        casts=artifact.cast_count,
        exports=list(exported),
        warnings=warnings,
        fp16_nodes=len(artifact.fp16_nodes),
        fp32_nodes=len(artifact.fp32_nodes),
    )


def _print(artifact: Artifact, reason: str, exported: Sequence[Path], warnings: Sequence[str]) -> None:
    is_weak = artifact.engine is not None and artifact.engine.typing == "weak"
    converts = (
        ("layer that only converts", "layers that only convert")
        if is_weak
        else ("cast inserted", "casts inserted")
    )
    say(
        f"{artifact.path}: {say_plural(len(artifact.fp16_nodes), 'float node')} in FP16, {len(artifact.fp32_nodes)} in FP32, "
        f"{say_plural(artifact.cast_count, *converts)}. "
        f"Backend {artifact.backend}: {reason}. Not verified yet."
    )
    for file in exported:
        say(f"{file}: exported.")
    for warning in warnings[:_MOST_WARNINGS]:
        say(f"Warning: {warning}")
    if len(warnings) > _MOST_WARNINGS:
        left = say_plural(len(warnings) - _MOST_WARNINGS, "warning")
        say(f"{left} more: see {sidecar_of(artifact.path)}")

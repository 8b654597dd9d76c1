"""What the verbs of single stages say of --refuse-layernorm, which the main job alone does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from overflow_fixer.config import FixConfig
from overflow_fixer.errors import FixError, PlanError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges.store import load_header


@contextmanager
def name_fused(config: FixConfig, quiet: bool) -> Iterator[None]:
    """Around a stage: say that it fuses nothing where that is asked for.

    Raises the PlanError that the stage raises, with the name of the fused model where the folder is of one.
    """
    fused = _find_fused(config)
    if config.refuse_layernorm and not quiet and not _is_fused(config):
        made = "" if fused is None else f" What it became is {fused}: name that to go on with it."
        click.echo(
            f"refuse_layernorm is of the main job alone: {config.model} is taken as it is.{made}", err=True
        )
    try:
        yield
    except PlanError as error:
        if fused is None or not _is_of_folder(fused, config):
            raise
        raise PlanError(
            f"{error} The files in {config.folder} are of {fused}, which --refuse-layernorm made of a model of that name: name it "
            "in place of MODEL to go on with it."
        ) from error


def _find_fused(config: FixConfig) -> Path | None:
    """What --refuse-layernorm made of a model of that name in the output folder; None where that is the model itself."""
    fused = config.folder / "fused" / config.model.name
    return fused if os.path.isfile(fused) and not _is_same(fused, config.model) else None


def _is_fused(config: FixConfig) -> bool:
    return _is_same(config.folder / "fused" / config.model.name, config.model)


def _is_same(first: Path, second: Path) -> bool:
    return os.path.exists(first) and os.path.exists(second) and first.samefile(second)


def _is_of_folder(fused: Path, config: FixConfig) -> bool:
    """Whether the ranges in the output folder are those of the fused model."""
    try:
        return load_header(config.folder / "ranges.h5").key.model_sha256 == load_graph(fused).sha256
    except FixError:
        return False

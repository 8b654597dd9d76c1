"""Where a run's results go: over nothing that it reads, and over no model or engine that something else made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from overflow_fixer.backends import BACKENDS
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import OutputError
from overflow_fixer.files import name_data, refuse_long_name, refuse_to_replace
from overflow_fixer.graph.model import Graph
from overflow_fixer.trials.results import check_results, list_read

_SHORTER = "name of the model, after which it is called. Rename the model, or link to it by another name"


def check_place(config: FixConfig, graph: Graph, backend: str, named: Iterable[Path] = ()) -> None:
    """Raise OutputError where results would take the place of what is read, or of an artifact that has no stamp of fix-fp16, and where
    their names are too long. `named` are the ranges and the plan that are read from elsewhere than their own places.
    """
    chosen = BACKENDS[backend]
    path = name_artifact(config, backend)
    files = name_built(config, backend)
    for file in files:
        if file not in map(name_data, files):  # which is written in a folder, under its own name
            refuse_long_name(file, _SHORTER)
    refuse_to_replace(list_read(config, graph), files)
    check_results(config, graph, files, named)
    foreign = chosen.find_foreign(path, config.build.settings(config.folder, {}))
    if foreign is not None:
        raise OutputError(
            f"{foreign} is there, and fix-fp16 did not make it. Expected room for what is built from {graph.path.name}, or an earlier one "
            "of fix-fp16's. Name another folder with --out, or move the file. Nothing was written."
        )


def name_built(config: FixConfig, backend: str) -> tuple[Path, ...]:
    """All the files that the backend may build of the model."""
    return tuple(BACKENDS[backend].name_files(name_artifact(config, backend)))


def name_artifact(config: FixConfig, backend: str) -> Path:
    """What the backend builds of the model."""
    return config.folder / f"{config.model.stem}{BACKENDS[backend].suffix}"

"""The files that stages write for each other and for their reader, over nothing that is read."""

from __future__ import annotations

from pathlib import Path

from overflow_fixer.config import FixConfig
from overflow_fixer.files import refuse_to_replace
from overflow_fixer.graph.model import Graph

_RESULTS = ("ranges.h5", "plan.json", "report.json", "report.html", "timing.cache")


def check_results(config: FixConfig, graph: Graph) -> None:
    """Raise OutputError where one of them would take the place of the model, its weights, the data or a library."""
    refuse_to_replace(list_read(config, graph), (config.folder / name for name in _RESULTS))


def list_read(config: FixConfig, graph: Graph) -> tuple[Path, ...]:
    """The files that are read, and the folder of the data where they are in one."""
    return (*graph.files, Path(config.calib), *config.custom_ops, *config.build.plugins)

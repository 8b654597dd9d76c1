"""The files that stages write for each other and for their reader, over nothing that is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from overflow_fixer.config import FixConfig
from overflow_fixer.errors import OutputError
from overflow_fixer.files import find_replaced, refuse_long_name, refuse_to_replace
from overflow_fixer.graph.model import Graph

_TIMINGS = "timing.cache"
_RESULTS = ("ranges.h5", "plan.json", "report.json", "report.html")


def check_results(
    config: FixConfig, graph: Graph, built: Iterable[Path] = (), named: Iterable[Path] = ()
) -> None:
    """Raise OutputError where one of them would take the place of the model, its weights, the data or a library.

    Kernel timings that are kept elsewhere take the place of none of these either, nor of a result, what is `built`, or the ranges
    and the plan that are `named`, wherever they lie.
    """
    read, results = list_read(config, graph), [config.folder / name for name in _RESULTS]
    refuse_to_replace(read, (*results, config.folder / _TIMINGS))
    if config.build.timing_cache is not None:
        _check_timings(config.build.timing_cache, (*read, *named, *results, *built), config.calib)


def _check_timings(cache: Path, others: Iterable[Path], data: Path | str) -> None:
    """Raise OutputError where the cache is one of the others, a folder or read as data, and where its name is too long."""
    if find_replaced(others, [cache]) or os.path.isdir(cache) or _lies_in(cache, data):
        raise OutputError(
            f"The kernel timings would be written to {cache}, which is read here, lies among the calibration data, is "
            "another result or a folder. Expected a file of their own. Name another with --timing-cache. Nothing was written."
        )
    refuse_long_name(cache, "name. Name another with --timing-cache")


def _lies_in(path: Path, data: Path | str) -> bool:
    folder = os.path.realpath(data)
    return data != "random" and os.path.isdir(folder) and Path(os.path.realpath(path)).is_relative_to(folder)


def list_read(config: FixConfig, graph: Graph) -> tuple[Path, ...]:
    """The files that are read, and the folder of the data where they are in one."""
    return (*graph.files, Path(config.calib), *config.custom_ops, *config.build.plugins)

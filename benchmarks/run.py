"""`python -m benchmarks.run`: everything measured, as Markdown on stdout; see README.md."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe_machine, describe_versions
from benchmarks.measure import Measurement
from benchmarks.models import MODELS, SMALL_CONVNET
from benchmarks.page import put_into
from benchmarks.rounds import FEW, Job, JobRuns, Limits, Runs, prepare, run_rounds, select
from benchmarks.scans import ONE_SHOT, SCANS
from benchmarks.tables import (
    DEFAULT,
    EXACT,
    SPLIT,
    UNOPTIMIZED,
    VERIFICATION,
    count_table,
    disturbance,
    scan_table,
    size_table,
    split_table,
    summary_table,
    verification_table,
)

_STAGES = "overflow_fixer stages"
_PEERS = ("AutoCast", "onnxconverter_common")
_ON_ALL = (*SCANS, SPLIT, VERIFICATION)
_ON_FEW = (DEFAULT, EXACT, *ONE_SHOT)
_BY_COUNT = (
    DEFAULT,
    UNOPTIMIZED,
    "overflow_fixer",
    VERIFICATION,
    "ONNX Runtime MinMaxCalibrater",
    "ModelOpt AutoCast's runner",
)


def main() -> None:
    options = _parse()
    began = f"Measured on {datetime.date.today()}: {describe_machine()}. {describe_versions()}."
    setting = (
        f"{options.rounds} rounds of {options.batches} batches; by number of batches and of nodes: "
        f"{options.size_rounds} rounds. Limits of a process: {options.limit:g} s, {options.memory:.1f} GiB."
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tables = list(_measure(options, Path(folder)))
    text = "\n\n".join([f"{began} {setting}", *tables]) + "\n"
    print(text)
    if options.write:
        put_into(options.write, text)


def _measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The tables, one after the other, each with its heading."""
    limits = Limits.of(options)
    yield from _model_tables(options, folder, limits)
    by_count = dict(_measure_counts(options, folder, limits))
    if by_count:
        table = count_table(by_count, _BY_COUNT)
        yield f"### By number of batches, a small convolutional network\n\n{table}"
    by_nodes = dict(_measure_sizes(options, folder, limits))
    if by_nodes:
        table = size_table(by_nodes, _STAGES, _PEERS)
        yield f"### By number of nodes, in seconds\n\n{table}\n\n{disturbance(by_nodes.values())}"


def _model_tables(options: argparse.Namespace, folder: Path, limits: Limits) -> Iterator[str]:
    by_model = dict(_measure_models(options, folder, limits))
    if not by_model:
        return
    scans = {name: select(runs, SCANS) for name, runs in by_model.items()}
    few = {name: select(runs, _tasks_on_few(options), FEW) for name, runs in by_model.items()}
    stages = {name: select(runs, _ON_ALL) for name, runs in by_model.items()}
    yield f"### Scan: all models\n\n{summary_table(scans, few, options.few)}"
    for name in by_model:
        table = scan_table(scans[name], few[name], options.few)
        yield f"### Scan: {name}\n\n{table}\n\n{disturbance([stages[name], few[name]])}"
    yield f"### Scan: where its seconds go\n\n{split_table(stages)}"
    yield f"### Verification\n\n{verification_table(stages)}"


def _measure_models(
    options: argparse.Namespace, folder: Path, limits: Limits
) -> Iterator[tuple[str, JobRuns]]:
    jobs = [*(Job(task) for task in _ON_ALL), *(Job(task, FEW) for task in _tasks_on_few(options))]
    for name in options.models:
        print(f"{name} (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = prepare(name, folder / name, options.batches, options.few, typed=True)
        yield name, run_rounds(model, jobs, options.rounds, limits)
        shutil.rmtree(model.parent)


def _tasks_on_few(options: argparse.Namespace) -> tuple[str, ...]:
    return _ON_FEW if options.few else ()


def _measure_counts(options: argparse.Namespace, folder: Path, limits: Limits) -> Iterator[tuple[int, Runs]]:
    for count in sorted(options.counts):
        print(f"{count} batches (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = prepare(SMALL_CONVNET, folder / f"{count}-batches", count, typed=True)
        jobs = [Job(task) for task in _BY_COUNT]
        yield count, select(run_rounds(model, jobs, options.size_rounds, limits), _BY_COUNT)


def _measure_sizes(options: argparse.Namespace, folder: Path, limits: Limits) -> Iterator[tuple[int, Runs]]:
    """The runs by number of nodes, smallest first. What failed on a smaller graph is not tried again."""
    given_up: Runs = {}
    for nodes in sorted(options.sizes):
        print(f"{nodes} nodes (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = prepare(f"transformer-{nodes}", folder / f"{nodes}-nodes", 1)
        tasks = [task for task in (_STAGES, *_PEERS) if task not in given_up]
        jobs = [Job(task) for task in tasks]
        runs = select(run_rounds(model, jobs, options.size_rounds, limits), tasks) | given_up
        yield nodes, runs
        failed = [task for task in tasks if any(found.failure for found in runs[task])]
        given_up |= {task: [Measurement(failure="not tried")] for task in failed}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--models", type=_names, default=list(MODELS), help=f"of {','.join(MODELS)} [all]; '' for none")
    add("--counts", type=_counts, default=[1, 10, 100, 1000], help="numbers of batches [1,10,100,1000]")
    add("--sizes", type=_counts, default=[1000, 5000, 20000], help="nodes of the graphs [1000,5000,20000]")
    add("--rounds", type=int, default=5, help="rounds of the scans and the verification [5]")
    add("--batches", type=int, default=8, help="batches a scan [8]")
    add("--few", type=int, default=1, help="batches of the one-shot tools, of those [1]; 0 leaves them out")
    add("--size-rounds", type=int, default=1, help="rounds of --counts and of --sizes [1]")
    Limits.add_options(parser)
    add("--folder", type=Path, help="where models are written and removed again [the system's]")
    add("--write", type=Path, help="also put the tables into this page, between its markers")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MODELS)}")
    return names


def _counts(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    main()

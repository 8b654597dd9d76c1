"""`python -m benchmarks.networks`: what a scan costs on networks that nothing was tuned on; see ../README.md."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe_machine, describe_versions
from benchmarks.networks import NETWORKS
from benchmarks.page import put_into
from benchmarks.rounds import Job, Limits, Runs, prepare, run_rounds, select
from benchmarks.tables import UNOPTIMIZED, disturbance, network_table

_TASKS = (UNOPTIMIZED, "overflow_fixer")


def main() -> None:
    options = _parse()
    began = f"Measured on {datetime.date.today()}: {describe_machine()}. {describe_versions()}."
    with tempfile.TemporaryDirectory() as folder:
        by_network = dict(_measure(options, options.folder or Path(folder)))
    setting = f"{options.rounds} rounds of {options.batches} batches. {disturbance(by_network.values())}"
    text = f"{began} {setting}\n\n{network_table(by_network)}\n"
    print(text)
    if options.write:
        put_into(options.write, text)


def _measure(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Runs]]:
    jobs = [Job(task) for task in _TASKS]
    limits = Limits.of(options)
    for name in options.names or NETWORKS:
        print(f"{name} (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = _make(name, folder, options.batches)
        yield name, select(run_rounds(model, jobs, options.rounds, limits), _TASKS)


def _make(name: str, folder: Path, batches: int) -> Path:
    """The model's path; made if it is not there with as many batches."""
    place = folder / "".join(letter if letter.isalnum() else "-" for letter in name)
    if len(list(place.glob("data/*.npz"))) == batches:
        return place / "model.onnx"
    return prepare(name, place, batches)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="networks of the table [all]")
    add("--rounds", type=int, default=5, help="rounds [5]")
    add("--batches", type=int, default=8, help="batches of each scan, one sample a batch [8]")
    Limits.add_options(parser)
    add("--folder", type=Path, help="where models are written and kept, and looked for [made and removed]")
    add("--write", type=Path, help="also put the table into this page, between its markers")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in NETWORKS]:
        parser.error(f"{unknown[0]!r} is none of: {'; '.join(NETWORKS)}")
    return options


if __name__ == "__main__":
    main()

"""`python -m benchmarks.run`: everything measured, as Markdown on stdout; see README.md."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe_machine, describe_versions
from benchmarks.measure import Measurement
from benchmarks.models import MODELS
from benchmarks.rounds import Limits, Runs, prepare, run_rounds
from benchmarks.scans import SCANS
from benchmarks.tables import VERIFICATION, disturbance, scan_table, size_table, verification_table

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
_STAGES = "overflow_fixer stages"
_PEERS = ("AutoCast", "onnxconverter_common")


def main() -> None:
    options = _parse()
    began = f"Measured on {datetime.date.today()}: {describe_machine()}. {describe_versions()}."
    setting = f"{options.rounds} rounds of {options.batches} batches; sizes: {options.size_rounds} rounds."
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tables = list(_measure(options, Path(folder)))
    text = "\n\n".join([f"{began} {setting}", *tables]) + "\n"
    print(text)
    if options.write:
        _replace(options.write, text)


def _measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The tables, one after the other, each with its heading."""
    limits = Limits(options.limit, options.memory, options.patience)
    by_model: dict[str, Runs] = {}
    for name in options.models:
        print(f"{name} (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = prepare(name, folder / name, options.batches, typed=True)
        by_model[name] = run_rounds(model, [*SCANS, VERIFICATION], options.rounds, limits)
        yield f"### Scan: {name}\n\n{scan_table(by_model[name])}\n\n{disturbance([by_model[name]])}"
    if by_model:
        yield f"### Verification\n\n{verification_table(by_model)}"
    by_nodes = dict(_measure_sizes(options, folder, limits))
    if by_nodes:
        table = size_table(by_nodes, _STAGES, _PEERS)
        yield f"### By number of nodes, in seconds\n\n{table}\n\n{disturbance(by_nodes.values())}"


def _measure_sizes(options: argparse.Namespace, folder: Path, limits: Limits) -> Iterator[tuple[int, Runs]]:
    """The runs by number of nodes, smallest first. What failed on a smaller graph is not tried again."""
    given_up: Runs = {}
    for nodes in sorted(options.sizes):
        print(f"{nodes} nodes (load {os.getloadavg()[0]:.1f})", file=sys.stderr)
        model = prepare(f"transformer-{nodes}", folder / str(nodes), 1)
        tasks = [task for task in (_STAGES, *_PEERS) if task not in given_up]
        runs = {**run_rounds(model, tasks, options.size_rounds, limits), **given_up}
        yield nodes, runs
        failed = [task for task in tasks if any(found.failure for found in runs[task])]
        given_up |= {task: [Measurement(failure="not tried")] for task in failed}


def _replace(page: Path, text: str) -> None:
    """Put the text in place of what stands between the page's two markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(
            f"{page} lacks the lines {BEGIN.strip()} and {END.strip()}, between which tables go."
        )
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _parse() -> argparse.Namespace:
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**31
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--models", type=_names, default=list(MODELS), help=f"of {','.join(MODELS)} [all]; '' for none")
    add("--sizes", type=_sizes, default=[1000, 5000, 20000], help="nodes of the graphs [1000,5000,20000]")
    add("--rounds", type=int, default=5, help="rounds of the scans and the verification [5]")
    add("--batches", type=int, default=8, help="batches a scan [8]")
    add("--size-rounds", type=int, default=3, help="rounds of the sizes [3]")
    add("--limit", type=float, default=120, help="seconds after which a process is killed [120]")
    add("--patience", type=float, default=10, help="seconds to wait for idle cores before a process [10]")
    add("--memory", type=float, default=half, help="GiB that a process may take [half of what there is]")
    add("--folder", type=Path, help="where models are written and removed again [the system's]")
    add("--write", type=Path, help="also put the tables into this page, between its markers")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(MODELS)}")
    return names


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


if __name__ == "__main__":
    main()

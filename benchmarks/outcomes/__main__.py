"""`python -m benchmarks.outcomes NETWORK...`: which tool's model is right on unseen data; see ../README.md."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import describe_machine, describe_versions
from benchmarks.outcomes.convert import FAILURE
from benchmarks.outcomes.judge import FAILED, Outcome, judge
from benchmarks.outcomes.kept import Kept
from benchmarks.outcomes.tables import ByTool, network_table, summary_table
from benchmarks.outcomes.tools import TOOLS
from benchmarks.page import put_into
from benchmarks.rounds import ROOT


def main() -> None:
    options = _parse()
    began = f"Measured on {datetime.date.today()}: {describe_machine()}. {describe_versions()}."
    by_network = _measure(options)
    text = f"{began}\n\n{summary_table(by_network)}\n\n{network_table(by_network)}\n"
    print(text)
    if options.write:
        put_into(options.write, text)


def _measure(options: argparse.Namespace) -> dict[str, ByTool]:
    kept = Kept(options.json)
    return {
        network.name: {
            tool: kept.find(network.name, tool)
            or kept.note(network.name, tool, _try(tool, network, options.limit))
            for tool in options.tools
        }
        for network in options.networks
    }


def _try(tool: str, network: Path, limit: float) -> Outcome:
    """Convert in a process of its own, and judge what came of it."""
    model = network / "model.onnx"
    with tempfile.TemporaryDirectory() as place:
        failure = _convert(tool, network, Path(place), limit)
        typed = list(Path(place).glob("*.onnx"))
        if failure or not typed:
            return Outcome(FAILED, remark=failure or "nothing was written")
        return judge(model, typed[0], network / "fresh")


def _convert(tool: str, network: Path, folder: Path, limit: float) -> str:
    """What went wrong, "" if nothing did."""
    arguments = [tool, str(network / "model.onnx"), str(network / "calib"), str(folder)]
    command = [sys.executable, "-m", "benchmarks.outcomes.convert", *arguments]
    alike = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=alike, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"over {limit:g} s"
    said = folder / FAILURE
    if said.exists():
        return said.read_text()
    return f"died with code {done.returncode}" if done.returncode else ""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outcomes", description=__doc__)
    add = parser.add_argument
    add(
        "networks",
        nargs="+",
        type=_network,
        metavar="NETWORK",
        help="folders with model.onnx, calib/*.npz and fresh/*.npz",
    )
    add(
        "--tools",
        type=_tools,
        default=list(TOOLS),
        help=f"with semicolons between, of {'; '.join(TOOLS)} [all]",
    )
    add("--limit", type=float, default=300, help="seconds after which a conversion is killed [300]")
    add(
        "--json",
        type=Path,
        help="every outcome, with what was said; those that are there are not measured again",
    )
    add("--write", type=Path, help="also put the tables into this page, between its markers")
    return parser.parse_args()


def _network(text: str) -> Path:
    folder = Path(text).resolve()
    lacking = [part for part in ("model.onnx", "calib", "fresh") if not (folder / part).exists()]
    if lacking:
        raise argparse.ArgumentTypeError(f"{text} has no {', '.join(lacking)}")
    return folder


def _tools(text: str) -> list[str]:
    names = [name.strip() for name in text.split(";")]
    if unknown := [name for name in names if name not in TOOLS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {'; '.join(TOOLS)}")
    return names


if __name__ == "__main__":
    main()

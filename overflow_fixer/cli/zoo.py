"""`fix-fp16 zoo ZOO.toml | DIR`: many models, each in a process of its own."""

from __future__ import annotations

import fnmatch
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from overflow_fixer.cli.guard import OF_A_ZOO, note_stage
from overflow_fixer.cli.named_path import NamedPath
from overflow_fixer.cli.results import say
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.cli.zoo_comparison import say_comparison
from overflow_fixer.cli.zoo_display import open_display
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED, ConfigError
from overflow_fixer.reports.numbers_json import dump_json
from overflow_fixer.zoo.entries import Zoo, ZooEntry
from overflow_fixer.zoo.fixing import fix_zoo
from overflow_fixer.zoo.folder import read_folder
from overflow_fixer.zoo.machine import describe_machine
from overflow_fixer.zoo.outcomes import ZooOutcome, load_outcome
from overflow_fixer.zoo.places import check_places
from overflow_fixer.zoo.pool import Host, order
from overflow_fixer.zoo.ray_connection import open_ray
from overflow_fixer.zoo.summary import load_summary, summarize
from overflow_fixer.zoo.zoo_file import read_zoo_file

_PATH = NamedPath()
_REQUESTS = (signal.SIGTERM, *((signal.SIGHUP,) if sys.platform != "win32" else ()))
_MOST_NAMES = 10
_GPU = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


@click.command("zoo", cls=TellsHelp)
@click.argument("zoo", type=_PATH)
@click.option("--out", type=_PATH, help="Folder of the results [ZOO-stem.zoo].")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Models at once [one a core].")
@click.option("--gpus", help="GPUs of this machine to share out, one a model, such as 0,1 [all].")
@click.option("--ray", is_flag=True, help="Run on a Ray cluster of this machine alone, for this run.")
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help='Run on the Ray cluster there, many machines; "auto": the one this machine is in.',
)
@click.option(
    "--only", multiple=True, metavar="GLOB", help="Only models of that name, or whose name matches."
)
@click.option(
    "--shard", metavar="I/N", help="Only the I-th of N even parts, counted from 0: a part for each machine."
)
@click.option(
    "--failed", is_flag=True, help="Only models that no earlier run fixed; those that failed are run again."
)
@click.option("--force", is_flag=True, help="Run every model again, finished or not.")
@click.option(
    "--compare", type=_PATH, help="Summary of an earlier run: say what newly fails, which plans changed."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def zoo_command(
    zoo: Path,
    out: Path | None,
    workers: int,
    gpus: str | None,
    ray: bool,
    ray_address: str | None,
    only: tuple[str, ...],
    shard: str | None,
    failed: bool,
    force: bool,
    compare: Path | None,
    quiet: bool,
    as_json: bool,
    debug: bool,
) -> int:
    """Fix every model of ZOO: a zoo file (configs/zoo.toml), or a folder of models with their data beside them.

    What is finished is not run again, unless its model, data, settings or the tool's version changed, or results are gone.
    Exit code: 0 all fixed, 1 some not, 2 usage or zoo file, 130 stopped.
    """
    note_stage(OF_A_ZOO)
    found = _read(zoo, out)
    earlier = None if compare is None else load_summary(compare)
    chosen = _choose(found, only, shard, failed)
    outcomes: dict[str, ZooOutcome] = {}
    with (
        _open_host(workers, _parse_gpus(gpus), ray, ray_address) as host,
        _end_as_on_ctrl_c(),
        open_display(len(chosen), quiet or as_json) as display,
    ):
        for outcome in fix_zoo(chosen, host, display.show_running, force=force or failed):
            outcomes[outcome.name] = outcome
            display.show_outcome(outcome)
    document, files = summarize(found, outcomes, earlier)
    if as_json:
        say(dump_json(document))
    elif not quiet:
        _tell(document, files[0])
    return EXIT_FIXED if all(outcome.passed for outcome in outcomes.values()) else EXIT_NOT_VERIFIED


def _read(path: Path, out: Path | None) -> Zoo:
    """The zoo, whose results may not lie among the data of a model, nor over each other."""
    found = read_folder(path, out) if os.path.isdir(path) else read_zoo_file(path, out)
    check_places(found)
    return found


def _choose(zoo: Zoo, only: Sequence[str], shard: str | None, failed: bool) -> list[ZooEntry]:
    """The entries asked for. Raises ConfigError where a glob matches no name.

    They are dealt out before those that failed are told: other machines may be changing which these are.
    """
    wanted = {name for glob in only for name in _find_names(zoo, glob)}
    chosen = [entry for entry in zoo.entries if not only or entry.name in wanted]
    chosen = chosen if shard is None else _deal(chosen, shard)
    if failed:
        outcomes = {entry.name: load_outcome(entry) for entry in chosen}
        chosen = [e for e in chosen if (found := outcomes[e.name]) is None or not found.passed]
    return chosen


def _find_names(zoo: Zoo, glob: str) -> list[str]:
    """The names that a glob matches; what is a name to the letter, brackets and all, is that alone."""
    names = [entry.name for entry in zoo.entries]
    found = [glob] if glob in names else [name for name in names if fnmatch.fnmatchcase(name, glob)]
    if not found:
        more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise ConfigError(
            f"--only {glob} matches no model of {zoo.source}. Expected one of its names: {', '.join(names[:_MOST_NAMES])}{more}. "
            "Correct it."
        )
    return found


def _deal(entries: Sequence[ZooEntry], shard: str) -> list[ZooEntry]:
    """One part of the entries, dealt out in the order in which they run, so that every part has long and short ones."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(number) for number in found.groups()) if found else (0, 0)
    if index >= count:
        raise ConfigError(
            f"--shard {shard} is no part of a whole. Expected I/N with I from 0 to N - 1, such as 0/16. Correct it."
        )
    return order(entries)[index::count]


def _parse_gpus(text: str | None) -> tuple[str, ...] | None:
    """None where nothing was said. Raises ConfigError for what CUDA_VISIBLE_DEVICES does not take."""
    names = None if text is None else tuple(text.split(",")) if text else ()
    if names and not all(_GPU.fullmatch(name) for name in names):
        raise ConfigError(
            f"--gpus {text} is no list of GPUs. Expected numbers or UUIDs as nvidia-smi -L tells them, such as 0,1. "
            "Correct it."
        )
    return names


@contextmanager
def _open_host(workers: int, gpus: tuple[str, ...] | None, ray: bool, address: str | None) -> Iterator[Host]:
    if address is not None and (ray or gpus is not None):
        other = "--ray" if ray else "--gpus"
        raise ConfigError(
            f"{other} and --ray-address were given. Expected one of them: --ray starts a cluster of this machine, and a "
            "cluster that is there shares out its own GPUs (ray start --num-gpus). Leave one out."
        )
    if not ray and address is None:
        yield describe_machine(workers, gpus)
        return
    with open_ray(address, workers, gpus) as cluster:
        yield cluster


@contextmanager
def _end_as_on_ctrl_c() -> Iterator[None]:
    """By SIGTERM, or SIGHUP unless it is ignored, as Ctrl-C does: models are asked to stop, and a cluster is left in order.

    A shell's background job ignores Ctrl-C alone.
    """
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    handler = signal.default_int_handler if on_ctrl_c is signal.SIG_IGN else on_ctrl_c
    asked = [number for number in _REQUESTS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in asked}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _tell(document: Mapping[str, Any], path: Path) -> None:
    say(_say_end(document, path))
    if document["comparison"] is not None:
        say("\n".join(say_comparison(document["comparison"])))


def _say_end(document: Mapping[str, Any], path: Path) -> str:
    counts = document["counts"].items()
    told = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts) or "no model"
    warned = sum(bool(model["result"] and model["result"]["warnings"]) for model in document["models"])
    return (
        f"{told}{f'; {warned} with warnings' if warned else ''}. Summary: {path} (and .html, .csv beside it)"
    )

"""Tasks run in rounds, each task in a fresh process, all of a round before the next."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import Measurement
from benchmarks.neighbours import others_share, read_cpu_times, wait_for_idle

ROOT = Path(__file__).resolve().parents[1]
Runs = dict[str, list[Measurement]]
"""The measurements of each task, one a round; fewer where the task failed and was left out then."""


@dataclass(frozen=True)
class Limits:
    """What a process may take: wall time, imports included, and memory; and how long it waits for quiet."""

    seconds: float
    memory_gb: float
    patience_seconds: float


def run_rounds(model: Path, tasks: Sequence[str], rounds: int, limits: Limits) -> Runs:
    """Measure every task once a round, in another order each round. A task that fails is not tried again."""
    runs: Runs = {task: [] for task in tasks}
    for index in range(rounds):
        order = list(tasks)
        random.Random(index).shuffle(order)
        for task in order:
            if not any(found.failure for found in runs[task]):
                runs[task].append(_run_in_quiet(task, model, limits))
                print(f"  round {index + 1} {task}: {_say(runs[task][-1])}", file=sys.stderr, flush=True)
    return runs


def _run_in_quiet(task: str, model: Path, limits: Limits) -> Measurement:
    wait_for_idle(limits.patience_seconds)
    before = read_cpu_times()
    found = run_task(task, model, limits)
    return replace(found, others_share=others_share(before, read_cpu_times()))


def run_task(task: str, model: Path, limits: Limits) -> Measurement:
    """Measure a task in a process of its own, which is killed when it is over time."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = [task, str(model), str(model.parent / "data"), str(result), str(limits.memory_gb)]
        try:
            done = _python("benchmarks.measure", arguments, limits.seconds)
        except subprocess.TimeoutExpired:
            return Measurement(failure=f"over {limits.seconds:g} s")
        if not result.exists():
            return Measurement(failure=f"died with code {done.returncode}: {_last_line(done.stderr)}")
        return Measurement(**json.loads(result.read_text()))


def prepare(name: str, folder: Path, batches: int, typed: bool = False) -> Path:
    """Write a model and its batches, in another process so that this one stays small."""
    arguments = [name, str(folder), str(batches), *(["--typed"] if typed else [])]
    done = _python("benchmarks.prepare", arguments, None)
    if done.returncode:
        raise SystemExit(f"The model {name} could not be made: {done.stderr}")
    return folder / "model.onnx"


def _python(module: str, arguments: list[str], seconds: float | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


def _say(found: Measurement) -> str:
    return (
        found.failure
        or f"{found.seconds:.2f} s, {found.peak_bytes / 2**20:.0f} MiB, others {found.others_share:.0%}"
    )


def _last_line(text: str) -> str:
    lines: Iterator[str] = reversed(text.strip().splitlines())
    return next(lines, "")[:100]

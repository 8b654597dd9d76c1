"""Jobs run in rounds, each in a fresh process, all of a round before the next."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import OUT_OF_MEMORY, Measurement, is_out_of_memory
from benchmarks.neighbours import others_share, read_cpu_times, wait_for_idle

ROOT = Path(__file__).resolve().parents[1]
ALL, FEW = "data", "few"
"""The folders of batches beside a model: all of them, and the first few again."""
Runs = dict[str, list[Measurement]]
"""The measurements of each task, one a round; fewer where the task failed and was left out then."""


@dataclass(frozen=True)
class Job:
    """A task, and the folder beside the model with the batches that it gets."""

    task: str
    batches: str = ALL


JobRuns = Mapping[Job, list[Measurement]]


@dataclass(frozen=True)
class Limits:
    """What a process may take: wall time, imports included, and memory; and how long it waits for quiet."""

    seconds: float
    memory_gb: float
    patience_seconds: float

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**31
        add = parser.add_argument
        add("--limit", type=float, default=120, help="seconds after which a process is killed [120]")
        add("--patience", type=float, default=10, help="seconds to wait for idle cores before a process [10]")
        add("--memory", type=float, default=half, help="GiB that a process may take [half of what there is]")

    @staticmethod
    def of(options: argparse.Namespace) -> Limits:
        return Limits(options.limit, options.memory, options.patience)


def run_rounds(model: Path, jobs: Sequence[Job], rounds: int, limits: Limits) -> JobRuns:
    """Measure every job once a round, in another order each round. A job that fails is not tried again."""
    runs: dict[Job, list[Measurement]] = {job: [] for job in jobs}
    for index in range(rounds):
        order = list(jobs)
        random.Random(index).shuffle(order)
        for job in order:
            if not any(found.failure for found in runs[job]):
                runs[job].append(_run_in_quiet(job, model, limits))
                print(f"  round {index + 1} {_say(job, runs[job][-1])}", file=sys.stderr, flush=True)
    return runs


def select(runs: JobRuns, tasks: Iterable[str], batches: str = ALL) -> Runs:
    """The runs of these tasks on one folder of batches, by task."""
    return {task: runs[Job(task, batches)] for task in tasks}


def _run_in_quiet(job: Job, model: Path, limits: Limits) -> Measurement:
    wait_for_idle(limits.patience_seconds)
    before = read_cpu_times()
    found = run_job(job, model, limits)
    return replace(found, others_share=others_share(before, read_cpu_times()))


def run_job(job: Job, model: Path, limits: Limits) -> Measurement:
    """Measure a job in a process of its own, which is killed when it is over time."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        data = model.parent / job.batches
        arguments = [job.task, str(model), str(data), str(result), str(limits.memory_gb)]
        try:
            done = _python("benchmarks.measure", arguments, limits.seconds)
        except subprocess.TimeoutExpired:
            return Measurement(failure=f"over {limits.seconds:g} s")
        if result.exists():
            return Measurement(**json.loads(result.read_text()))
        return Measurement(failure=_describe_death(done))


def prepare(name: str, folder: Path, batches: int, few: int = 0, typed: bool = False) -> Path:
    """Write a model and its batches, in another process so that this one stays small."""
    arguments = [name, str(folder), str(batches), "--few", str(few), *(["--typed"] if typed else [])]
    done = _python("benchmarks.prepare", arguments, None)
    if done.returncode:
        raise SystemExit(f"The model {name} could not be made: {done.stderr}")
    return folder / "model.onnx"


def _python(module: str, arguments: list[str], seconds: float | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    alike = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}  # as fix-fp16 runs ONNX Runtime, so too the others
    return subprocess.run(
        command, cwd=ROOT, env=alike, capture_output=True, text=True, timeout=seconds, check=False
    )


def _describe_death(done: subprocess.CompletedProcess[str]) -> str:
    if is_out_of_memory(done.stderr):
        return OUT_OF_MEMORY
    return f"died with code {done.returncode}: {_last_line(done.stderr)}"


def _say(job: Job, found: Measurement) -> str:
    cost = f"{found.seconds:.2f} s, {found.peak_bytes / 2**20:.0f} MiB, others {found.others_share:.0%}"
    return f"{job.task} on {job.batches}: {found.failure or cost}"


def _last_line(text: str) -> str:
    lines: Iterator[str] = reversed(text.strip().splitlines())
    return next(lines, "")[:100]

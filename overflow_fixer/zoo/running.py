"""A model's process: started, watched for its time and its memory, and how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import psutil

from overflow_fixer.errors import OutputError
from overflow_fixer.files import make_folder, refuse_os_errors
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import (
    Kind,
    ZooOutcome,
    add_weights,
    describe_basis,
    load_outcome,
    make_outcome,
)
from overflow_fixer.zoo.worker import DUMPS, EXIT_TAKEN, PROGRESS_FILE, Job, read_progress

LOG_FILE = "log.txt"
_LOG_LINES = 5
_DUMP_SECONDS = 0.5
_GIB = 2**30
_BEGIN = (  # without the folder worked in, where a user may have a random.py; one line, and the folder last, for those who list processes
    f"import sys; sys.path[:] = sys.argv[1].split({os.pathsep!r}); "
    "from overflow_fixer.zoo.worker import main; sys.exit(main(sys.stdin.read()))"
)
_Cut = Literal["time", "memory"]


@dataclass
class Running:
    """The process of one entry. `gpu` is the one it may use (None: all it sees, "": none), `cut` the limit that it was ended for."""

    entry: ZooEntry
    process: subprocess.Popen[bytes]
    attempt: int
    gpu: str | None = None
    started: float = field(default_factory=time.monotonic)
    peak_bytes: int = 0
    cut: _Cut | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def has_written(self) -> bool:
        """Whether it ended with an outcome in its folder, its own or one that was there."""
        return self.process.returncode in (0, EXIT_TAKEN) and self.cut is None

    def has_ended(self) -> bool:
        """Look after it: measure its memory, and kill it where it is over a limit."""
        if self.process.poll() is not None:
            return True
        memory = measure_memory(self.process.pid)
        self.peak_bytes = max(self.peak_bytes, memory)
        limit = self.entry.memory_gib
        if self.seconds > 60 * self.entry.timeout_minutes:
            self._cut_off("time")
        elif limit is not None and memory > limit * _GIB:
            self._cut_off("memory")
        return self.process.poll() is not None

    def read_progress(self) -> tuple[str, int, int] | None:
        return read_progress(self.entry.folder)

    def stop(self) -> None:
        """Ask it to stop: a scan ends its batch and can go on later."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self.process.wait()

    def take_outcome(self) -> ZooOutcome:
        """What it wrote, or what its end says."""
        progress = self.read_progress()
        _forget_progress(self.entry.folder)
        written = load_outcome(self.entry) if self.has_written else None
        if written is not None and self.process.returncode == EXIT_TAKEN:
            return written.model_copy(update={"is_earlier": True})
        peak = max(self.peak_bytes, 0 if written is None else written.peak_memory_bytes)
        measured = {"attempts": self.attempt, "peak_memory_bytes": peak, "seconds": self.seconds}
        if written is not None:
            return written.model_copy(update=measured)
        stage = "start" if progress is None else "{} ({} of {} done)".format(*progress)
        kind, message = explain_end(self.process.returncode, self.cut, self.entry, stage)
        code = self.process.returncode if self.process.returncode >= 0 else None
        basis = add_weights(self.entry, describe_basis(self.entry))
        return make_outcome(self.entry, basis, kind, message, code, **measured)

    def _cut_off(self, cut: _Cut) -> None:
        self.cut = cut
        if cut == "time":
            self._dump()
        self.kill()

    def _dump(self) -> None:
        """Have it write to its log where it hangs."""
        if DUMPS is not None:
            with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.kill(self.process.pid, DUMPS)
                self.process.wait(_DUMP_SECONDS)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def start(
    entry: ZooEntry, *, attempt: int = 1, threads: int = 0, gpu: str | None = None, force: bool = False
) -> Running:
    """Start the entry's process, its words going to the log in its folder. Raises OutputError where there can be none.

    What it is told lies in a nameless file there too: no other folder need have room, as TMPDIR in a container has not.
    """
    make_folder(entry.folder)
    _forget_progress(entry.folder)
    job = Job.of(entry, threads=threads, attempt=attempt, force=force)
    paths = os.pathsep.join(path for path in sys.path if isinstance(path, str))
    command = [sys.executable, "-c", _BEGIN, paths, str(entry.folder)]
    path = entry.folder / LOG_FILE
    with refuse_os_errors(path), path.open("ab") as log, TemporaryFile(dir=entry.folder) as told:
        told.write(job.model_dump_json().encode())
        told.seek(0)
        process = subprocess.Popen(
            command,
            stdin=told,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_environment(threads, gpu)},
            start_new_session=True,
        )
    return Running(entry, process, attempt, gpu)


def _forget_progress(folder: Path) -> None:
    """That it cannot be removed, where the folder is in the way, is told of the outcome, which cannot be written then either."""
    with suppress(OSError):
        (folder / PROGRESS_FILE).unlink()


def _environment(threads: int, gpu: str | None) -> dict[str, str]:
    found = {"PYTHONFAULTHANDLER": "1"}
    if threads:
        found |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return found if gpu is None else {**found, "CUDA_VISIBLE_DEVICES": gpu}


def explain_end(code: int, cut: _Cut | None, entry: ZooEntry, stage: str) -> tuple[Kind, str]:
    """What a process that wrote no outcome came to, by its exit code (a signal's is negative), with the end of its log, or the
    sentence there on why the outcome could not be written.
    """
    log = entry.folder / LOG_FILE
    if cut == "time":
        minutes = f"{entry.timeout_minutes:g} minute{'' if entry.timeout_minutes == 1 else 's'}"
        return "timed_out", (
            f"It was ended after {minutes}, during: {stage}. Expected it to be done by then. Give it a larger "
            f"timeout_minutes, or see {log} for where it was."
        )
    if cut == "memory":
        return "out_of_memory", (
            f"It was ended for holding more than {entry.memory_gib:g} GiB, during: {stage}. Expected it to stay below. Give it "
            "a larger memory_gib, or smaller batches."
        )
    if code == -signal.SIGKILL:
        return "out_of_memory", (
            f"It was killed (SIGKILL) during: {stage}; on Linux that is what the kernel does where memory runs out. Expected "
            f"room for the model and one batch. Set memory_gib so that fewer models run beside it. The log is {log}."
        )
    if code == OutputError.exit_code:
        return "failed", _read_end(log, 1)
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return "crashed", (
        f"Its process {how} during: {stage}. Expected ONNX Runtime and TensorRT to run or refuse the model. The log is "
        f"{log}; it ends: {_read_end(log)}"
    )


def _read_end(log: Path, count: int = _LOG_LINES) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return " | ".join(line.strip() for line in lines[-count:] if line.strip()) or "(nothing)"


def measure_memory(pid: int) -> int:
    """Resident memory of a process and those that it started, in bytes; 0 once it is gone."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total

"""One model of a zoo fixed in this process, as running.start begins it: with a Job as JSON on stdin.

A command line holds 128 KiB on Linux, and a job can be longer. The model's folder in it is for those who list processes.

What comes of it is written to the model's folder; how far it is, to a file there that is replaced now and then.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import math
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pydantic import BaseModel, ConfigDict

from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import (
    EXIT_FAULT,
    EXIT_FIXED,
    EXIT_NOT_VERIFIED,
    EXIT_STOPPED,
    FixError,
    OutputError,
)
from overflow_fixer.files import make_folder
from overflow_fixer.graph.model import load_graph
from overflow_fixer.host.consumption import measure_self
from overflow_fixer.host.processes import die_with
from overflow_fixer.host.shortages import tells_of_memory
from overflow_fixer.locks import hold_lock
from overflow_fixer.pipeline import fix
from overflow_fixer.records import FixReport
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.reports.verdict import judge, warn_of_random
from overflow_fixer.sessions.settings import use_custom_ops, use_threads
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import (
    OUTCOME_FILE,
    Basis,
    InputFile,
    Kind,
    ZooOutcome,
    ZooResult,
    add_weights,
    describe_basis,
    has_same_settings,
    is_settled,
    list_inputs,
    load_outcome,
    make_outcome,
    save_outcome,
)

PROGRESS_FILE = ".progress.json"
DUMPS: signal.Signals | None = getattr(signal, "SIGUSR1", None)
"""The signal on which a worker writes what its threads do to its log; None on Windows."""
EXIT_TAKEN = 10
"""The outcome that is written is one that was there, of an earlier run or another zoo's."""
_PROGRESS_SECONDS = 0.5


class Job(BaseModel):
    """What a worker is told. `threads` are ONNX Runtime's (0: one a core), `parent` the process it dies with, `attempt` counts
    from 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: FixConfig
    timeout_minutes: float
    memory_gib: float | None
    threads: int
    parent: int
    attempt: int = 1
    force: bool = False

    @staticmethod
    def of(entry: ZooEntry, *, threads: int, attempt: int = 1, force: bool = False) -> Job:
        """The job of fixing an entry, for a worker of this process."""
        return Job(
            name=entry.name,
            config=entry.config,
            timeout_minutes=entry.timeout_minutes,
            memory_gib=entry.memory_gib,
            threads=threads,
            parent=os.getpid(),
            attempt=attempt,
            force=force,
        )

    @property
    def entry(self) -> ZooEntry:
        return ZooEntry(
            self.name, self.config, timeout_minutes=self.timeout_minutes, memory_gib=self.memory_gib
        )


def main(text: str) -> int:
    """Do the job; 0 once its outcome is written, whatever that is, EXIT_TAKEN for one that was there, and OutputError's where
    it cannot be written, which the log then ends with. SIGTERM ends a scan after its batch.

    A worker that another zoo has on the same model is waited for, and its outcome taken.
    """
    job = Job.model_validate_json(text)
    die_with(job.parent, EXIT_STOPPED)
    signal.signal(signal.SIGTERM, _interrupt)
    if DUMPS is not None:
        faulthandler.register(DUMPS, all_threads=True)
    use_threads(job.threads)
    try:
        with hold_lock(job.config.folder / OUTCOME_FILE, math.inf):
            outcome = _measure(run_job(job), job.attempt)
            _log(f"{outcome.kind}: {outcome.message}")
            save_outcome(outcome)
    except KeyboardInterrupt:
        return EXIT_STOPPED
    except OutputError as error:
        _log(str(error))
        return error.exit_code
    return EXIT_TAKEN if outcome.is_earlier else 0


def _log(text: str) -> None:
    """That the log cannot be written, on a disk that is full perhaps, is no reason to crash."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), f"{text}\n".encode(errors="backslashreplace"))


def _measure(outcome: ZooOutcome, attempt: int) -> ZooOutcome:
    """With what this process took, unless another one came to it: whoever takes it at once must find that."""
    if outcome.is_earlier:
        return outcome
    seconds, peak = measure_self()
    return outcome.model_copy(update={"attempts": attempt, "seconds": seconds, "peak_memory_bytes": peak})


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_job(job: Job) -> ZooOutcome:
    """Fix the model, or take the outcome that is there where the same content came to it."""
    entry, config = job.entry, job.config
    basis = describe_basis(entry)
    try:
        make_folder(config.folder)
        use_custom_ops(config.custom_ops)
        basis = _hash_inputs(entry, basis)
        found = None if job.force else load_outcome(entry)
        if found is not None and _still_holds(found, basis):
            return found.model_copy(update={"basis": basis, "model": config.model, "is_earlier": True})
        # nobody is there to choose what becomes of half a scan of what has changed since
        report = fix(config, _Progress(config.folder / PROGRESS_FILE), existing="replace")
    except FixError as error:
        return make_outcome(entry, add_weights(entry, basis), "failed", str(error), error.exit_code)
    except Exception as error:
        if tells_of_memory(error):
            return make_outcome(entry, add_weights(entry, basis), "out_of_memory", _OUT_OF_MEMORY)
        traceback.print_exc()
        message = (
            f"a fault of fix-fp16 itself: {type(error).__name__}: {error}. See the log; please report it."
        )
        return make_outcome(entry, add_weights(entry, basis), "failed", message, EXIT_FAULT)
    kind: Kind = "fixed" if report.passed else "not_verified"
    code = EXIT_FIXED if report.passed else EXIT_NOT_VERIFIED
    ended = make_outcome(entry, basis, kind, judge(report).sentence, code)
    built = {path.name: path.stat().st_size for path in report.artifact.files}
    return ended.model_copy(update={"result": make_result(report), "built": built})


def _still_holds(found: ZooOutcome, basis: Basis) -> bool:
    is_same = found.basis.content == basis.content and has_same_settings(found, basis)
    return is_same and is_settled(found)


_OUT_OF_MEMORY = (
    "Memory ran out. Expected room for the model, one batch and what is computed from it. Use a smaller batch, or a "
    "machine with more memory."
)


def _hash_inputs(entry: ZooEntry, basis: Basis) -> Basis:
    """The basis with the hash of model, data and libraries, and the files beside the model that hold its weights."""
    graph = load_graph(entry.config.model)
    calibration = open_calibration(entry.config.calib, graph.inputs, entry.config.calibration)
    content = json.dumps(
        [graph.sha256, calibration.fingerprint, len(calibration), entry.config.hash_libraries()]
    )
    files = tuple(map(InputFile.of, list_inputs(entry, graph.data_files)))
    return basis.model_copy(update={"content": hashlib.sha256(content.encode()).hexdigest(), "files": files})


def make_result(report: FixReport) -> ZooResult:
    """The numbers of a report."""
    naive = report.naive
    fixed = Attempt(report.plan, report.artifact, report.fixed)
    before = None if naive is None else replace(fixed, verification=naive)
    latencies = report.price.latencies if report.price is not None else ()
    return ZooResult(
        backend=report.backend,
        artifact=report.artifact.path,
        size_bytes=sum(path.stat().st_size for path in report.artifact.files),
        pins=tuple(pin.node for pin in report.plan.pins),
        clamp_count=len(report.plan.clamps),
        naive_snr_db=None if before is None else before.worst_snr_db,
        naive_mismatched=None if before is None else before.mismatched,
        fixed_snr_db=fixed.worst_snr_db,
        fixed_mismatched=fixed.mismatched,
        fp16_node_share=report.share.of_nodes,
        fp16_flops_share=report.share.of_flops,
        latency_ms={latency.name: latency.p50_ms for latency in latencies},
        stage_seconds=dict(report.durations_seconds),
        warnings=tuple(warning for warning in (warn_of_random(report), *report.warnings) if warning),
    )


class _Progress:
    """Writes the stage to a file, at most twice a second; that it cannot be written is no reason to stop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = -_PROGRESS_SECONDS

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_SECONDS and done != total:
            return
        self._last = now
        with suppress(OSError):
            self._path.write_text(json.dumps([stage, done, total]))


def read_progress(folder: Path) -> tuple[str, int, int] | None:
    """The stage, the steps done and the steps in all that a worker wrote last; None where there is no such file."""
    try:
        stage, done, total = json.loads((folder / PROGRESS_FILE).read_text())
        return str(stage), int(done), int(total)
    except (OSError, ValueError, TypeError):
        return None

"""Plans tried out: built into an artifact, run on the calibration batches, held against FP32."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from overflow_fixer.backends import BACKENDS, Backend
from overflow_fixer.config import FixConfig
from overflow_fixer.files import make_folder, refuse_os_errors
from overflow_fixer.graph import Graph
from overflow_fixer.progress import Progress
from overflow_fixer.records import (
    Artifact,
    CalibrationSet,
    PrecisionPlan,
    RangeTable,
    Runner,
    Tolerance,
    Verification,
)
from overflow_fixer.verification import open_reference, trace, verify


@dataclass
class Bench:
    """One model, its data and its FP32 reference, against which every trial is measured.

    Each trial is built in a folder of its own under the output folder; `ship` moves the one that was
    chosen to its place, so that what ships is the very file that was measured.
    """

    config: FixConfig
    graph: Graph
    calibration: CalibrationSet
    ranges: RangeTable
    backend_name: str
    progress: Progress
    _folders: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._backend: Backend = BACKENDS[self.backend_name]
        self._reference = open_reference(self.graph)
        self.tolerance: Tolerance = self.config.verify.tolerance()
        _remove_abandoned(self.config.folder)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def try_plan(self, plan: PrecisionPlan, stage: str = "verify") -> tuple[Artifact, Verification]:
        """Build a plan and verify it; a failing verification comes with its trace."""
        folder = self.config.folder / f".trial-{os.getpid()}-{len(self._folders)}"
        make_folder(folder)
        self._folders.append(folder)
        path = folder / f"{self.config.model.stem}{self._backend.suffix}"
        artifact = self._backend.emit(self.graph, plan, path, io_types=self.config.build.io_types)
        return artifact, self.verify(artifact, plan, stage)

    def try_naive(self) -> Verification:
        """How the model fares with nothing pinned."""
        naive = PrecisionPlan(self.graph.sha256, self.config.plan.threshold, ())
        artifact, found = self.try_plan(naive, "naive FP16")
        shutil.rmtree(artifact.path.parent, ignore_errors=True)
        return found

    def find_artifact(self, plan: PrecisionPlan) -> Artifact:
        """The artifact that an earlier build left in the output folder."""
        path = self.config.folder / f"{self.config.model.stem}{self._backend.suffix}"
        return self._backend.describe(self.graph, plan, path, io_types=self.config.build.io_types)

    def ship(self, artifact: Artifact) -> Artifact:
        """Move a trial's files to the output folder, the model last."""
        moved = [self.config.folder / path.name for path in artifact.files]
        for source, target in reversed(list(zip(artifact.files, moved, strict=True))):
            with refuse_os_errors(target):
                os.replace(source, target)
        for stale in {moved[0].with_name(moved[0].name + ".data")} - set(moved):
            stale.unlink(missing_ok=True)
        return replace(artifact, path=moved[0], files=tuple(moved))

    def verify(self, artifact: Artifact, plan: PrecisionPlan, stage: str = "verify") -> Verification:
        """Run an artifact on every batch against FP32; a failing verification comes with its trace."""

        def open_candidate(tensors: Sequence[str]) -> Runner:
            return self._backend.open_runner(artifact, tensors)

        total = len(self.calibration)
        found = verify(
            self._reference,
            open_candidate(()),
            self.calibration,
            self.tolerance,
            lambda done: self.progress(stage, done, total),
        )
        if found.passed:
            return found
        covered = frozenset(name for clamp in plan.clamps for name in clamp.covers)
        return trace(
            found, self.graph, self.ranges, self.calibration, open_candidate, self.tolerance, covered
        )


def _remove_abandoned(folder: Path) -> None:
    """Remove the trials of runs that were killed: those whose process is gone."""
    for trial in folder.glob(".trial-*-*"):
        process = trial.name.split("-")[1]
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(trial, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # there, signal 0 would interrupt it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

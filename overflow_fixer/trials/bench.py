"""Plans tried out: built into an artifact, run on the calibration batches, held against FP32."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

import onnxruntime
from onnx import TensorProto

from overflow_fixer import __version__
from overflow_fixer.backends import BACKENDS, Backend, mixed_onnx, tensorrt
from overflow_fixer.calibration import jitter, make_copies, say_unheeded, survey_shapes
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import BackendError, CalibrationError, ModelError
from overflow_fixer.evidence.integers.integer_samples import find_samples
from overflow_fixer.files import make_folder, move_files
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable
from overflow_fixer.metrics.parts import find_parts
from overflow_fixer.progress import Progress
from overflow_fixer.records import (
    Artifact,
    Batch,
    BuildSettings,
    CalibrationSet,
    Pin,
    PrecisionPlan,
    Price,
    RangeTable,
    Runner,
    TensorError,
    Tolerance,
    TracedIn,
    Verification,
)
from overflow_fixer.repair.trace import OpenRunner, trace
from overflow_fixer.trials.finished import adopt_trials, drop_files, is_finished, make_key, note_trial
from overflow_fixer.trials.folders import TrialFolders
from overflow_fixer.trials.place import name_artifact
from overflow_fixer.verification.comparison import (
    CachedRunner,
    CopyCheck,
    check_parts,
    find_worst_batch,
    open_reference,
    verify,
)
from overflow_fixer.verification.conditioning import find_unsettled
from overflow_fixer.verification.filled_outputs import find_fills
from overflow_fixer.verification.half_io import RoundedRunner, find_wrong_input

_NAIVE = "naive FP16"
_COPIES_EACH, _MOST_COPIES = 3, 24
"""Changed copies of a batch, and of all, that what was built is tried on."""
_COPIES_SECONDS = 10.0


@dataclass
class Bench:
    """One model, its data and its FP32 reference, against which every trial is measured.

    Each trial is built in a folder of its own under the output folder; `ship` moves the one that was
    chosen to its place, so that what ships is the very file that was measured. A trial that an earlier run finished
    before it was killed is taken as it is: see trials.finished. `unheeded` tells of options that the data do not heed.
    """

    config: FixConfig
    graph: Graph
    calibration: CalibrationSet
    ranges: RangeTable
    backend_name: str
    progress: Progress

    def __post_init__(self) -> None:
        self.backend: Backend = BACKENDS[self.backend_name]
        self.settings = make_settings(self.config, self.graph, self.calibration, self.backend)
        self.unheeded = tuple(say_unheeded(self.config.calibration, self.config.calib, self.calibration))
        self._reference = CachedRunner(open_reference(self.graph))
        is_borne = CopyCheck(self._reference)
        self.calibration = jitter(self.calibration, self.config.verify.jitter, is_borne)
        self.tolerance = make_tolerance(self.config, self.graph)
        self._basis = make_key(
            self.graph.sha256,
            self.calibration.fingerprint,
            self.config.model_dump(mode="json", include={"build", "verify", "custom_ops"}),
            self.config.hash_libraries(),
            self.backend_name,
            (tensorrt.find_lack() or tensorrt.require()) if self.backend.is_engine else "",
            __version__,
            onnxruntime.__version__,
        )
        self._folders = TrialFolders(self.config.folder)
        self._finished = adopt_trials(self.config.folder, self._folders)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the trials; but where the run was stopped, those that are finished stay for the next."""
        is_stopped = kind is not None and not issubclass(kind, Exception)
        self._folders.close(lambda folder: is_stopped and is_finished(folder))

    def try_plan(self, plan: PrecisionPlan, stage: str = "verify") -> tuple[Artifact, Verification]:
        """Build a plan and verify it; a failing verification comes with its trace."""
        key = make_key(self._basis, stage == _NAIVE, asdict(plan))
        if key in self._finished:
            return self._finished[key].artifact, self._finished[key].verification
        path = self._place()
        self.progress(f"{stage}: build", 0, 1)
        try:
            artifact = self.backend.emit(self.graph, plan, path, self.settings, self.progress)
        except BackendError:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        self.progress(f"{stage}: build", 1, 1)
        found = self.verify(artifact, plan, stage)
        note_trial(key, artifact, found)
        return artifact, found

    def try_naive(self) -> tuple[Artifact, Verification]:
        """How the model fares with nothing pinned; the files of an engine are kept, to be timed."""
        naive = PrecisionPlan(self.graph.sha256, self.config.plan.threshold, ())
        artifact, found = self.try_plan(naive, _NAIVE)
        if not self.backend.is_engine:
            drop_files(artifact.path.parent)
        return artifact, found

    def try_fp32(self) -> tuple[Artifact, Verification]:
        """How the backend's own FP32 engine fares, TF32 off: what it gets wrong is no overflow."""
        key = make_key(self._basis, "FP32 engine")
        if key in self._finished:
            return self._finished[key].artifact, self._finished[key].verification
        self.progress("FP32 engine: build", 0, 1)
        artifact = tensorrt.emit_fp32(self.graph, self._place(), self.settings, tf32=False)
        self.progress("FP32 engine: build", 1, 1)
        found = self._compare(artifact, "FP32 engine")
        note_trial(key, artifact, found)
        return artifact, found

    def measure_price(self, fixed: Artifact, others: Mapping[str, Artifact]) -> Price:
        """Engines timed in turns on the first batch of the most usual shapes; builds the FP32 one with TF32."""
        self.progress("timing", 0, 1)
        tf32 = tensorrt.emit_fp32(self.graph, self._place(), self.settings, tf32=True)
        artifacts = {tensorrt.FIXED: fixed, **others, tensorrt.FP32: tf32}
        return tensorrt.measure_price(self.graph, artifacts, self._usual_batch(), self.settings)

    def find_artifact(self, plan: PrecisionPlan) -> Artifact:
        """The artifact that an earlier build left in the output folder."""
        path = name_artifact(self.config, self.backend_name)
        return self.backend.describe(self.graph, plan, path, self.settings)

    def discard(self, artifact: Artifact) -> None:
        """Remove the files of a trial that lost, for a repair builds many; what was found of it stays until the end."""
        if artifact.path.parent in self._folders:
            drop_files(artifact.path.parent)

    def renew(self, artifact: Artifact, plan: PrecisionPlan) -> tuple[Artifact, Verification] | None:
        """Build anew a trial of which an earlier run kept no files, since there it lost; None where it has them."""
        if all(path.exists() for path in artifact.files):
            return None
        self._finished.clear()
        return self.try_plan(plan, "repair")

    def ship(self, artifact: Artifact) -> Artifact:
        """Move a trial's files to the output folder, the model last."""
        moved = move_files(artifact.files, self.config.folder)
        return replace(artifact, path=moved[0], files=moved)

    def verify(self, artifact: Artifact, plan: PrecisionPlan, stage: str = "verify") -> Verification:
        """Run an artifact on every batch against FP32; one with an output that is wrong comes with its trace."""
        found = self._compare(artifact, stage)
        if all(verdict.passed for verdict in found.outputs):
            return found
        if self.backend.is_engine:
            traced = self._trace_engine(found, artifact, plan)
        else:
            traced = self._trace(found, plan, lambda tensors: mixed_onnx.open_tracer(artifact, tensors))
        return self._blame_input(traced)

    def find_lost_outputs(self) -> tuple[str, ...]:
        """The outputs, and parts, that FP16 inputs and outputs alone make wrong, FP32 in between; none that FP32 has NaN in."""
        if not self._has_half_io:
            return ()
        return self._find_wrong(RoundedRunner(self.graph, self._reference))

    def find_lost_to_own_fp16(self) -> tuple[str, ...]:
        """The outputs, and parts, that what the model itself has in FP16 makes wrong, all else in FP32; none that FP32 has NaN in.

        None of an engine, which may compute that in FP32, of a model that may give other values each time, or that cannot be run so.
        """
        has_half = TensorProto.FLOAT16 in self.graph.dtypes.values()
        if not has_half or self.backend.is_engine or not is_repeatable(self.graph):
            return ()
        with suppress(BackendError, ModelError):  # of what can not be simulated, of memory
            return self._find_wrong(mixed_onnx.open_as_it_stands(self.graph))
        return ()

    def _find_wrong(self, runner: Runner) -> tuple[str, ...]:
        found = verify(self._reference, runner, self.calibration, self.tolerance)
        wrong = [verdict.error for verdict in found.outputs if not verdict.passed]
        return tuple(error.name for error in wrong if not error.reference_nan)

    def try_copies(self, artifact: Artifact) -> Verification | None:
        """How an artifact fares on changed copies of the batches: three of each, of more than 8 batches fewer, 24 at most.

        None is begun after 10 seconds. None is returned where nothing changes in them, where the model may give other values each
        time, and where one cannot be run.
        """
        if not is_repeatable(self.graph):
            return None
        each = min(max(_MOST_COPIES // len(self.calibration), 1), _COPIES_EACH)
        check, first = CopyCheck(self._reference), islice(enumerate(self.calibration), _MOST_COPIES)
        copies = (copy for index, batch in first for copy in make_copies(batch, index, each, check))
        runner, latest = self.backend.open_runner(artifact, self.settings), time.monotonic() + _COPIES_SECONDS
        in_time = takewhile(lambda copy: time.monotonic() < latest, copies)
        self.progress("changed copies", 0, 1)
        with suppress(BackendError, CalibrationError, ModelError):  # of no copy, of memory
            return verify(self._reference, runner, in_time, self.tolerance)
        return None

    def find_unsettled(self) -> tuple[TensorError, ...]:
        """The outputs that FP32 itself does not settle; none are told of a model that may give other values each time."""
        if not is_repeatable(self.graph):
            return ()
        return find_unsettled(self._reference, self.calibration, self.tolerance)

    @property
    def _has_half_io(self) -> bool:
        return self.settings.io_types == "fp16"

    def _blame_input(self, found: Verification) -> Verification:
        """With an input that goes wrong as FP16 as the first tensor that does."""
        if not self._has_half_io:
            return found
        batch = find_worst_batch(found, self.calibration)
        wrong = find_wrong_input(self.graph, batch, self.tolerance)
        return found if wrong is None else replace(found, first_wrong=wrong)

    def _trace_engine(self, found: Verification, artifact: Artifact, plan: PrecisionPlan) -> Verification:
        """Trace a simulation of the engine's precisions; where that shows nothing wrong, a marked engine."""
        pins = tuple(Pin(label, "", (), ()) for label in artifact.fp32_nodes)
        typed = mixed_onnx.emit(self.graph, replace(plan, pins=pins), self._place(".fp16.onnx"))
        simulated = self._trace(
            found, plan, lambda tensors: mixed_onnx.open_tracer(typed, tensors), "simulation"
        )
        shutil.rmtree(typed.path.parent, ignore_errors=True)
        if simulated.first_wrong is not None or not plan.pins:
            return simulated

        def open_marked(tensors: Sequence[str]) -> Runner:
            return tensorrt.open_tracer(self.graph, plan, artifact, tensors, self.settings)

        try:
            return self._trace(found, plan, open_marked, "marked engine")
        except BackendError:  # so many outputs can be more than TensorRT has kernels for
            return simulated

    def _trace(
        self,
        found: Verification,
        plan: PrecisionPlan,
        open_candidate: OpenRunner,
        traced_in: TracedIn = "candidate",
    ) -> Verification:
        covered = frozenset(name for clamp in plan.clamps for name in clamp.covers)
        return trace(
            found,
            self.graph,
            self.ranges,
            self.calibration,
            open_candidate,
            self.tolerance,
            covered,
            traced_in,
        )

    def _compare(self, artifact: Artifact, stage: str) -> Verification:
        total = len(self.calibration)
        found = verify(
            self._reference,
            self.backend.open_runner(artifact, self.settings),
            self.calibration,
            self.tolerance,
            lambda done: self.progress(stage, done, total),
        )
        self.graph.check_unchanged()
        check_parts(found)
        return found

    def _place(self, suffix: str | None = None) -> Path:
        """Where the next trial goes: a folder of its own."""
        folder = self._folders.name_next()
        make_folder(folder)
        return folder / f"{self.config.model.stem}{suffix or self.backend.suffix}"

    def _usual_batch(self) -> Batch:
        shapes = {name: shape.opt for name, shape in self.settings.shapes.items()}
        batches = iter(self.calibration)
        first = next(batches)
        fits = (b for b in (first, *batches) if all(a.shape == shapes.get(n) for n, a in b.feeds.items()))
        return next(fits, first)


def check_request(config: FixConfig, graph: Graph, calibration: CalibrationSet, backend: Backend) -> None:
    """Raise at once what building or verifying would raise after the scan, for what cannot be had as asked for."""
    for part in find_parts(config.verify.tolerance(), graph.outputs):
        part.check(graph.sure_shapes.get(part.output))
    if _asks_shapes(config, backend):
        tensorrt.override_shapes(graph, {}, config.build.profile)
    if backend.is_engine:
        tensorrt.check_settings(config.build.settings(config.folder, {}))
    if backend.is_engine and config.build.profile:
        seen = survey_shapes(calibration)
        tensorrt.check_cover(tensorrt.override_shapes(graph, seen, config.build.profile), seen)


def _asks_shapes(config: FixConfig, backend: Backend) -> bool:
    return backend.is_engine or bool(config.build.exports)


def make_settings(
    config: FixConfig, graph: Graph, calibration: CalibrationSet | None, backend: Backend
) -> BuildSettings:
    """What the backend is told; the shapes of the data are looked at for an engine, and for what is exported for one."""
    if not _asks_shapes(config, backend):
        return config.build.settings(config.folder, {})
    seen = survey_shapes(calibration) if calibration is not None else {}
    return config.build.settings(config.folder, tensorrt.override_shapes(graph, seen, config.build.profile))


def make_tolerance(config: FixConfig, graph: Graph) -> Tolerance:
    """What is asked of the outputs, with the constants that fill them, and which of them are samples."""
    return replace(config.verify.tolerance(), fills=find_fills(graph), samples=find_samples(graph))

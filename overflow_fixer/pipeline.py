"""The whole tool on one page: scan, plan, build, verify, repair, report."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import onnxruntime

from overflow_fixer import __version__
from overflow_fixer.backends import BACKENDS, choose_backend, find_protected, tensorrt
from overflow_fixer.backends.tensorrt.exports import check_exports, write_exports
from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import FixConfig, check_folders
from overflow_fixer.errors import BackendError
from overflow_fixer.files import need_folder
from overflow_fixer.flops import count_share
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.layernorm_fusion import fuse_layernorms
from overflow_fixer.locks import claim_folder, hold_folder
from overflow_fixer.model_file.malformed import refuse_malformed
from overflow_fixer.planning.confidence import judge_confidence
from overflow_fixer.planning.plan import check_policy, check_ranges, plan_precision
from overflow_fixer.planning.plan_fit import check_plan
from overflow_fixer.progress import Progress, silent
from overflow_fixer.ranges import Existing, OnOver, collect_ranges, ignore_over, load_ranges
from overflow_fixer.records import (
    Artifact,
    Batch,
    CalibrationSet,
    FixReport,
    FusedModel,
    PlanPolicy,
    PrecisionPlan,
    Price,
    RangeTable,
    RepairRound,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.repair.rounds import Repaired, repair
from overflow_fixer.reports import load_plan, save_plan, write_reports
from overflow_fixer.reports.caveats import (
    say_changed_data,
    say_excluded,
    say_fragile,
    say_half_io,
    say_left_out,
    say_luck,
    say_of_model,
    say_spent,
    say_thin,
    say_unclamped,
    say_unsettled,
    say_without_effect,
)
from overflow_fixer.reports.staleness import say_replaced_plan
from overflow_fixer.sessions.providers import choose_provider
from overflow_fixer.sessions.settings import use_custom_ops
from overflow_fixer.trials.bench import Bench, check_request
from overflow_fixer.trials.place import check_place, name_built
from overflow_fixer.trials.results import check_results

_LIBRARIES = ("onnx", "onnx-graphsurgeon", "numpy")


def fix(
    config: FixConfig,
    progress: Progress = silent,
    *,
    over: OnOver = ignore_over,
    existing: Existing = "renew",
) -> FixReport:
    """Scan, plan, build, verify and repair one model; write everything to `config.folder`.

    `over` is called with the tensors over the threshold as the scan finds them: see collect_ranges. A
    scan that was stopped goes on; a finished one of something else is replaced; what else is where
    the ranges belong is an error, unless `existing` says otherwise: see resumption.Existing.

    Returns the report whether verification passed or not: see `FixReport.passed`. Raises a FixError
    for what cannot be done, such as to write where another run does; what had been written by then stays valid.
    """
    clock = _Clock()
    check_folders(config.folder, config.calib)
    use_custom_ops(config.custom_ops)
    backend, reason = choose_backend(config.build.backend)
    check_exports(config.build.exports, backend)
    with clock.time("load"):
        graph = load_graph(config.model)
        calibration = open_calibration(config.calib, graph.inputs, config.calibration)
    check_request(config, graph, calibration, BACKENDS[backend])
    check_place(config, graph, backend)
    with claim_folder(config.folder):
        fused = _fuse(config, graph, calibration, progress, clock) if config.refuse_layernorm else None
        if fused is not None:
            config, graph = config.with_model(fused.files[0]), load_graph(fused.files[0])
        policy = make_policy(config, backend)
        check_policy(graph, policy)
        with clock.time("scan"):
            ranges = scan(config, graph, calibration, progress, over, existing)
        with need_folder(config.folder):
            with clock.time("plan"), refuse_malformed(graph.path):
                plan = plan_precision(graph, ranges, policy)
            with (
                refuse_malformed(graph.path),
                Bench(config, graph, calibration, ranges, backend, progress) as bench,
            ):
                result = _try_all(config, bench, plan, clock)
                best = replace(result.best, artifact=bench.ship(result.best.artifact))
            result = _save_plan(config.folder, replace(result, best=best))
            report = _make_report(config, bench, plan, result, reason, clock)
            return _write(report, config, bench, fused)


def _fuse(
    config: FixConfig, graph: Graph, calibration: CalibrationSet, progress: Progress, clock: _Clock
) -> FusedModel:
    """The model with its LayerNorms fused again, beside what is made of it."""
    with clock.time("fuse"):
        path = config.folder / "fused" / config.model.name
        return fuse_layernorms(graph, path, _tell("fuse", calibration, progress))


def _write(report: FixReport, config: FixConfig, bench: Bench, fused: FusedModel | None) -> FixReport:
    """The report, written with the exports that were asked for, and with all files, those of the fused model first."""
    if fused is not None:
        report = replace(report, fused=fused, files=(*fused.files, *report.files))
    try:
        exported = write_exports(
            config.build.exports, bench.graph, report.plan, report.artifact, bench.settings, config.folder
        )
        report = replace(report, files=(*report.files, *exported))
    finally:
        written = write_reports(report, config.folder)
    return replace(report, files=(*report.files, *written))


def verify_built(
    config: FixConfig,
    progress: Progress = silent,
    ranges_path: Path | None = None,
    plan_path: Path | None = None,
) -> FixReport:
    """Verify the artifact that was built in `config.folder`, and report. The ranges and the plan lie there too, unless named."""
    ranges_path = ranges_path or config.folder / "ranges.h5"
    with hold_folder(config.folder):
        return _verify_held(config, progress, ranges_path, plan_path or config.folder / "plan.json")


def _verify_held(config: FixConfig, progress: Progress, ranges_path: Path, plan_path: Path) -> FixReport:
    clock = _Clock()
    use_custom_ops(config.custom_ops)
    backend, reason = choose_backend(config.build.backend)
    with clock.time("load"):
        graph = load_graph(config.model)
        check_results(config, graph, name_built(config, backend))
        calibration = open_calibration(config.calib, graph.inputs, config.calibration)
        ranges = load_ranges(ranges_path)
        plan = load_plan(plan_path)
        check_plan(graph, plan)
        check_ranges(graph, ranges)
    with Bench(config, graph, calibration, ranges, backend, progress) as bench, clock.time("verify"):
        artifact = bench.find_artifact(plan)
        warnings = list(say_changed_data(ranges, calibration))
        naive = None
        if config.build.compare:
            with _tolerate("Plain FP16 was not compared", warnings):
                naive = bench.try_naive()[1]
        attempt = Attempt(plan, artifact, bench.verify(artifact, plan))
        result = _Result(attempt, naive, warnings=tuple(warnings))
    report = _make_report(config, bench, plan, result, reason, clock)
    report = replace(report, files=(ranges_path, plan_path, *artifact.files))
    return replace(report, files=(*report.files, *write_reports(report, config.folder)))


def scan(
    config: FixConfig,
    graph: Graph,
    calibration: CalibrationSet,
    progress: Progress,
    over: OnOver = ignore_over,
    existing: Existing = "keep",
) -> RangeTable:
    """Observe every tensor on every batch, into `ranges.h5` of the output folder.

    Where the provider asked for does not load, the CPU runs the model, and the table says why.
    """
    chosen = choose_provider(config.scan.provider)
    ranges = collect_ranges(
        graph,
        calibration,
        observe=config.scan.observe,
        provider=chosen.provider,
        small_values=config.scan.small_values,
        progress=lambda done, total: progress("scan", done, total),
        over=over,
        limit=config.plan.threshold,
        store=config.folder / "ranges.h5",
        existing=existing,
    )
    return replace(ranges, provider_lack=chosen.lack)


def _tell(stage: str, calibration: CalibrationSet, progress: Progress) -> Iterator[Batch]:
    for done, batch in enumerate(calibration, 1):
        yield batch
        progress(stage, done, len(calibration))


def make_policy(config: FixConfig, backend: str) -> PlanPolicy:
    """What the planner may decide, with what the backend protects by itself. Raises BackendError where it is missing."""
    return config.plan.policy(find_protected(backend, config.build.typing))


@dataclass(frozen=True)
class _Result:
    """What trying came to: the best attempt, how plain FP16 and the backend's FP32 fare, and the price.

    `lost_outputs` are those that FP16 inputs and outputs alone make wrong. `spent` is the budget's key that ended the repair.
    """

    best: Attempt
    naive: Verification | None = None
    rounds: tuple[RepairRound, ...] = ()
    fp32: Verification | None = None
    price: Price | None = None
    warnings: tuple[str, ...] = ()
    lost_outputs: tuple[str, ...] = ()
    spent: str = ""


def _try_all(config: FixConfig, bench: Bench, plan: PrecisionPlan, clock: _Clock) -> _Result:
    """Plain FP16, the plan with its repairs and, for an engine, FP32 to tell faults from and to time.

    What is built for comparison alone and cannot be becomes a warning.
    """
    engines: dict[str, Artifact] = {}
    warnings: list[str] = []
    naive, fp32, price = None, None, None
    compare, is_engine = config.build.compare, bench.backend.is_engine
    if compare:
        with clock.time("naive"), _tolerate("Plain FP16 was not compared", warnings):
            engines[tensorrt.NAIVE], naive = bench.try_naive()
    with clock.time("fix"):
        is_naive = is_engine and not plan.pins and not plan.clamps and naive is not None
        first = Attempt(
            plan, *((engines[tensorrt.NAIVE], naive) if is_naive and naive else bench.try_plan(plan))
        )
    if is_engine and (compare or not first.verification.passed):
        with clock.time("FP32 engine"), _tolerate("TensorRT's own FP32 was not compared", warnings):
            engines[tensorrt.FP32_EXACT], fp32 = bench.try_fp32()
    is_fault = fp32 is not None and not fp32.passed
    with clock.time("repair"):
        lost = () if first.verification.passed else bench.find_lost_outputs()
        repaired = Repaired(first, (), "") if is_fault or lost else _repair(config, bench, first)
    best = repaired.best
    if is_engine and compare:
        with clock.time("timing"), _tolerate("Nothing was timed", warnings):
            price = bench.measure_price(best.artifact, engines)
    return _Result(best, naive, repaired.rounds, fp32, price, tuple(warnings), lost, repaired.spent)


def _save_plan(folder: Path, result: _Result) -> _Result:
    """Put the plan of what was chosen into its place; with a warning, where it takes that of another which no run verified."""
    plan = result.best.plan
    warnings = (*result.warnings, *say_replaced_plan(folder, plan))
    save_plan(plan, folder / "plan.json")
    return replace(result, warnings=warnings)


@contextmanager
def _tolerate(what: str, warnings: list[str]) -> Iterator[None]:
    """Turn the failure of a comparison into a warning: the fix does not hang on it."""
    try:
        yield
    except BackendError as error:
        warnings.append(f"{what}: {error}")


def _repair(config: FixConfig, bench: Bench, first: Attempt) -> Repaired:
    best, rounds, spent = repair(
        bench.graph,
        bench.ranges,
        bench.calibration,
        make_policy(config, bench.backend_name),
        first,
        lambda widened: bench.try_plan(widened, "repair"),
        bench.tolerance,
        config.repair.budget(),
        bench.discard,
        bench.progress,
    )
    renewed = bench.renew(best.artifact, best.plan)
    return Repaired(best if renewed is None else Attempt(best.plan, *renewed), rounds, spent)


def _make_report(
    config: FixConfig, bench: Bench, first_plan: PrecisionPlan, result: _Result, reason: str, clock: _Clock
) -> FixReport:
    graph, ranges, best = bench.graph, bench.ranges, result.best
    with clock.time("caveats"):
        warnings = (*result.warnings, *_find_caveats(config, bench, result))
    return FixReport(
        model=config.model,
        model_sha256=graph.sha256,
        tool_version=__version__,
        versions=_find_versions(),
        backend=bench.backend_name,
        backend_reason=reason,
        calibration=bench.calibration.source,
        synthetic=bench.calibration.synthetic,
        ranges=ranges,
        plan=best.plan,
        initial_pins=len(first_plan.pins),
        artifact=best.artifact,
        naive=result.naive,
        fixed=best.verification,
        rounds=result.rounds,
        share=count_share(graph, best.artifact, next(iter(bench.calibration))),
        tolerance=bench.tolerance,
        files=(config.folder / "ranges.h5", config.folder / "plan.json", *best.artifact.files),
        durations_seconds=clock.seconds,
        warnings=warnings,
        price=result.price,
        fp32_engine=result.fp32,
        confidence=judge_confidence(graph, ranges, best.plan, make_policy(config, bench.backend_name)),
    )


def _find_caveats(config: FixConfig, bench: Bench, result: _Result) -> Iterator[str]:
    yield from say_without_effect(config.build, bench.backend.is_engine)
    yield from bench.unheeded
    yield from say_luck(result.best, result.naive)
    yield from say_spent(result.best.verification, result.rounds, config.repair.budget(), result.spent)
    yield from say_excluded(result.best.plan, result.best.verification)
    yield from say_left_out(result.best.verification, config.verify.jitter)
    if result.rounds or not result.best.verification.passed:
        yield from map(say_unsettled, bench.find_unsettled())
    yield from _try_more(config, bench, result)
    policy = make_policy(config, bench.backend_name)
    yield from say_unclamped(bench.graph, bench.ranges, result.best.plan, policy)
    if config.build.io_types == "fp16":
        yield from say_half_io(bench.graph, bench.ranges, result.lost_outputs)
    yield from bench.backend.warn(result.best.artifact, config.custom_ops)
    yield from say_of_model(bench.graph, bench.ranges, result.best, bench.tolerance)


def _try_more(config: FixConfig, bench: Bench, result: _Result) -> Iterator[str]:
    """What is to be said of batches like these, where a repair was made for them or an output passes by little."""
    found = result.best.verification
    is_thin = any(say_thin(found, None, bench.ranges, bench.tolerance))
    if config.verify.jitter == 0 and found.passed and (result.rounds or is_thin):
        copies = bench.try_copies(result.best.artifact)
        fragile = [] if copies is None else list(say_fragile(copies))
        if fragile and not result.rounds:
            yield from map(say_unsettled, bench.find_unsettled())
        yield from fragile or say_thin(found, copies, bench.ranges, bench.tolerance)


def _find_versions() -> dict[str, str]:
    """The package onnxruntime comes in several distributions (onnxruntime-gpu), so it is asked itself."""
    found = {name: version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__, **found}


@dataclass
class _Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[stage] = round(time.monotonic() - start, 3)

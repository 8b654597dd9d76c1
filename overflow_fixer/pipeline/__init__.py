"""The whole tool on one page: scan, plan, build, verify, repair, report. What is tried and what is warned of have pages of their own."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import onnxruntime

from overflow_fixer import __version__
from overflow_fixer.annotations import held_to_types
from overflow_fixer.backends import BACKENDS, choose_backend, tensorrt
from overflow_fixer.backends.tensorrt.exports import check_exports, write_exports
from overflow_fixer.backends.tensorrt.exports.export import Export
from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import FixConfig, check_folders
from overflow_fixer.errors import PlanError
from overflow_fixer.files import need_folder
from overflow_fixer.flops import count_share
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.layernorm_fusion import fuse_layernorms
from overflow_fixer.locks import claim_folder, hold_folder
from overflow_fixer.model_file.malformed import refuse_malformed
from overflow_fixer.pipeline.caveats import find_caveats
from overflow_fixer.pipeline.clock import Clock
from overflow_fixer.pipeline.trying import Tried, is_plain_engine, make_policy, tolerate, try_all
from overflow_fixer.planning.confidence import judge_confidence
from overflow_fixer.planning.plan import check_policy, check_ranges, plan_precision
from overflow_fixer.planning.plan_fit import check_plan
from overflow_fixer.progress import Progress, silent
from overflow_fixer.ranges import Existing, OnOver, collect_ranges, ignore_over, load_ranges
from overflow_fixer.records import (
    Batch,
    CalibrationSet,
    FixReport,
    FusedModel,
    PrecisionPlan,
    RangeTable,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.reports import load_plan, save_plan, write_reports
from overflow_fixer.reports.other_data import say_changed_data, say_other_ranges
from overflow_fixer.reports.staleness import say_replaced_plan
from overflow_fixer.sessions.providers import choose_provider
from overflow_fixer.sessions.settings import use_custom_ops
from overflow_fixer.trials.bench import Bench, check_request
from overflow_fixer.trials.place import check_place, name_built
from overflow_fixer.trials.results import check_results

_LIBRARIES = ("onnx", "onnx-graphsurgeon", "numpy")


@held_to_types
def fix(
    config: FixConfig,
    progress: Progress = silent,
    *,
    over: OnOver = ignore_over,
    existing: Existing = "renew",
    ranges_path: Path | str | None = None,
) -> FixReport:
    """Scan, plan, build, verify and repair one model; write everything to `config.folder`.

    `over` is called with the tensors over the threshold as the scan finds them: see collect_ranges. A
    scan that was stopped goes on; a finished one of something else is replaced; what else is where
    the ranges belong is an error, unless `existing` says otherwise: see resumption.Existing. With `ranges_path`
    nothing is scanned: the plan is made of those ranges (a merge, say), and verified on the data of `config`.

    Returns the report whether verification passed or not: see `FixReport.passed`. Raises a FixError
    for what cannot be done, such as to write where another run does; what had been written by then stays valid.
    """
    clock = Clock()
    ranges_path = None if ranges_path is None else Path(ranges_path)
    check_folders(config.folder, config.calib)
    use_custom_ops(config.custom_ops)
    backend, reason = choose_backend(config.build.backend)
    check_exports(config.build.exports, backend)
    with clock.time("load"):
        graph = load_graph(config.model)
        calibration = open_calibration(config.calib, graph.inputs, config.calibration)
        ranges = None if ranges_path is None else _load_named(ranges_path, config, graph)
    check_request(config, graph, calibration, BACKENDS[backend])
    check_place(config, graph, backend, () if ranges_path is None else (ranges_path,))
    with claim_folder(config.folder):
        fused = _fuse(config, graph, calibration, progress, clock) if config.refuse_layernorm else None
        if fused is not None:
            config, graph = config.with_model(fused.files[0]), load_graph(fused.files[0])
        policy = make_policy(config, backend)
        check_policy(graph, policy)
        with clock.time("scan"):
            if ranges is None:
                ranges = scan(config, graph, calibration, progress, over, existing)
        with need_folder(config.folder):
            with clock.time("plan"), refuse_malformed(graph.path):
                plan = plan_precision(graph, ranges, policy)
            with (
                refuse_malformed(graph.path),
                Bench(config, graph, calibration, ranges, backend, progress) as bench,
            ):
                tried = try_all(config, bench, plan, clock)
                result = _save_plan(config.folder, _ship(bench, tried, calibration))
            read = (ranges_path or config.folder / "ranges.h5", config.folder / "plan.json")
            report = _make_report(config, bench, plan, result, reason, clock, read)
            return _write(report, config, bench, fused)


def _load_named(path: Path, config: FixConfig, graph: Graph) -> RangeTable:
    """Raises PlanError for ranges of the model as it is where it is to be fused: that is another, first to be made and proved."""
    ranges = load_ranges(path)
    if config.refuse_layernorm and graph.has_sha256(ranges.model_sha256, ranges.model_stamp):
        fused = _name_fused(config)
        raise PlanError(
            f"The ranges are of {graph.path} as it stands, and --refuse-layernorm makes another model of it, {fused}, which the plan is "
            "of. Expected the ranges of that. Take out --refuse-layernorm or --ranges; or have it made without --ranges, and name it as "
            "MODEL from then on, in the scans and here."
        )
    return ranges


def _ship(bench: Bench, tried: Tried, calibration: CalibrationSet) -> Tried:
    """What was chosen in its place, with its price, and with a warning where the data changed since they were scanned."""
    best = replace(tried.best, artifact=bench.ship(tried.best.artifact))
    if tried.price is not None:
        tensorrt.note_price(best.artifact.path, tried.price, calibration.source)
    warnings = (*say_changed_data(bench.ranges, calibration), *tried.warnings)
    return replace(tried, best=best, warnings=warnings)


def _name_fused(config: FixConfig) -> Path:
    return config.folder / "fused" / config.model.name


def _fuse(
    config: FixConfig, graph: Graph, calibration: CalibrationSet, progress: Progress, clock: Clock
) -> FusedModel:
    """The model with its LayerNorms fused again, beside what is made of it."""
    with clock.time("fuse"):
        return fuse_layernorms(graph, _name_fused(config), _tell("fuse", calibration, progress))


def _write(report: FixReport, config: FixConfig, bench: Bench, fused: FusedModel | None) -> FixReport:
    """The report, written with the exports that were asked for, and with all files, those of the fused model first."""
    if fused is not None:
        report = replace(report, fused=fused, files=(*fused.files, *report.files))
    try:
        exported = write_exports(
            config.build.exports,
            Export(bench.graph, report.plan, report.artifact, bench.settings, config.folder),
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
    clock = Clock()
    use_custom_ops(config.custom_ops)
    backend, reason = choose_backend(config.build.backend)
    with clock.time("load"):
        graph = load_graph(config.model)
        check_results(config, graph, name_built(config, backend), (ranges_path, plan_path))
        calibration = open_calibration(config.calib, graph.inputs, config.calibration)
        ranges = load_ranges(ranges_path)
        plan = load_plan(plan_path)
        check_plan(graph, plan)
        check_ranges(graph, ranges)
    with Bench(config, graph, calibration, ranges, backend, progress) as bench, clock.time("verify"):
        artifact = bench.find_artifact(plan)
        warnings = [
            *say_changed_data(ranges, calibration),
            *say_other_ranges(plan, ranges, (ranges_path, plan_path)),
        ]
        attempt = Attempt(plan, artifact, bench.verify(artifact, plan))
        naive = _compare_naive(config, bench, attempt, warnings)
        price = tensorrt.read_price(artifact.path) if bench.backend.is_engine else None
        result = Tried(attempt, naive, price=price, warnings=tuple(warnings))
    report = _make_report(config, bench, plan, result, reason, clock, (ranges_path, plan_path))
    return replace(report, files=(*report.files, *write_reports(report, config.folder)))


def _compare_naive(
    config: FixConfig, bench: Bench, attempt: Attempt, warnings: list[str]
) -> Verification | None:
    """How plain FP16 fares; None where that is not asked for, or cannot be built. An engine of a plan without pins is that."""
    if not config.build.compare:
        return None
    if is_plain_engine(bench, attempt.plan):
        return attempt.verification
    with tolerate("Plain FP16 was not compared", warnings):
        return bench.try_naive()[1]
    return None


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


def _save_plan(folder: Path, result: Tried) -> Tried:
    """Put the plan of what was chosen into its place; with a warning, where it takes that of another which no run verified."""
    plan = result.best.plan
    warnings = (*result.warnings, *say_replaced_plan(folder, plan))
    save_plan(plan, folder / "plan.json")
    return replace(result, warnings=warnings)


def _make_report(
    config: FixConfig,
    bench: Bench,
    first_plan: PrecisionPlan,
    result: Tried,
    reason: str,
    clock: Clock,
    stages: tuple[Path, ...],
) -> FixReport:
    """`stages` are the files of the stages before: of the ranges and of the plan."""
    graph, ranges, best = bench.graph, bench.ranges, result.best
    with clock.time("caveats"):
        warnings = (*result.warnings, *find_caveats(config, bench, result))
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
        files=(*stages, *best.artifact.files),
        durations_seconds=clock.seconds,
        warnings=warnings,
        price=result.price,
        fp32_engine=result.fp32,
        confidence=judge_confidence(graph, ranges, best.plan, make_policy(config, bench.backend_name)),
    )


def _find_versions() -> dict[str, str]:
    """The package onnxruntime comes in several distributions (onnxruntime-gpu), so it is asked itself."""
    found = {name: version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__, **found}

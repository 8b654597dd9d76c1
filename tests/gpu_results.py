"""What the GPU tests measured, as Markdown: what it was measured on, then one table a network."""

from __future__ import annotations

import ctypes
import datetime
import math
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from overflow_fixer import __version__
from overflow_fixer.backends.tensorrt import FIXED, FP32, FP32_EXACT, NAIVE, require
from overflow_fixer.records import Engine, FixReport, Latency, PinState, Verification
from overflow_fixer.verification.comparison import worst_snr_db

_PACKAGES = "tensorrt onnxruntime onnx onnx-graphsurgeon numpy h5py pydantic polygraphy".split()
_STATES: tuple[PinState, ...] = ("honoured", "not visible", "not honoured", "no layer")
_INTRODUCTION = """\
# Engines on a real GPU

Written by `GPU_RESULTS=docs/gpu-results.md python -m pytest -m gpu tests/gpu`. Each network is fixed once, by
the main job with `--backend tensorrt`. SNR is against ONNX Runtime FP32, of the worst output in its worst batch.
Latencies are GPU time of one inference; the four engines of a network ran in turns."""


@dataclass(frozen=True)
class Surroundings:
    """What was measured on, and when."""

    date: str
    engines: str
    driver: str
    cuda: str
    python: str
    packages: Mapping[str, str]


def read_surroundings() -> Surroundings:
    """What this machine has. Raises BackendError where engines cannot be built here."""
    return Surroundings(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        engines=require(),
        driver=_read_driver(),
        cuda=_read_cuda(),
        python=platform.python_version(),
        packages={"overflow-fixer": __version__, **dict(_read_versions())},
    )


def format_results(surroundings: Surroundings, reports: Mapping[str, FixReport]) -> str:
    """The whole page, in the order of `reports`."""
    packages = ", ".join(f"{name} {number}" for name, number in surroundings.packages.items())
    head = (
        f"{surroundings.date}: {surroundings.engines}, driver {surroundings.driver} (CUDA {surroundings.cuda}), "
        f"Python {surroundings.python}, {packages}."
    )
    sections = (f"## {name}\n\n{format_table(report)}" for name, report in reports.items())
    return "\n\n".join((_INTRODUCTION, head, *sections)) + "\n"


def format_table(report: FixReport) -> str:
    """One network's figures; what the report does not have is said to be not measured."""
    rows = [*_plan_rows(report), *_verdict_rows(report), *_price_rows(report), *_cost_rows(report)]
    cells = (f"| {_escape(what)} | {_escape(found)} |" for what, found in rows)
    return "\n".join(("| what | result |", "|---|---|", *cells))


def _plan_rows(report: FixReport) -> Iterator[tuple[str, str]]:
    fp16, fp32 = len(report.artifact.fp16_nodes), len(report.artifact.fp32_nodes)
    yield "nodes that compute floats", f"{fp16 + fp32}: {fp16} in FP16, {fp32} in FP32"
    states = Counter(pin.state for pin in _engine(report).pins)
    told = ", ".join(f"{states[state]} {state}" for state in _STATES if states[state])
    yield "pins", f"{len(report.plan.pins)}{f': {told}' if told else ''}"
    yield "clamped masks", str(len(report.plan.clamps))


def _verdict_rows(report: FixReport) -> Iterator[tuple[str, str]]:
    yield "plain FP16", _say_verdict(report.naive)
    yield "fixed", _say_verdict(report.fixed)
    yield "FP32 engine, TF32 off", _say_verdict(report.fp32_engine)


def _price_rows(report: FixReport) -> Iterator[tuple[str, str]]:
    latencies = {} if report.price is None else {found.name: found for found in report.price.latencies}
    for name in (NAIVE, FIXED, FP32, FP32_EXACT):
        yield f"{name}, p50 / p95", _say_latency(latencies.get(name))
    engine = _engine(report)
    share = math.nan if report.price is None else report.price.fp32_time_share
    time = "share of time not measured" if math.isnan(share) else f"{share:.0%} of the time"
    yield "fixed, in FP32", f"{engine.fp32_layers} of {engine.layers} layers, {time}"
    hidden = math.nan if report.price is None else report.price.opaque_time_share
    time = "share of time not measured" if math.isnan(hidden) else f"{hidden:.0%} of the time"
    yield "fixed, in regions that show only their borders", f"{engine.opaque_layers} layers, {time}"
    yield "fixed, layers that only convert", str(engine.reformat_layers)


def _cost_rows(report: FixReport) -> Iterator[tuple[str, str]]:
    engine, rounds = _engine(report), len(report.rounds)
    yield "builds of the plan", f"{engine.builds} in {engine.build_seconds:.1f} s, {rounds} rounds of repair"
    yield "the whole job", f"{sum(report.durations_seconds.values()):.0f} s"


def _engine(report: FixReport) -> Engine:
    assert report.artifact.engine is not None
    return report.artifact.engine


def _say_verdict(found: Verification | None) -> str:
    if found is None:
        return "not measured"
    errors = [verdict.error for verdict in found.outputs]
    ratios = [worst_snr_db(error) for error in errors if error.is_float and error.compared]
    lost, total = sum(e.mismatched for e in errors), sum(e.element_count for e in errors)
    said = [f"SNR {min(ratios):.1f} dB"] if ratios else []
    said += [f"{lost} of {total} values do not match"] if lost else []
    return ", ".join(("right" if found.passed else "**wrong**", *said))


def _say_latency(found: Latency | None) -> str:
    return "not measured" if found is None else f"{found.p50_ms:.3f} / {found.p95_ms:.3f} ms"


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _read_versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _read_driver() -> str:
    told = _run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    if told:
        return told.splitlines()[0].strip()
    info = Path("/proc/driver/nvidia/version")
    found = re.search(r"Module\D*?(?:x86_64\s+)?(\d+\.[\d.]+)", info.read_text()) if info.exists() else None
    return found.group(1) if found else "unknown"


def _run(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _read_cuda() -> str:
    """The newest CUDA that the driver serves."""
    number = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"

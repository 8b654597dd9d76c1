"""What a scan costs on a GPU, against plain inference there: `python tests/gpu/measure_scan.py [MODEL...]`.

Started from the repository's root, with the root on PYTHONPATH. Models are those of benchmarks.models. For
each: the time from the model's file to the last result over some batches, and of a batch once warm, for
plain inference (ONNX Runtime's own settings; ours, in true FP32, with optimisation on and off) and for the
scan, in turns; what crosses between GPU and host in a batch; and how far the values are from the CPU's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.models import MODELS, find_model
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, RangeTable
from overflow_fixer.sessions.providers import EXECUTION_PROVIDERS, Provider, choose_provider
from overflow_fixer.sessions.session import open_session, run_session
from tests.cpu_nodes import count_on_cpu, record_places

_WARM = 2
"""Batches that are left out of the time of a batch."""
_INFERENCE_SESSION = onnxruntime.InferenceSession


@dataclass(frozen=True)
class Batches:
    """A CalibrationSet in memory, drawn by the model's benchmark."""

    all: tuple[Batch, ...]
    source: str = "drawn"
    synthetic: bool = True
    fingerprint: str = ""

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)


@dataclass(frozen=True)
class Timed:
    """Seconds of the whole, and of each batch."""

    total: float
    batches: tuple[float, ...]

    @property
    def warm(self) -> float:
        return statistics.median(self.batches[_WARM:])


Task = Callable[[Path, Batches, Provider], Timed]


def time_plain(open_one: Callable[[Path, Provider], Any]) -> Task:
    def run(model: Path, batches: Batches, provider: Provider) -> Timed:
        start = time.perf_counter()
        session = open_one(model, provider)
        ends = [time.perf_counter()]
        for batch in batches:
            run_session(session, None, batch)
            ends.append(time.perf_counter())
        return Timed(ends[-1] - start, tuple(np.diff(ends)))

    return run


def time_scan(model: Path, batches: Batches, provider: Provider) -> Timed:
    ends: list[float] = []
    start = time.perf_counter()
    scan(load_graph(model), batches, provider, lambda done, total: ends.append(time.perf_counter()))
    return Timed(time.perf_counter() - start, tuple(np.diff(ends)))


def scan(graph: Graph, batches: Batches, provider: Provider, progress: Any = None) -> RangeTable:
    more = {} if progress is None else {"progress": progress}
    return collect_ranges(graph, batches, provider=provider, **more)


def open_as_it_comes(model: Path, provider: Provider) -> Any:
    """ONNX Runtime's own settings: TF32, convolutions chosen by timing them, optimisation on."""
    names = [EXECUTION_PROVIDERS[provider], EXECUTION_PROVIDERS["cpu"]]
    return _INFERENCE_SESSION(str(model), providers=list(dict.fromkeys(names)))


TASKS: dict[str, Task] = {
    "plain, as it comes": time_plain(open_as_it_comes),
    "plain FP32, optimised": time_plain(
        lambda model, provider: open_session(model, model.parent, optimize=True, provider=provider)
    ),
    "plain FP32, not optimised": time_plain(
        lambda model, provider: open_session(model, model.parent, provider=provider)
    ),
    "scan": time_scan,
}


class Recorded(_INFERENCE_SESSION):  # type: ignore[misc, valid-type]
    """A session with a profile and recorded places, that counts what its runs are fed and give back."""

    opened: list[Recorded] = []  # noqa: RUF012

    def __init__(self, source: Any, options: Any, **settings: Any) -> None:
        record_places(options)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.mkdtemp()) / "profile")
        super().__init__(source, options, **settings)
        self.runs: list[tuple[int, int]] = []
        self.opened.append(self)

    def run(self, outputs: Any, feeds: Any, run_options: Any = None) -> Any:
        found = super().run(outputs, feeds, run_options)
        fed = sum(array.nbytes for array in feeds.values())
        self.runs.append((fed, sum(array.nbytes for array in found)))
        return found


def describe_traffic(graph: Graph, batches: Batches, provider: Provider) -> str:
    """Of one batch, by the session that ran it last: bytes fed, given back, and copied in between."""
    Recorded.opened.clear()
    onnxruntime.InferenceSession = Recorded
    try:
        scan(graph, Batches(batches.all[:1]), provider)
    finally:
        onnxruntime.InferenceSession = _INFERENCE_SESSION
    session = next(session for session in reversed(Recorded.opened) if session.runs)
    fed, given = session.runs[-1]
    copied = Counter[str]()
    for event in json.loads(Path(session.end_profiling()).read_text()):
        operator = event.get("args", {}).get("op_name", "")
        if operator.startswith("Memcpy"):
            copied[operator] += int(event["args"].get("output_size", 0))
    on_cpu = dict(count_on_cpu(session) or {}) if provider != "cpu" else {}
    return (
        f"One batch: {fed:,} bytes fed, {given:,} bytes given back; copied between nodes: {dict(copied)}; "
        f"nodes on the CPU: {on_cpu}; runs {[len(s.runs) for s in Recorded.opened]}."
    )


def describe_values(graph: Graph, batches: Batches, provider: Provider) -> str:
    """The tensors that are furthest from the CPU's, relative to their own largest magnitude."""
    expected, found = scan(graph, batches, "cpu"), scan(graph, batches, provider)
    pairs = list(zip(expected.ranges, found.ranges, strict=True))
    off = sorted(((_distance(a, b), a.tensor) for a, b in pairs), reverse=True)
    counted = ("element_count", "nan_count", "inf_count", "over_fp16_count")
    unequal = [a.tensor for a, b in pairs if any(getattr(a, c) != getattr(b, c) for c in counted)]
    worst = ", ".join(f"{tensor} {distance:.2g}" for distance, tensor in off[:4])
    exact = sum(distance == 0 for distance, _ in off)
    return (
        f"{len(pairs)} tensors, {exact} exactly the CPU's; furthest: {worst}; counts differ: {unequal[:5]}."
    )


def _distance(one: Any, other: Any) -> float:
    ends = np.array([[found.max_abs, found.min, found.max] for found in (one, other)])
    scale = one.max_abs if one.max_abs > 0 and np.isfinite(one.max_abs) else 1.0
    return float(np.nan_to_num(np.abs(ends[0] - ends[1]) / scale).max())


def measure(name: str, rounds: int, count: int, provider: Provider) -> Iterator[str]:
    benchmark = find_model(name)
    rng = np.random.default_rng(0)
    batches = Batches(tuple(Batch(f"batch {i}", benchmark.draw(rng)) for i in range(count)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(benchmark.build(), path)
        TASKS["plain FP32, not optimised"](path, batches, provider)  # the GPU's libraries load once
        times: dict[str, list[Timed]] = {task: [] for task in TASKS}
        for _ in range(rounds):
            for task, run in TASKS.items():
                times[task].append(run(path, batches, provider))
        on_cpu = [time_scan(path, batches, "cpu")] if provider != "cpu" else []
        yield f"### {name}: {count} batches, median of {rounds} rounds\n"
        yield from _table({**times, **({"scan on the CPU, once": on_cpu} if on_cpu else {})})
        graph = load_graph(path)
        yield "\n" + describe_traffic(graph, batches, provider)
        yield describe_values(graph, batches, provider) + "\n"


def _table(times: dict[str, Sequence[Timed]]) -> Iterator[str]:
    yield "| | whole, s | a warm batch, ms | whole / not optimised | batch / not optimised |"
    yield "|---|---|---|---|---|"
    found = {t: (_median(x.total for x in all_), _median(x.warm for x in all_)) for t, all_ in times.items()}
    whole, warm = found["plain FP32, not optimised"]
    for task, (total, batch) in found.items():
        yield f"| {task} | {total:.2f} | {1e3 * batch:.2f} | {total / whole:.2f} | {batch / warm:.2f} |"


def _median(values: Iterator[float]) -> float:
    return statistics.median(list(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--provider", choices=list(EXECUTION_PROVIDERS), default="cuda")
    asked = parser.parse_args()
    chosen = choose_provider(asked.provider)
    print(f"onnxruntime {onnxruntime.__version__} on {chosen.provider}; {chosen.lack or _gpu()}\n")
    for name in asked.models:
        for line in measure(name, asked.rounds, asked.batches, chosen.provider):
            print(line, flush=True)


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except OSError:
        return "the GPU is not told"


if __name__ == "__main__":
    main()

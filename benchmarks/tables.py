"""Measurements to Markdown tables: medians, and ratios taken round by round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benchmarks.measure import Measurement
from benchmarks.rounds import Runs
from benchmarks.scans import Numbers

DEFAULT, UNOPTIMIZED, EXACT = "plain", "plain, optimisation off", "by hand"
VERIFICATION, SPLIT = "verification", "scan split"
_STAGES = ("load", "scan", "instrument", "plan", "emit", "simulate")
_STAGE_HEADS = ("load", "scan", "of which instrument", "plan", "emit", "simulate")
_PARTS = ("load", "instrument", "open", "run", "other")
_MIB = 2**20


def scan_table(runs: Runs, few_runs: Runs, few: int) -> str:
    """Time and peak memory of each scan against plain inference, and how many of its values are exact.

    `few_runs`, on the first `few` batches alone, come below, held against the plain inference among them.
    """
    head = ["", "seconds", "× plain", "× plain, off", "peak MiB", "× plain", "× plain, off", "imports MiB"]
    rows = [*_scan_rows(runs, ""), *_scan_rows(few_runs, _suffix(few))]
    return markdown([*head, "values equal"], rows)


def summary_table(by_model: Mapping[str, Runs], few_by_model: Mapping[str, Runs], few: int) -> str:
    """Time and peak memory of each way to scan on each model, as ratios to plain inference."""
    rows = [*_ratio_rows(by_model, ""), *_ratio_rows(few_by_model, _suffix(few))]
    return markdown(["seconds, MiB × plain", *by_model], rows)


def split_table(runs_by_model: Mapping[str, Runs]) -> str:
    """Seconds of each part of our scan."""
    rows = [[name, *_part_cells(runs[SPLIT])] for name, runs in runs_by_model.items()]
    return markdown(["model", *_PARTS, "sum"], rows)


def verification_table(runs_by_model: Mapping[str, Runs]) -> str:
    """Time and memory of the simulation and the reference together against plain inference."""
    head = ["model", "seconds", "× plain", "× plain, off", "peak MiB", "× plain", "× plain, off"]
    rows = [[name, *_cost(runs[VERIFICATION], runs)[:6]] for name, runs in runs_by_model.items()]
    return markdown(head, rows)


def network_table(runs_by_network: Mapping[str, Runs]) -> str:
    """Time and peak memory of our scan against plain inference with optimisation off, least ratio of times first."""
    head = ["", "plain, optimisation off", "× that", "peak MiB", "× that"]
    by_time = sorted(runs_by_network, key=lambda name: _median_ratio(runs_by_network[name]))
    return markdown(head, [[name, *_network_cells(runs_by_network[name])] for name in by_time])


def size_table(runs_by_nodes: Mapping[int, Runs], stages: str, peers: Sequence[str]) -> str:
    """Seconds by number of nodes: each of our stages, then load + emit against the peers' conversions."""
    rows = [
        [f"{nodes:,}", *_stage_cells(runs[stages]), *(_seconds(runs[peer]) for peer in peers)]
        for nodes, runs in runs_by_nodes.items()
    ]
    return markdown(["nodes", *_STAGE_HEADS, "**load + emit**", *peers], rows)


def count_table(runs_by_count: Mapping[int, Runs], tasks: Sequence[str]) -> str:
    """Peak memory of each task by number of batches."""
    head = ["peak MiB", *(f"{count:,} batch{'es' * (count > 1)}" for count in runs_by_count)]
    rows = [[task, *(_peak(runs[task]) for runs in runs_by_count.values())] for task in tasks]
    return markdown(head, rows)


def disturbance(all_runs: Iterable[Runs]) -> str:
    """A sentence on what other programs took of the machine during the measurements."""
    shares = [one.others_share for runs in all_runs for found in runs.values() for one in found]
    return (
        f"Meanwhile other programs took {median(shares):.0%} of the cores' time (median of {len(shares)} "
        f"processes; at most {max(shares):.0%})."
    )


def ratios(found: Sequence[Measurement], floor: Sequence[Measurement], field: str) -> list[float]:
    """The ratio to the floor in each round that has both."""
    pairs = zip(found, floor, strict=False)
    return [getattr(a, field) / getattr(b, field) for a, b in pairs if not (a.failure or b.failure)]


def count_equal(found: Mapping[str, float], exact: Mapping[str, float]) -> tuple[int, float]:
    """How many of the exact values were found bit for bit, and the largest relative error of the others."""
    off = [name for name, value in exact.items() if found.get(name) != value]
    errors = [abs(found[name] - exact[name]) / abs(exact[name]) for name in off if name in found]
    return len(exact) - len(off), max(errors, default=0.0)


def _suffix(few: int) -> str:
    return f", {few} batch{'es' * (few > 1)}"


def _ratio_rows(by_model: Mapping[str, Runs], suffix: str) -> list[list[str]]:
    tasks = next(iter(by_model.values()))
    return [[f"{task}{suffix}", *(_ratio_cell(task, runs) for runs in by_model.values())] for task in tasks]


def _ratio_cell(task: str, runs: Runs) -> str:
    """Both medians; what they are ratios of in plain inference's own row; what went wrong where it did."""
    found = runs[task]
    good = [one for one in found if not one.failure]
    if not good:
        return _failure(found)
    if task == DEFAULT:
        seconds, peak = median(one.seconds for one in good), median(one.peak_bytes for one in good)
        return f"{seconds:.2f} s, {peak / _MIB:.0f} MiB"
    pairs = [ratios(found, runs[DEFAULT], field) for field in ("seconds", "peak_bytes")]
    return ", ".join(f"{median(values):.2f}" for values in pairs if values)


def _scan_rows(runs: Runs, suffix: str) -> list[list[str]]:
    return [
        [f"{task}{suffix}", *_cost(found, runs), _exact(found, runs[EXACT])] for task, found in runs.items()
    ]


def _cost(found: Sequence[Measurement], runs: Runs) -> list[str]:
    good = [one for one in found if not one.failure]
    if not good:
        return [_failure(found), *[""] * 6]
    cells = [f"{median(one.seconds for one in good):.2f}"]
    floors = [runs.get(floor, []) for floor in (DEFAULT, UNOPTIMIZED)]
    cells += [_ratio(ratios(found, floor, "seconds")) for floor in floors]
    cells.append(f"{median(one.peak_bytes for one in good) / _MIB:.0f}")
    cells += [
        f"{median(values):.2f}" if (values := ratios(found, floor, "peak_bytes")) else "" for floor in floors
    ]
    return [*cells, f"{median(one.imported_bytes for one in good) / _MIB:.0f}"]


def _ratio(values: Sequence[float]) -> str:
    """The median and, in brackets, the least and the largest."""
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else ""


def _exact(found: Sequence[Measurement], by_hand: Sequence[Measurement]) -> str:
    numbers = next((one.numbers for one in found if one.numbers), None)
    exact = next((one.numbers for one in by_hand if one.numbers), None)
    if not numbers or not exact:
        return ""
    equal, error = count_equal(numbers, exact)
    missing = len(exact.keys() - numbers.keys())
    notes = [f"{missing} not seen"] * bool(missing) + [f"others within {error:.0e}"] * bool(error)
    return f"{equal}/{len(exact)}" + (f" ({', '.join(notes)})" if notes else "")


def _median_ratio(runs: Runs) -> float:
    """Of the times; infinite where one of the two failed."""
    values = ratios(runs["overflow_fixer"], runs[UNOPTIMIZED], "seconds")
    return median(values) if values else math.inf


def _network_cells(runs: Runs) -> list[str]:
    found, floor = runs["overflow_fixer"], runs[UNOPTIMIZED]
    seconds, peaks = (ratios(found, floor, field) for field in ("seconds", "peak_bytes"))
    return [
        f"{_seconds(floor)} s",
        _ratio(seconds) or _failure([*floor, *found]),
        _peak(floor),
        f"{median(peaks):.2f}" if peaks else "",
    ]


def _stage_cells(found: Sequence[Measurement]) -> list[str]:
    """Seconds of each stage, then of load and emit together."""
    good = [one.numbers for one in found if not one.failure]
    if not good:
        return [_failure(found), *[""] * len(_STAGES)]
    medians = _medians(good, _STAGES)
    cells = [f"{seconds:.2f}" for seconds in medians.values()]
    return [*cells, f"**{medians['load'] + medians['emit']:.2f}**"]


def _part_cells(found: Sequence[Measurement]) -> list[str]:
    good = [one.numbers for one in found if not one.failure]
    if not good:
        return [_failure(found), *[""] * len(_PARTS)]
    seconds = _medians(good, _PARTS).values()
    return [*(f"{value:.2f}" for value in seconds), f"{sum(seconds):.2f}"]


def _medians(found: Sequence[Numbers], names: Sequence[str]) -> Numbers:
    return {name: median(numbers[name] for numbers in found) for name in names}


def _peak(found: Sequence[Measurement]) -> str:
    good = [one.peak_bytes for one in found if not one.failure]
    return f"{median(good) / _MIB:.0f}" if good else _failure(found)


def _seconds(found: Sequence[Measurement]) -> str:
    good = [one.seconds for one in found if not one.failure]
    return f"{median(good):.2f}" if good else _failure(found)


def _failure(found: Sequence[Measurement]) -> str:
    return next((one.failure for one in found if one.failure), "not run")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row).replace("\n", " ") + " |" for row in (head, aligned, *rows))

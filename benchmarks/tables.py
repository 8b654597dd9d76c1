"""Measurements to Markdown tables: medians, and ratios taken round by round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from benchmarks.measure import Measurement
from benchmarks.rounds import Runs

DEFAULT, UNOPTIMIZED, EXACT, VERIFICATION = (
    "plain",
    "plain, optimisation off",
    "by hand",
    "verification",
)
_STAGES = ("load", "scan", "plan", "emit", "simulate")
_MIB = 2**20


def scan_table(runs: Runs) -> str:
    """Time and peak memory of each scan against plain inference, and how many of its values are exact."""
    head = ["", "seconds", "× plain", "× plain, off", "peak MiB", "× plain", "× plain, off", "imports MiB"]
    rows = [
        [task, *_cost(found, runs), _exact(found, runs[EXACT])]
        for task, found in runs.items()
        if task != VERIFICATION
    ]
    return _markdown([*head, "values equal"], rows)


def verification_table(runs_by_model: Mapping[str, Runs]) -> str:
    """Time and memory of the simulation and the reference together against plain inference."""
    head = ["model", "seconds", "× plain", "× plain, off", "peak MiB", "× plain", "× plain, off"]
    rows = [[name, *_cost(runs[VERIFICATION], runs)[:6]] for name, runs in runs_by_model.items()]
    return _markdown(head, rows)


def size_table(runs_by_nodes: Mapping[int, Runs], stages: str, peers: Sequence[str]) -> str:
    """Seconds by number of nodes: each of our stages, then load + emit against the peers' conversions."""
    rows = [
        [f"{nodes:,}", *_stage_cells(runs[stages]), *(_seconds(runs[peer]) for peer in peers)]
        for nodes, runs in runs_by_nodes.items()
    ]
    return _markdown(["nodes", *_STAGES, "**load + emit**", *peers], rows)


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


def _cost(found: Sequence[Measurement], runs: Runs) -> list[str]:
    good = [one for one in found if not one.failure]
    if not good:
        return [_failure(found), *[""] * 6]
    cells = [f"{median(one.seconds for one in good):.2f}"]
    cells += [_ratio(ratios(found, runs[floor], "seconds")) for floor in (DEFAULT, UNOPTIMIZED)]
    cells.append(f"{median(one.peak_bytes for one in good) / _MIB:.0f}")
    cells += [
        f"{median(values):.2f}" if (values := ratios(found, runs[floor], "peak_bytes")) else ""
        for floor in (DEFAULT, UNOPTIMIZED)
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


def _stage_cells(found: Sequence[Measurement]) -> list[str]:
    """Seconds of each stage, then of load and emit together."""
    good = [one.numbers for one in found if not one.failure]
    if not good:
        return [_failure(found), *[""] * len(_STAGES)]
    medians = {stage: median(numbers[stage] for numbers in good) for stage in _STAGES}
    cells = [f"{seconds:.2f}" for seconds in medians.values()]
    return [*cells, f"**{medians['load'] + medians['emit']:.2f}**"]


def _seconds(found: Sequence[Measurement]) -> str:
    good = [one.seconds for one in found if not one.failure]
    return f"{median(good):.2f}" if good else _failure(found)


def _failure(found: Sequence[Measurement]) -> str:
    return next((one.failure for one in found if one.failure), "not run")


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row).replace("\n", " ") + " |" for row in (head, aligned, *rows))

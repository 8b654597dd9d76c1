"""Ratios, medians and failures come out as what they are."""

from __future__ import annotations

import math

from benchmarks.measure import Measurement
from benchmarks.neighbours import CpuTimes, others_share, read_cpu_times
from benchmarks.tables import (
    count_equal,
    count_table,
    network_table,
    ratios,
    scan_table,
    size_table,
    split_table,
    summary_table,
)


def test_others_are_what_was_busy_and_not_ours() -> None:
    before = CpuTimes(busy=10, total=100, ours=5)
    assert others_share(before, CpuTimes(busy=16, total=120, ours=7)) == 0.2
    assert others_share(before, CpuTimes(busy=12, total=120, ours=8)) == 0.0
    now = read_cpu_times()
    assert 0 < now.busy <= now.total


def test_ratios_are_taken_round_by_round_and_failures_left_out() -> None:
    floor = [Measurement(seconds=1), Measurement(seconds=2), Measurement(seconds=4)]
    found = [Measurement(seconds=3), Measurement(failure="over 1 s"), Measurement(seconds=4)]
    assert ratios(found, floor, "seconds") == [3, 1]


def test_values_count_as_equal_only_bit_for_bit() -> None:
    exact = {"a": 1.0, "b": 2.0, "c": 3.0}
    equal, error = count_equal({"a": 1.0, "b": math.nextafter(2.0, 3)}, exact)
    assert equal == 1
    assert 0 < error < 1e-15


def test_a_failure_is_told_in_its_row() -> None:
    good = [Measurement(1.0, 2**20, 2**19, {"x": 1.0})]
    runs = {"plain": good, "plain, optimisation off": good, "by hand": good}
    runs["Polygraphy API"] = [Measurement(failure="not installed (No module)")]
    table = scan_table(runs, {}, 1)
    assert "| Polygraphy API | not installed (No module) |" in table
    assert "| by hand | 1.00 | 1.00 (1.00–1.00) |" in table
    assert _is_even(table)


def test_a_scan_of_few_batches_is_held_against_plain_inference_of_as_few() -> None:
    runs = {task: [Measurement(8.0, 2**20)] for task in ("plain", "plain, optimisation off", "by hand")}
    exact = {"x": 2.0, "y": 1.0}
    few = {
        "plain": [Measurement(2.0, 2**20)],
        "by hand": [Measurement(4.0, 2**21, numbers=exact)],
        "Polygraphy CLI": [Measurement(20.0, 2**23, numbers={"x": 2.0})],
    }
    table = scan_table(runs, few, 1)
    row = "| Polygraphy CLI, 1 batch | 20.00 | 10.00 (10.00–10.00) |  | 8 | 8.00 |  | 0 | 1/2 (1 not seen) |"
    assert row in table.splitlines()
    assert _is_even(table)


def test_one_table_has_every_way_on_every_model() -> None:
    plain, scan = [Measurement(2.0, 2**21)], [Measurement(3.0, 2**22)]
    failed = [Measurement(failure="over 9 s")]
    all_runs = {"a": {"plain": plain, "scan": scan}, "b": {"plain": plain, "scan": failed}}
    few_runs = {"a": {"plain": plain, "slow": scan}, "b": {"plain": failed, "slow": scan}}
    assert summary_table(all_runs, few_runs, 2).splitlines()[2:] == [
        "| plain | 2.00 s, 2 MiB | 2.00 s, 2 MiB |",
        "| scan | 1.50, 2.00 | over 9 s |",
        "| plain, 2 batches | 2.00 s, 2 MiB | over 9 s |",
        "| slow, 2 batches | 1.50, 2.00 |  |",
    ]


def test_the_parts_of_a_scan_are_medians_and_their_sum() -> None:
    parts = {"load": 0.5, "instrument": 0.25, "open": 1.0, "run": 2.0, "other": 0.25}
    runs = {"scan split": [Measurement(4.0, 1, 1, parts), Measurement(4.0, 1, 1, {**parts, "run": 3.0})]}
    assert "| yolo | 0.50 | 0.25 | 1.00 | 2.50 | 0.25 | 4.50 |" in split_table({"yolo": runs})


def test_memory_by_number_of_batches_has_a_column_for_each() -> None:
    one, many = [Measurement(1.0, 2**20)], [Measurement(1.0, 3 * 2**20), Measurement(1.0, 5 * 2**20)]
    failed = [Measurement(failure="over the memory limit")]
    table = count_table({1: {"a": one, "b": one}, 1000: {"a": many, "b": failed}}, ["a", "b"])
    assert table.splitlines()[0] == "| peak MiB | 1 batch | 1,000 batches |"
    assert table.splitlines()[2:] == ["| a | 1 | 4 |", "| b | 1 | over the memory limit |"]


def test_conversion_is_load_and_emit_and_a_peer_that_failed_says_so() -> None:
    stages = {"load": 1.0, "scan": 4.0, "instrument": 2.0, "plan": 0.5, "emit": 3.0, "simulate": 1.5}
    runs = {"ours": [Measurement(8.0, 1, 1, stages)], "peer": [Measurement(failure="over 9 s")]}
    table = size_table({5000: runs}, "ours", ["peer"])
    assert "| 5,000 | 1.00 | 4.00 | 2.00 | 0.50 | 3.00 | 1.50 | **4.00** | over 9 s |" in table
    assert _is_even(table)


def _is_even(table: str) -> bool:
    return len({line.count("|") for line in table.splitlines()}) == 1


def test_networks_come_in_the_order_of_their_ratios_and_failures_last() -> None:
    plain = [Measurement(2.0, 2**20), Measurement(4.0, 2**20)]
    cheap = {"plain, optimisation off": plain, "overflow_fixer": [Measurement(2.0, 2**21)] * 2}
    dear = {"plain, optimisation off": plain, "overflow_fixer": [Measurement(3.0, 2**20)] * 2}
    broken = {"plain, optimisation off": plain, "overflow_fixer": [Measurement(failure="over 1 s")]}
    table = network_table({"broken": broken, "dear": dear, "cheap": cheap})
    rows = table.splitlines()[2:]
    assert rows == [
        "| cheap | 3.00 s | 0.75 (0.50–1.00) | 1 | 2.00 |",
        "| dear | 3.00 s | 1.12 (0.75–1.50) | 1 | 1.00 |",
        "| broken | 3.00 s | over 1 s | 1 |  |",
    ]
    assert _is_even(table)

"""Models run in processes of their own: whatever one of them does, the rest goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from zoo_models import AddModel, make_entry

from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import ZooOutcome, load_outcome
from overflow_fixer.zoo.pool import Machine, Pool, estimate_memory_gib, order
from overflow_fixer.zoo.running import Running

MACHINE = Machine(workers=2, threads=1, memory_gib=8.0)


def _run(*entries: ZooEntry, machine: Machine = MACHINE) -> dict[str, ZooOutcome]:
    return {found.name: found for found in Pool(machine).run(entries) if found is not None}


def _spoil(content: bytes) -> bytes:
    """A model that is refused at once, for tests of who runs when."""
    return b"no model"


def _save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(path.with_suffix(".npz"), x=np.ones(4, np.float32))
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A loop of 2^40 iterations."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <int64 trips = {1099511627776}> {
        y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[4] s) => (bool c2, float[4] t) { c2 = Identity (c) t = Tanh (s) }
        >
    }"""
    return _save(tmp_path / "endless.onnx", text)


@pytest.fixture
def greedy(tmp_path: Path) -> Path:
    """Three tensors of 800 MB each."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float y) <int64[2] shape = {50000000, 4}> {
        a = Expand (x, shape)
        b = Tanh (a)
        c = Mul (a, b)
        y = ReduceSum <keepdims = 0> (c)
    }"""
    return _save(tmp_path / "greedy.onnx", text)


def test_good_and_broken_models_each_have_their_outcome(add_model: AddModel) -> None:
    good = make_entry(add_model("good"))
    torn = make_entry(add_model("torn", lambda content: content[: len(content) // 2]))
    foreign = make_entry(add_model("foreign", lambda content: b"not a model"))
    dataless = make_entry(add_model("dataless"))
    Path(dataless.config.calib).write_bytes(b"not an npz file")
    outcomes = _run(good, torn, foreign, dataless)
    assert {name: (found.kind, found.exit_code) for name, found in outcomes.items()} == {
        "good": ("fixed", 0),
        "torn": ("failed", 3),
        "foreign": ("failed", 3),
        "dataless": ("failed", 4),
    }
    assert all("Expected" in outcomes[name].message for name in ("torn", "foreign", "dataless"))
    result = outcomes["good"].result
    assert result is not None
    assert result.artifact.is_file()
    assert result.pins == ("Mul_b", "Mul_y")
    assert result.naive_mismatched
    assert (result.fixed_mismatched, result.fixed_snr_db > 30) == (0, True)
    assert (good.folder / "report.json").is_file()
    assert outcomes["good"].peak_memory_bytes > 10_000_000
    for name, found in outcomes.items():
        assert load_outcome(found.folder) == found, name


def test_a_hanging_model_is_ended_and_the_rest_goes_on(add_model: AddModel, endless: Path) -> None:
    hanging = replace(make_entry(endless), timeout_minutes=0.05)
    outcomes = _run(hanging, make_entry(add_model("good")))
    assert (outcomes["endless"].kind, outcomes["endless"].exit_code) == ("timed_out", None)
    assert "after 0.05 minutes" in outcomes["endless"].message
    assert outcomes["good"].passed
    assert not _children()


def test_a_model_over_its_memory_is_ended(add_model: AddModel, greedy: Path) -> None:
    outcomes = _run(replace(make_entry(greedy), memory_gib=0.5), make_entry(add_model("good")))
    assert outcomes["greedy"].kind == "out_of_memory"
    assert outcomes["greedy"].peak_memory_bytes > 2**29
    assert "more than 0.5 GiB" in outcomes["greedy"].message
    assert outcomes["good"].passed


def _strike(running: list[Running], number: int) -> None:
    """Send a signal to the first that runs, once it has begun to work."""
    for one in running:
        if one.read_progress() is not None:
            with suppress(ProcessLookupError):
                os.kill(one.process.pid, number)
            return


@pytest.mark.parametrize(
    ("number", "kind", "retries", "attempts"),
    [
        (signal.SIGSEGV, "crashed", 0, 1),
        (signal.SIGABRT, "crashed", 2, 3),
        (signal.SIGKILL, "out_of_memory", 2, 1),
    ],
)
def test_a_crash_is_tried_again_and_a_kill_for_memory_is_not(
    endless: Path, number: int, kind: str, retries: int, attempts: int
) -> None:
    pool = Pool(MACHINE)
    found: list[ZooOutcome] = []
    for outcome in pool.run([replace(make_entry(endless), retries=retries)]):
        _strike(pool.running, number)
        found += [outcome] if outcome is not None else []
    (outcome,) = found
    assert (outcome.kind, outcome.attempts, outcome.exit_code) == (kind, attempts, None)
    name = signal.Signals(number).name
    assert name in outcome.message
    if kind == "crashed":
        assert "Fatal Python error" in (outcome.folder / "log.txt").read_text()


def test_a_crash_that_passes_the_second_time_is_fixed(add_model: AddModel) -> None:
    pool, struck = Pool(MACHINE), False
    found: list[ZooOutcome] = []
    for outcome in pool.run([make_entry(add_model("good"))]):
        if not struck and pool.running:
            os.kill(pool.running[0].process.pid, signal.SIGSEGV)
            struck = True
        found += [outcome] if outcome is not None else []
    assert [(outcome.kind, outcome.attempts) for outcome in found] == [("fixed", 2)]


def test_no_process_outlives_a_pool_that_is_left(
    endless: Path, add_model: AddModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch without end is not waited for."""
    monkeypatch.setattr("overflow_fixer.zoo.pool._PATIENCE_SECONDS", 1.0)
    pool = Pool(MACHINE)
    run: Iterator[ZooOutcome | None] = pool.run([make_entry(endless), make_entry(add_model("good"))])
    while not (pool.running and all(one.read_progress() is not None for one in pool.running)):
        next(run)
    run.close()  # type: ignore[attr-defined]
    assert not _children()
    assert load_outcome(make_entry(endless).folder) is None


def _children() -> list[psutil.Process]:
    return [
        one for one in psutil.Process().children() if "overflow_fixer.zoo.worker" in " ".join(one.cmdline())
    ]


def test_the_most_urgent_come_first_then_the_longest(add_model: AddModel) -> None:
    entries = [
        replace(make_entry(add_model(name)), priority=priority, expected_minutes=minutes)
        for name, priority, minutes in (
            ("a", 0, 1.0),
            ("b", 0, 9.0),
            ("c", 5, None),
            ("d", 0, None),
            ("e", 0, 9.0),
        )
    ]
    assert [entry.name for entry in order(entries)] == ["c", "b", "e", "a", "d"]


def test_models_wait_for_memory_that_others_hold(add_model: AddModel) -> None:
    entries = [replace(make_entry(add_model(name, _spoil)), memory_gib=5.0) for name in ("a", "b")]
    pool, counts = Pool(MACHINE), set()
    for _ in pool.run(entries):
        counts.add(len(pool.running))
    assert counts == {0, 1}
    huge = replace(entries[0], memory_gib=100.0)
    assert _run(huge)["a"].kind == "failed"  # alone, it runs in any case
    assert estimate_memory_gib(replace(huge, memory_gib=None)) == pytest.approx(1.0, abs=0.01)


def test_one_gpu_is_one_models_at_a_time(add_model: AddModel) -> None:
    entries = [make_entry(add_model(name, _spoil), backend="auto") for name in ("a", "b", "c")]
    entries.append(make_entry(add_model("typed", _spoil), backend="onnx"))
    pool, seen = Pool(replace(MACHINE, workers=4, gpus=(0, 1))), set()
    for _ in pool.run(entries):
        taken = [one.gpu for one in pool.running if one.gpu is not None]
        assert len(taken) == len(set(taken))
        seen |= {(one.entry.name, one.gpu) for one in pool.running}
    assert ("typed", None) in seen
    assert {gpu for name, gpu in seen if name != "typed"} == {0, 1}

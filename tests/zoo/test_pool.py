"""Models run in processes of their own: whatever one of them does, the rest goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tensorrt import Script, fake_tensorrt
from standin_gpu import StandInDriver, use_standin_gpu
from zoo_models import AddModel, make_entry

from overflow_fixer.config import PlanOptions, ScanOptions
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.machine import Machine, describe_machine
from overflow_fixer.zoo.outcomes import OUTCOME_FILE, ZooOutcome, load_outcome
from overflow_fixer.zoo.pool import Pool, estimate_memory_gib, order, uses_gpu
from overflow_fixer.zoo.running import LOG_FILE, Running
from overflow_fixer.zoo.summary import build_document
from overflow_fixer.zoo.worker import PROGRESS_FILE

pytestmark = pytest.mark.alone

MACHINE = Machine(workers=2, threads=1, memory_gib=8.0)


def _run(*entries: ZooEntry, machine: Machine = MACHINE) -> dict[str, ZooOutcome]:
    return {found.name: found for found in Pool(machine).run(entries) if found is not None}


def _spoil(content: bytes) -> bytes:
    """A model that is refused at once, for tests of who runs when."""
    return b"no model"


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


def test_a_model_whose_results_have_no_place_fails_alone(add_model: AddModel, tmp_path: Path) -> None:
    taken, other = make_entry(add_model("taken")), make_entry(add_model("other"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "taken").write_text("a file")
    found = _run(taken, other)
    assert (found["taken"].kind, found["taken"].exit_code) == ("failed", 2)
    assert "could not be written" in found["taken"].message
    assert found["other"].passed


def test_a_model_whose_name_is_too_long_for_a_folder_fails_alone_and_is_summed_up(
    add_model: AddModel, tmp_path: Path
) -> None:
    other, out = make_entry(add_model("other")), tmp_path / "out"
    name = "n" * 300
    config = other.config.model_copy(update={"out": out / name})
    found = _run(ZooEntry(name, config), other)
    assert (found[name].kind, found[name].exit_code) == ("failed", 2)
    document = build_document(tmp_path / "zoo.toml", out, list(found.values()))
    long, good = document["models"]
    assert (long["name"], long["outcome"], long["report"], long["log"]) == (name, "failed", None, None)
    assert (good["outcome"], good["log"]) == ("fixed", "other/log.txt")


def test_an_outcome_that_cannot_be_written_is_told_with_its_reason_and_not_as_a_crash(
    add_model: AddModel, tmp_path: Path
) -> None:
    stuck, other = make_entry(add_model("stuck")), make_entry(add_model("other"))
    (stuck.folder / OUTCOME_FILE / "in the way").mkdir(parents=True)
    found = _run(stuck, other)
    assert (found["stuck"].kind, found["stuck"].exit_code, found["stuck"].attempts) == ("failed", 2, 1)
    message = found["stuck"].message
    assert f"{OUTCOME_FILE} could not be written" in message
    assert "Expected a folder" in message
    assert (stuck.folder / LOG_FILE).read_text().splitlines()[-1][:80] == message[:80]
    assert found["other"].passed


def test_a_model_whose_folder_is_replaced_by_a_file_while_it_runs_fails_alone(endless: Path) -> None:
    entry, pool = make_entry(endless), Pool(MACHINE)
    found: list[ZooOutcome] = []
    for outcome in pool.run([replace(entry, retries=0)]):
        if any(one.read_progress() for one in pool.running):
            shutil.rmtree(entry.folder)
            entry.folder.write_text("a file")
            pool.running[0].kill()
        found += [outcome] if outcome is not None else []
    assert [(outcome.kind, outcome.exit_code) for outcome in found] == [("failed", 2)]
    assert f"{entry.folder} could not be written" in found[0].message
    assert load_outcome(entry) is None


@pytest.mark.parametrize(("minutes", "told"), [(1.0, "1 minute"), (2.5, "2.5 minutes")])
def test_a_time_limit_is_told_with_the_stage_of_this_run(
    add_model: AddModel, minutes: float, told: str
) -> None:
    """Not with what an earlier one that was killed had come to."""
    entry = replace(make_entry(add_model("m")), timeout_minutes=minutes)
    entry.folder.mkdir(parents=True)
    (entry.folder / PROGRESS_FILE).write_text('["scan", 5, 8]')
    pool = Pool(MACHINE)
    run = pool.run([entry])
    for seconds in (60 * minutes - 30, 30):
        assert next(run) is None
        assert isinstance(pool.running[0], Running)
        pool.running[0].started -= seconds
    outcome = _finish(run)
    assert outcome.kind == "timed_out"
    assert outcome.message.startswith(f"It was ended after {told}, during: start. ")


def test_modules_in_the_folder_worked_in_are_not_run(
    add_model: AddModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are not by the command; where it is run as a module, Python itself puts that folder first."""
    for name in ("random", "os", "onnx"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    (found,) = _run(replace(make_entry(add_model("m")), retries=0)).values()
    assert found.passed


def test_settings_may_be_longer_than_a_command_line(add_model: AddModel) -> None:
    entry = make_entry(add_model("m"))
    plan = PlanOptions(include_nodes=(".|" + "x" * 200_000,))
    (found,) = _run(replace(entry, config=entry.config.model_copy(update={"plan": plan}))).values()
    assert found.passed
    assert found.result is not None
    assert len(found.result.pins) == 3


def test_a_crash_that_passes_the_second_time_is_fixed(add_model: AddModel) -> None:
    pool, struck = Pool(MACHINE), False
    found: list[ZooOutcome] = []
    for outcome in pool.run([make_entry(add_model("good"))]):
        if not struck and pool.running:
            os.kill(pool.running[0].process.pid, signal.SIGSEGV)
            struck = True
        found += [outcome] if outcome is not None else []
    assert [(outcome.kind, outcome.attempts) for outcome in found] == [("fixed", 2)]


def _finish(run: Iterator[ZooOutcome | None]) -> ZooOutcome:
    (outcome,) = [found for found in run if found is not None]
    return outcome


def test_what_a_run_measured_is_kept_where_another_zoo_takes_its_outcome(add_model: AddModel) -> None:
    """The other one is through before the first has looked at its own process."""
    entry = make_entry(add_model("m"))
    first, second = Pool(MACHINE).run([entry]), Pool(MACHINE).run([entry])
    assert next(first) is None
    while not (entry.folder / PROGRESS_FILE).exists():
        time.sleep(0.01)
    taken = _finish(second)
    kept = load_outcome(entry)
    own = _finish(first)
    assert (own.is_earlier, taken.is_earlier) == (False, True)
    for outcome in (own, taken, kept, load_outcome(entry)):
        assert outcome is not None
        assert outcome.seconds > 0.1
        assert outcome.peak_memory_bytes > 10_000_000


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
    pool, seen = Pool(replace(MACHINE, workers=4, gpus=("0", "1"))), set()
    for _ in pool.run(entries):
        taken = [one.gpu for one in pool.running if one.gpu is not None]
        assert len(taken) == len(set(taken))
        seen |= {(one.entry.name, one.gpu) for one in pool.running}
    assert ("typed", None) in seen
    assert {gpu for name, gpu in seen if name != "typed"} == {"0", "1"}


def test_gpus_are_found_unless_they_are_named() -> None:
    with use_standin_gpu(fake_tensorrt("8.6", Script()), StandInDriver(devices=2)):
        found = describe_machine(workers=3)
        assert len(found.gpus) == len(set(found.gpus)) == 2
        assert describe_machine(gpus=("1",)).gpus == ("1",)
        assert describe_machine(gpus=()).gpus == ()


@pytest.mark.parametrize(
    ("backend", "provider", "has_tensorrt", "expected"),
    [
        ("tensorrt", "cpu", False, True),
        ("auto", "cpu", True, True),
        ("auto", "cpu", False, False),
        ("onnx", "cpu", True, False),
        ("onnx", "cuda", False, True),
    ],
)
def test_a_gpu_is_for_those_that_build_or_scan_on_one(
    add_model: AddModel, backend: str, provider: str, has_tensorrt: bool, expected: bool
) -> None:
    entry = make_entry(add_model("m"), backend)
    scan = ScanOptions.model_validate({"provider": provider})
    entry = replace(entry, config=entry.config.model_copy(update={"scan": scan}))
    assert uses_gpu(entry, has_tensorrt=has_tensorrt) is expected

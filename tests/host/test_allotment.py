"""Cores and memory that a control group leaves to a process."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from overflow_fixer.host import allotment
from overflow_fixer.host.allotment import count_cores, count_threads, find_memory_bytes

CORES, MEMORY = len(os.sched_getaffinity(0)), psutil.virtual_memory().total


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A process in the group job/step of `tmp_path`."""
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "own").write_text("12:pids:/elsewhere\n0::/job/step\n")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("job", "step", "cores"),
    [
        (None, None, CORES),
        ("max 100000", "max 100000", CORES),
        ("100000 100000", "max 100000", 1),
        ("max 100000", "50000 100000", 1),
        ("900000000 100000", None, CORES),
    ],
)
def test_cores_are_those_of_the_narrowest_group(
    own: Path, job: str | None, step: str | None, cores: int
) -> None:
    _write(own.parent, "cpu.max", job, step)
    assert count_cores(own, own.parent) == cores


@pytest.mark.parametrize(
    ("job", "step", "memory"),
    [
        (None, None, MEMORY),
        ("max", "max", MEMORY),
        ("1073741824", "max", 2**30),
        ("1073741824", "536870912", 2**29),
        (str(2 * MEMORY), None, MEMORY),
    ],
)
def test_memory_is_that_of_the_narrowest_group(
    own: Path, job: str | None, step: str | None, memory: int
) -> None:
    _write(own.parent, "memory.max", job, step)
    assert find_memory_bytes(own, own.parent) == memory


def test_a_group_outside_and_a_machine_without_groups_limit_nothing(own: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("7")
    assert find_memory_bytes(own, tmp_path / "job") == MEMORY
    assert find_memory_bytes(tmp_path / "nowhere", tmp_path) == MEMORY


def _write(root: Path, name: str, job: str | None, step: str | None) -> None:
    for folder, text in ((root / "job", job), (root / "job" / "step", step)):
        if text is not None:
            (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(("whole", "threads"), [(1, 1), (None, count_cores()), (4096, count_cores())])
def test_a_thread_is_one_of_a_core_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch, whole: int | None, threads: int
) -> None:
    monkeypatch.setattr(allotment, "_count_whole_cores", lambda: whole)
    assert count_threads.__wrapped__() == threads


@pytest.mark.parametrize(
    ("cores", "allowed", "whole"),
    [("0-1 0-1 2-3 2-3", {0, 1, 2, 3}, 2), ("0-1 0-1 2-3 2-3", {0, 1}, 1), ("0 1 2", {0, 2}, 2)],
)
def test_threads_of_one_core_count_once_and_others_cores_do_not(
    cores: str, allowed: set[int], whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, threads in enumerate(cores.split()):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    assert allotment._count_whole_cores(tmp_path) == whole


def test_where_linux_does_not_tell_a_library_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 7)
    assert allotment._count_whole_cores(tmp_path) == 7
    monkeypatch.delattr(os, "sched_getaffinity")
    assert allotment._count_whole_cores() == 7

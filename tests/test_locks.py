"""Two runs never write at once: they wait for each other's files, and refuse each other's folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier

import pytest

from overflow_fixer import locks
from overflow_fixer.errors import OutputError
from overflow_fixer.files import write_text
from overflow_fixer.locks import claim_folder, hold_folder, hold_lock

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells who holds a lock as Linux does")
unix = pytest.mark.skipif(sys.platform == "win32", reason="flock")
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from overflow_fixer.locks import claim_folder
with claim_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_GRACE_SECONDS", 0.1)


@contextmanager
def _held_elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_whoever_holds_the_lock_of_a_path_is_alone(tmp_path: Path) -> None:
    path, barrier = tmp_path / "deep" / "count", Barrier(6)

    def add_one(_: int) -> None:
        barrier.wait()
        for _ in range(10):
            with hold_lock(path):
                write_text(path, str(int(path.read_text()) + 1 if path.exists() else 1))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add_one, range(6)))
    assert path.read_text() == "60"


def test_what_cannot_be_locked_goes_on_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.lock").mkdir()  # no file, so nothing to lock
    with hold_lock(tmp_path / "a.txt"):
        write_text(tmp_path / "a.txt", "written")
    assert (tmp_path / "a.txt").read_text() == "written"
    with hold_lock(tmp_path / "b.txt"), hold_lock(tmp_path / "b.txt", 0.01):
        write_text(tmp_path / "b.txt", "written")
    assert (tmp_path / "b.txt").read_text() == "written"


def test_where_locks_are_not_implemented_it_goes_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: object) -> None:
        raise NotImplementedError("flock")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with hold_lock(tmp_path / "a.txt"):
        write_text(tmp_path / "a.txt", "written")
    assert (tmp_path / "a.txt").read_text() == "written"


@linux
def test_a_folder_that_another_process_holds_is_refused_with_its_number(
    tmp_path: Path, impatient: None
) -> None:
    with (
        _held_elsewhere(tmp_path / "out") as holder,
        pytest.raises(OutputError, match=rf"out is in use by process {holder.pid} of this machine.*--out"),
        claim_folder(tmp_path / "out"),
    ):
        pass
    assert list(tmp_path.glob("out/*")) == []


@unix
def test_a_holder_that_cannot_be_told_is_another_run(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_KERNEL_LOCKS", tmp_path / "none")
    with (
        hold_folder(tmp_path),
        pytest.raises(OutputError, match="in use by another run"),
        hold_folder(tmp_path),
    ):
        pass


@linux
def test_the_holder_is_who_the_kernel_names_beside_that_folder(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not who waits for it, nor who locks a part of it or another one; of another container's the number is 0."""
    folder, table = tmp_path / "out", tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(locks, "_KERNEL_LOCKS", table)
    found = folder.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    others = f"""1: POSIX  ADVISORY  WRITE 11 {place} 0 EOF
2: FLOCK  ADVISORY  WRITE 12 {place}1 0 EOF
2: -> FLOCK  ADVISORY  WRITE 13 {place} 0 EOF
3: FLOCK  ADVISORY  WRITE 0 {place} 0 EOF

4: FLOCK
"""

    def tell() -> str:
        with hold_folder(folder), pytest.raises(OutputError) as caught, hold_folder(folder):
            pass
        return str(caught.value)

    table.write_text(others)
    assert "in use by another run of fix-fp16" in tell()
    table.write_text(f"{others}5: FLOCK  ADVISORY  WRITE 15 {place} 0 EOF\n")
    assert "in use by process 15 of this machine" in tell()


@linux
def test_who_is_refused_holds_no_descriptor(tmp_path: Path, impatient: None) -> None:
    with hold_folder(tmp_path):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OutputError), hold_folder(tmp_path):
            pass
        assert len(os.listdir("/proc/self/fd")) == before


@unix
def test_threads_hold_folders_of_their_own_and_are_refused_each_others(
    tmp_path: Path, impatient: None
) -> None:
    barrier = Barrier(2, timeout=30)

    def claim(name: str) -> str:
        try:
            with claim_folder(tmp_path / name):
                barrier.wait()
                time.sleep(0.5)
        except OutputError as error:
            barrier.wait()
            return str(error)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(claim, ("a", "b"))) == ["done", "done"]
        told = sorted(pool.map(claim, ("a", "a")))
    assert told[0].startswith(f"{tmp_path / 'a'} is in use")
    assert told[1] == "done"


@unix
def test_a_killed_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    with _held_elsewhere(tmp_path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        with claim_folder(tmp_path):
            assert list(tmp_path.iterdir()) == []


@unix
def test_a_program_that_outlives_its_run_does_not_hold_the_folder(tmp_path: Path, impatient: None) -> None:
    with claim_folder(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        forked = os.fork()
        if forked == 0:
            time.sleep(600)
            os._exit(0)
    try:
        with claim_folder(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_folder_that_is_not_there_is_held_by_nobody(tmp_path: Path) -> None:
    with hold_folder(tmp_path / "none"), hold_folder(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    with hold_folder(tmp_path / "file"), hold_folder(tmp_path / "file"):
        pass


@unix
def test_a_file_system_without_locks_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with claim_folder(tmp_path), claim_folder(tmp_path):
        pass


@unix
def test_who_waited_for_a_folder_that_was_removed_holds_the_one_that_is_there(tmp_path: Path) -> None:
    """The first ends with nothing written, and takes its new folder with it; the second had opened that one."""
    folder, waits = tmp_path / "out", Barrier(2)

    def wait_and_claim() -> int:
        waits.wait()
        with claim_folder(folder), pytest.raises(OutputError, match="in use"), claim_folder(folder):
            raise AssertionError("two hold it")
        return folder.stat().st_ino

    with ThreadPoolExecutor(1) as pool:
        with suppress(KeyboardInterrupt), claim_folder(folder):
            second = pool.submit(wait_and_claim)
            waits.wait()
            time.sleep(0.3)
            raise KeyboardInterrupt
        assert second.result() == folder.stat().st_ino


@unix
def test_who_is_refused_removes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """Though it was not there when both began."""
    folder = tmp_path / "out"
    with claim_folder(folder):
        monkeypatch.setattr(locks, "list_missing", lambda _: [folder])
        with pytest.raises(OutputError, match="in use"), claim_folder(folder):
            raise AssertionError("two hold it")
        assert folder.is_dir()


def test_a_folder_that_was_begun_in_vain_is_removed(tmp_path: Path) -> None:
    """With its parents that are new; not where it was there before, nor with something in it."""

    def begin(folder: Path, name: str) -> None:
        with claim_folder(folder):
            if name:
                (folder / name).touch()
            raise KeyboardInterrupt

    def fail(folder: Path, name: str = "") -> None:
        with pytest.raises(KeyboardInterrupt):
            begin(folder, name)

    fail(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    fail(tmp_path / "a" / "b", "ranges.h5")
    assert (tmp_path / "a" / "b" / "ranges.h5").exists()
    (tmp_path / "c").mkdir()
    fail(tmp_path / "c")
    fail(tmp_path / "c" / "d")
    assert list((tmp_path / "c").iterdir()) == []
    with claim_folder(tmp_path / "e"):
        pass
    assert (tmp_path / "e").is_dir()


def test_what_killed_runs_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    """Files, and folders in which nothing was written for as long, that are named as writers name them."""
    names = [
        ".report.html.15823-c8b28b7a.tmp",
        ".m.fp16.onnx.7-01234567.tmp",
        ".mine.tmp",
        ".a.7-01234567.tmp",
    ]
    report, folder, mine, new = (tmp_path / name for name in names)
    in_use = tmp_path / ".m.fp16.onnx.8-01234567.tmp"
    for path in (folder, in_use):
        path.mkdir()
    for path in (report, folder / "m.fp16.onnx", in_use / "m.fp16.onnx", mine, new):
        path.touch()
    for path in (report, folder / "m.fp16.onnx", folder, in_use, mine):
        os.utime(path, (0, 0))
    with claim_folder(tmp_path):
        assert sorted(tmp_path.iterdir()) == sorted([in_use, mine, new])

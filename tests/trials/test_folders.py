"""The folders of trials: whose they are is told by a lock, never by the number of a process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overflow_fixer.errors import OutputError
from overflow_fixer.trials.folders import TrialFolders, clear_abandoned

HOLD = """
import sys, time
from pathlib import Path
from overflow_fixer.trials.folders import TrialFolders

trials = TrialFolders(Path(sys.argv[1]))
trials.name_next().mkdir()
print("held", flush=True)
time.sleep(60)
"""


def _hold(output: Path) -> subprocess.Popen[str]:
    """A process that has a trial in `output`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, output], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def _list_hidden(output: Path) -> list[Path]:
    return sorted(output.glob(".*"))


def test_each_trial_has_a_place_of_its_own_below_a_folder_that_goes_with_the_last(tmp_path: Path) -> None:
    trials = TrialFolders(tmp_path / "new" / "out")
    folders = [trials.name_next() for _ in range(3)]
    for folder in folders:
        folder.mkdir()
    assert len(set(folders)) == 3
    assert all(folder in trials for folder in folders)
    assert tmp_path / "0" not in trials
    trials.close(lambda folder: False)
    assert list((tmp_path / "new" / "out").iterdir()) == []


def test_what_is_kept_is_found_by_the_next_run_and_the_rest_is_gone(tmp_path: Path) -> None:
    trials = TrialFolders(tmp_path)
    for _ in range(3):
        trials.name_next().mkdir()
    trials.close(lambda folder: folder.name == "1")
    assert [path.name for path in clear_abandoned(tmp_path)] == ["1"]
    assert _list_hidden(tmp_path) == []


def test_folders_of_a_living_run_are_left_to_it(tmp_path: Path) -> None:
    process = _hold(tmp_path)
    here = TrialFolders(tmp_path)
    assert list(clear_abandoned(tmp_path)) == []
    assert len(_list_hidden(tmp_path)) == 2
    process.kill()
    process.wait()
    here.close(lambda folder: False)
    assert len(list(clear_abandoned(tmp_path))) == 1


@pytest.mark.skipif(os.name != "posix", reason="no other system keeps the number of a process that is over")
def test_a_killed_run_that_nobody_has_waited_for_has_let_go(tmp_path: Path) -> None:
    process = _hold(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.kill(process.pid, 0)  # its number is still taken
    assert len(list(clear_abandoned(tmp_path))) == 1
    assert _list_hidden(tmp_path) == []
    process.wait()


def test_a_folder_of_the_users_own_is_none(tmp_path: Path) -> None:
    mine = tmp_path / ".trials-mine" / "0"
    mine.mkdir(parents=True)
    assert list(clear_abandoned(tmp_path)) == []
    assert list(mine.parent.iterdir()) == [mine]


@pytest.mark.parametrize("files", [(), ("run.lock",)])
def test_what_a_kill_left_without_a_mark_goes(tmp_path: Path, files: tuple[str, ...]) -> None:
    """A run that is killed while it makes its folder, or while it removes it."""
    left = tmp_path / ".trials-left"
    left.mkdir()
    for name in files:
        (left / name).touch()
    assert list(clear_abandoned(tmp_path)) == []
    assert _list_hidden(tmp_path) == []


def test_a_folder_that_a_run_is_making_is_left_to_it(tmp_path: Path) -> None:
    from filelock import FileLock

    made = tmp_path / ".trials-made"
    made.mkdir()
    with FileLock(made / "run.lock"):
        assert list(clear_abandoned(tmp_path)) == []
        assert _list_hidden(tmp_path) == [made]


def test_a_run_whose_new_folder_was_removed_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import filelock

    acquire, lost = filelock.FileLock.acquire, []

    def acquire_too_late(lock: filelock.FileLock, timeout: float) -> object:
        held = acquire(lock, timeout)
        if not lost:
            lost.append(Path(lock.lock_file).parent)
            shutil.rmtree(lost[0])
        return held

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire_too_late)
    trials = TrialFolders(tmp_path)
    assert _list_hidden(tmp_path) == [trials.path]
    assert lost != [trials.path]
    assert list(clear_abandoned(tmp_path)) == []
    trials.close(lambda folder: False)


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(errno.ENOLCK, "No locks available")])
def test_where_there_are_no_locks_nothing_is_taken_for_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    import filelock

    def refuse(lock: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    first, second = TrialFolders(tmp_path), TrialFolders(tmp_path)
    first.name_next().mkdir()
    assert list(clear_abandoned(tmp_path)) == []
    for trials in (first, second):
        trials.close(lambda folder: False)
    assert _list_hidden(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="locks of files are another call there")
def test_a_lock_that_is_no_more_than_a_file_does_for_trials_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without flock, where the file that stands for the lock goes when that is let go of."""
    import filelock

    monkeypatch.setattr(filelock, "FileLock", filelock.SoftFileLock)
    trials = TrialFolders(tmp_path)
    trials.name_next().mkdir()
    assert list(clear_abandoned(tmp_path)) == []
    trials.close(lambda folder: True)
    assert [path.name for path in clear_abandoned(tmp_path)] == ["0"]
    assert _list_hidden(tmp_path) == []


def test_a_folder_that_another_run_has_just_cleared_is_not_left_behind(tmp_path: Path) -> None:
    for _ in range(2):
        trials = TrialFolders(tmp_path)
        trials.name_next().mkdir()
        trials.close(lambda folder: True)
    first = clear_abandoned(tmp_path)
    next(first)
    assert len(list(clear_abandoned(tmp_path))) == 1
    assert len(list(first)) == 0
    assert _list_hidden(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError):
        TrialFolders(tmp_path / "out")

"""Where the trials of one run lie, apart from those of other runs in the same output folder.

A run's folder is `.trials-SOMETHING`, with a folder for each trial in it, a file that says what it is, and one that the run
holds locked: a process that was killed has let go of it, on whatever machine and under whatever number it ran. On a file
system without locks trials of other runs are left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from overflow_fixer.files import TRIALS_PREFIX, make_folder, refuse_os_errors

if TYPE_CHECKING:
    from filelock import BaseFileLock

_MARK = "trials"
"""The file that tells a run's folder with trials in it from one of the user's. It goes where they go, also to another machine."""
_LOCK = "run.lock"
_LOCK_SECONDS = 5.0
"""A folder that is new is another's for a moment at most. Where a file system has no locks, some filelocks wait for one."""


class TrialFolders:
    """A run's folder below an output folder, held until it is closed. Raises OutputError where it cannot be made."""

    def __init__(self, output: Path) -> None:
        make_folder(output)
        with refuse_os_errors(output):
            self.path, self._lock = _take(output)
        self._count = 0

    def name_next(self) -> Path:
        """The path of a trial's folder, each once; nothing is there yet."""
        self._count += 1
        return self.path / str(self._count - 1)

    def __contains__(self, folder: Path) -> bool:
        return folder.parent == self.path

    def close(self, is_kept: Callable[[Path], bool]) -> None:
        """Let go of the folder; only the trials that are kept stay, for the next run."""
        for folder in _list_trials(self.path):
            if not is_kept(folder):
                shutil.rmtree(folder, ignore_errors=True)
        if any(_list_trials(self.path)):
            self._lock.release()
        else:
            _remove(self.path, self._lock)


def clear_abandoned(output: Path) -> Iterator[Path]:
    """Trials of runs that are over, each in its folder; what is not taken from there is removed when all were given."""
    for mark in sorted(output.glob(f"{TRIALS_PREFIX}*/{_MARK}")):
        lock = _make_lock(mark.parent)
        try:
            lock.acquire(timeout=0)
        except (OSError, NotImplementedError):  # another run's, which lives; or there are no locks here
            continue
        if mark.exists():  # and not removed since by another
            yield from _list_trials(mark.parent)
        _remove(mark.parent, lock)
    _clear_unmarked(output)


def _clear_unmarked(output: Path) -> None:
    """Remove what is left of runs that were killed while they made their folder, or while they removed it."""
    for run in output.glob(f"{TRIALS_PREFIX}*"):
        with suppress(OSError, NotImplementedError):
            if _is_bare(run):
                _remove_bare(run)


def _is_bare(run: Path) -> bool:
    return set(os.listdir(run)) <= {_LOCK}


def _remove_bare(run: Path) -> None:
    """While it is held: a run that is making it waits for the lock, and then finds that its folder is gone."""
    with _make_lock(run).acquire(timeout=0):
        if _is_bare(run):
            (run / _LOCK).unlink()
            run.rmdir()


def _remove(run: Path, lock: BaseFileLock) -> None:
    """Remove a folder that is held locked. What tells that it is one goes after the trials: a kill leaves none unknown."""
    for folder in _list_trials(run):
        shutil.rmtree(folder, ignore_errors=True)
    (run / _MARK).unlink(missing_ok=True)
    shutil.rmtree(run, ignore_errors=True)
    lock.release()
    shutil.rmtree(run, ignore_errors=True)  # some file systems keep a file that is open


def _list_trials(run: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in run.iterdir() if path.is_dir())
    return []


def _take(output: Path) -> tuple[Path, BaseFileLock]:
    """A new folder and its lock; without hold of it where the file system has none."""
    while True:
        run = Path(tempfile.mkdtemp(prefix=TRIALS_PREFIX, dir=output))
        lock = _make_lock(run)
        with suppress(OSError, NotImplementedError):
            lock.acquire(timeout=_LOCK_SECONDS)
        try:
            (run / _MARK).touch()
            return run, lock
        except FileNotFoundError:  # another run has taken it for one that was killed before this
            lock.release()


def _make_lock(run: Path) -> BaseFileLock:
    from filelock import FileLock  # imported here: a scan does without

    return FileLock(run / _LOCK)

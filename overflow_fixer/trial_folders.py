"""Where the trials of one run lie, apart from those of other runs in the same output folder.

A run's folder is `.trials-SOMETHING`, with a folder for each trial in it, and a file that the run holds locked: a process
that was killed has let go of it, on whatever machine and under whatever number it ran.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from overflow_fixer.files import make_folder, refuse_os_errors

if TYPE_CHECKING:
    from filelock import BaseFileLock

_PREFIX = ".trials-"
_LOCK = "lock"
"""Goes where the trials go, also to another machine: they are known by it. Files that end in .lock stay behind."""


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
        has_trials = any(_list_trials(self.path))
        self._lock.release()
        if not has_trials:
            shutil.rmtree(self.path, ignore_errors=True)


def clear_abandoned(output: Path) -> Iterator[Path]:
    """Trials of runs that are over, each in its folder; what is not taken from there is removed when the next is asked for."""
    for held in sorted(output.glob(f"{_PREFIX}*/{_LOCK}")):
        lock = _make_lock(held.parent)
        try:
            lock.acquire(timeout=0)
        except (OSError, NotImplementedError):  # another run's, which lives; or there are no locks here
            continue
        yield from _list_trials(held.parent)
        lock.release()
        shutil.rmtree(held.parent, ignore_errors=True)


def _list_trials(run: Path) -> list[Path]:
    return sorted(path for path in run.iterdir() if path.is_dir()) if run.is_dir() else []


def _take(output: Path) -> tuple[Path, BaseFileLock]:
    """A new folder and its lock; without hold of it where the file system has none."""
    run = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=output))
    lock = _make_lock(run)
    with suppress(NotImplementedError):
        lock.acquire()  # makes the folder anew where another run has just taken it for abandoned
    return run, lock


def _make_lock(run: Path) -> BaseFileLock:
    from filelock import FileLock  # imported here: a scan does without

    return FileLock(run / _LOCK)

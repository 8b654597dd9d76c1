"""What keeps two runs from writing at once: a lock of one file, which is waited for, and one of an output folder, which is not.

The kernel drops both where their holder ends, however it ends, so that none is ever left behind.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overflow_fixer.errors import OutputError
from overflow_fixer.files import list_missing, make_folder, remove_abandoned, remove_where_empty

_GRACE_SECONDS = 2.0
"""A process that was killed holds its lock until its memory is given back; who starts again at once need not hear of it."""
_PAUSE_SECONDS = 0.05
_KERNEL_LOCKS = Path("/proc/locks")


@contextmanager
def hold_lock(path: Path, seconds: float = 60.0) -> Iterator[None]:
    """Run the block while no other process or thread runs one that holds the lock of this path: a hidden file beside it.

    On a file system that has no locks, in a folder that cannot be written, or when another held it for so long, the block runs
    all the same. Raises OutputError where the folder cannot be made.
    """
    from filelock import FileLock, Timeout  # imported here: few runs need it

    make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=-1 if math.isinf(seconds) else seconds)
    with suppress(Timeout, OSError, NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Run the block that writes into `folder`, which is held as hold_folder says.

    What runs that were killed left there is removed. It and its parents are created; where the block fails with nothing in it,
    those that are new are removed again, while it is held. Raises OutputError where it cannot be created, too.
    """
    new = list_missing(folder)
    with _hold(folder, is_made=True), remove_where_empty(new):
        remove_abandoned(folder)
        yield


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Run the block while no other process or thread of this machine holds `folder`; nothing is written there for that.

    Raises OutputError where another does. Where there is no such folder, or the file system has no locks, the block runs all
    the same; so it does on Windows.
    """
    with _hold(folder, is_made=False):
        yield


@contextmanager
def _hold(folder: Path, is_made: bool) -> Iterator[None]:
    descriptor = _take(folder, is_made)
    try:
        yield
    finally:
        if descriptor is not None:
            _unlock(descriptor)


def _take(folder: Path, is_made: bool) -> int | None:
    """A descriptor of the folder with its lock: of the one that is there, for whoever held it may have removed it."""
    latest = time.monotonic() + _GRACE_SECONDS
    while True:
        if is_made:
            make_folder(folder)
        descriptor = _open(folder)
        if descriptor is None:
            return None
        try:
            _lock(descriptor, folder, latest)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_there(descriptor, folder):
            return descriptor
        _unlock(descriptor)


def _is_there(descriptor: int, folder: Path) -> bool:
    """Whether the path still names what is locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except OSError:
        return False


def _open(folder: Path) -> int | None:
    """A descriptor that no program started later inherits; None where there is nothing to hold."""
    if sys.platform == "win32":
        return None
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None


def _lock(descriptor: int, folder: Path, latest: float) -> None:
    while not _try_lock(descriptor):
        if time.monotonic() > latest:
            raise _refusal(folder, _find_holder(descriptor))
        time.sleep(_PAUSE_SECONDS)


def _try_lock(descriptor: int) -> bool:
    """Whether no other holds it; of a file system without locks, none is known to."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


def _unlock(descriptor: int) -> None:
    """By word: a process that was forked meanwhile has the descriptor too, and would hold on to it."""
    if sys.platform != "win32":
        import fcntl

        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _find_holder(descriptor: int) -> int | None:
    """The number of the process that holds the lock, as Linux tells it; None where it does not."""
    found = os.fstat(descriptor)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError, ValueError):
        for line in _KERNEL_LOCKS.read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [place] and int(words[4]) > 0:
                return int(words[4])
    return None


def _refusal(folder: Path, holder: int | None) -> OutputError:
    who = "another run of fix-fp16" if holder is None else f"process {holder} of this machine"
    return OutputError(
        f"{folder} is in use by {who}. Expected an output folder that nothing else writes to meanwhile, or its files would be of "
        "two runs. Wait until that one has ended, or name another folder with --out."
    )

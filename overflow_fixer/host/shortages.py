"""Errors that tell of what the system had no more of: memory, threads or open files. They are no fault of a model or a program."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

_ASKED_BYTES = re.compile(r"requested buffer of size (\d+)")
_MOST_BYTES = 1 << 44
"""More than a machine has."""
_OF_MEMORY = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "out of memory",
    "cannot allocate memory",  # what mmap says
    "memory allocation failed",  # what HDF5 says
    "pthread_create failed",  # of a thread's stack
    "can't start new thread",
    "failed to map segment",  # how the loader tells it, here and below
    "cannot map zero-fill pages",
    "cannot allocate memory in static tls block",
    "cannot create shared object descriptor",
    "arena alloc failed",
)
_OF_FILES = "too many open files"
_NUMBERS_OF_MEMORY = frozenset({errno.ENOMEM, errno.EAGAIN})
_NUMBERS_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
ROOM_FOR_A_BATCH = (
    "Expected room for the model, one batch and what is computed from it. Use a smaller batch (fewer samples a file where a "
    "file is a batch, --batch-size where batches are cut from one), or a machine with more memory"
)
"""What to do where memory ran out, without the stop at the end."""
_TOO_LITTLE_MEMORY = (
    f"memory ran out. {ROOM_FOR_A_BATCH}, or raise the limits of what a process may take (ulimit -v) and of its threads "
    "(ulimit -u). Files already written are whole; run the command again to go on."
)
_TOO_FEW_FILES = (
    "no more files can be opened: the limit of those that may be open at once is reached. Expected room for the model, its data "
    "and libraries. Raise it (ulimit -n), or end what else holds files open. Files already written are whole; run the command "
    "again to go on."
)


def tell_shortage(error: BaseException) -> str | None:
    """What there was too little of, and what to do, where the error or what led to it tells of that; None of any other."""
    for one in _trace_back(error):
        if tells_of_files(one):
            return _TOO_FEW_FILES
        if tells_of_memory(one):
            return _TOO_LITTLE_MEMORY
    return None


def tells_of_files(error: BaseException) -> bool:
    """Whether it is the system's word for too many open files, as an OSError or a library passes it on."""
    return getattr(error, "errno", None) in _NUMBERS_OF_FILES or _OF_FILES in str(error).lower()


def tells_of_memory(error: BaseException) -> bool:
    """Whether it is Python's, C++'s, HDF5's, ONNX Runtime's or the system's word for memory that ran out, or threads, which take it.

    Of a size that no machine has, memory did not run out: something overflowed on the way to it.
    """
    asked = _ASKED_BYTES.search(str(error))
    if asked is not None and int(asked[1]) >= _MOST_BYTES:
        return False
    is_numbered = isinstance(error, OSError) and error.errno in _NUMBERS_OF_MEMORY
    return (
        is_numbered
        or isinstance(error, MemoryError)
        or any(word in str(error).lower() for word in _OF_MEMORY)
    )


def _trace_back(error: BaseException) -> Iterator[BaseException]:
    """The error, and what led to it, the latest first."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)

from __future__ import annotations

import errno

import pytest

from overflow_fixer.errors import ModelError
from overflow_fixer.host.shortages import tell_shortage


@pytest.mark.parametrize(
    ("error", "begin"),
    [
        (MemoryError(), "memory ran out. Expected"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "memory ran out"),
        (RuntimeError("can't start new thread"), "memory ran out"),
        (ImportError("/x/lib.so: failed to map segment from shared object"), "memory ran out"),
        (ImportError("lib.so.320: cannot map zero-fill pages"), "memory ran out"),
        (ImportError("lib.so: cannot allocate memory in static TLS block"), "memory ran out"),
        (ImportError("lib.so: cannot create shared object descriptor"), "memory ran out"),
        (OSError("Can't synchronously read data (memory allocation failed for chunk)"), "memory ran out"),
        (OSError(errno.EMFILE, "Too many open files", "m.onnx"), "no more files can be opened"),
        (OSError(errno.ENFILE, "Too many open files in system"), "no more files can be opened"),
        (
            ImportError("lib.so: cannot open shared object file: Too many open files"),
            "no more files can be opened",
        ),
    ],
)
def test_what_the_system_had_too_little_of_is_told_of_an_error_and_what_it_led_to(
    error: Exception, begin: str
) -> None:
    following = ModelError("m.onnx cannot be read.")
    following.__cause__ = error
    told = [tell_shortage(one) for one in (error, following)]
    assert told[0] is not None
    assert told[0].startswith(begin)
    assert "ulimit" in told[0]
    assert told[1] == told[0]
    during = ModelError("m.onnx cannot be closed.")
    during.__context__ = error
    assert tell_shortage(during) == told[0]
    during.__suppress_context__ = True
    assert tell_shortage(during) is None


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ENOENT, "No such file or directory"),
        RuntimeError("Failed to allocate memory for requested buffer of size 9223372036854775808"),
        KeyError(errno.EMFILE),
        ValueError("no"),
    ],
)
def test_of_other_errors_nothing_is(error: Exception) -> None:
    assert tell_shortage(error) is None

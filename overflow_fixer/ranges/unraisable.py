"""What is raised where native code calls Python, before the function that it calls has begun."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def catch_unraisable(take: Callable[[BaseException], None]) -> Iterator[None]:
    """`take` what a signal handler raises there: ctypes drops it, with a line on stderr. Handlers run in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = sys.unraisablehook

    def catch(told: Any) -> None:
        if "ctypes callback" in (told.err_msg or "") and told.exc_value is not None:
            take(told.exc_value)
        else:
            before(told)

    sys.unraisablehook = catch
    try:
        yield
    finally:
        sys.unraisablehook = before

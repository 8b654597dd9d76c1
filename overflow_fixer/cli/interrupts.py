"""Ctrl-C, SIGTERM and SIGHUP, of a terminal that closes, while a scan runs: the first waits for the batch at hand, a second does not.

ONNX Runtime does not return to Python within a batch, so that a Python signal handler alone would
answer only after it: see wake_ups.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from overflow_fixer.cli.guard import SAME_SECONDS
from overflow_fixer.cli.wake_ups import WakeUps
from overflow_fixer.plurals import say_plural

_SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if sys.platform != "win32" else ()))
_LEAVING_SECONDS = 2.0
"""What a second signal leaves Python to end by itself, before the process is ended."""
_WAKE_UPS = 20

STOPPING = "stopping after the batch at hand; Ctrl-C once more stops at once"
STOPPED_AT_ONCE = (
    "stopped at once. ranges.h5 in the output folder is whole and holds the batches up to the last "
    "checkpoint, if there was one; run the same command again to go on."
)


class Stopped(KeyboardInterrupt):
    """A scan was asked to stop, and did so after a batch."""


class Interrupts:
    """Takes the signals between `begin` and `end`, of the main thread; elsewhere it does nothing.

    Both callbacks are called from another thread: `tell` with what the first signal does, `end_process`
    where a second one finds the main thread busy in ONNX Runtime. What was ignored stays ignored.
    """

    def __init__(self, tell: Callable[[str], None], end_process: Callable[[], None]) -> None:
        self._tell = tell
        self._end_process = end_process
        self._asked = threading.Event()
        self._hurry = threading.Event()
        self._leaving = threading.Event()
        self._previous: dict[int, Any] = {}
        self._wake_ups = WakeUps(self._hear)
        self._heard = -SAME_SECONDS

    def begin(self) -> None:
        if not self._wake_ups.begin():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._take)

    def end(self) -> None:
        if not self._wake_ups.has_begun:
            return
        self._leaving.set()  # before the wake-ups end: their thread may wait for it
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._wake_ups.end()

    def check(self, done: int, total: int) -> None:
        """Raise Stopped if a signal came: to be called between two batches."""
        if self._asked.is_set():
            what = (
                "ranges.h5 in the output folder holds them" if done else "there is nothing to go on from yet"
            )
            raise Stopped(
                f"stopped after {done} of {say_plural(total, 'batch', 'batches')}; {what}. Run the same command again to go on."
            )

    def _take(self, number: int, frame: FrameType | None) -> None:
        """The handler of Python, which the main thread runs when it is not in ONNX Runtime.

        It raises once: the signal and the wake-up that follows it may both be waiting, and what is raised by the one would be
        lost where the other breaks into what takes it.
        """
        if self._hurry.is_set() and not self._leaving.is_set():
            self._leaving.set()
            raise KeyboardInterrupt(STOPPED_AT_ONCE)

    def _hear(self, number: int) -> None:
        if time.monotonic() - self._heard >= SAME_SECONDS:
            self._answer()
            self._heard = time.monotonic()

    def _answer(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            self._tell(STOPPING)
        elif not self._hurry.is_set():
            self._hurry.set()
            if not self._wake_main_thread():
                self._end_process()
        else:
            self._end_process()

    def _wake_main_thread(self) -> bool:
        """Have Python's handler run again, and say whether it did; a wake-up is lost just before a system call."""
        main_thread, number = threading.main_thread().ident, next(iter(self._previous))
        for _ in range(_WAKE_UPS):
            if sys.platform == "win32" or main_thread is None:
                _thread.interrupt_main(number)
            else:
                signal.pthread_kill(main_thread, number)
            if self._leaving.wait(_LEAVING_SECONDS / _WAKE_UPS):
                return True
        return False

"""Ctrl-C outside a scan: Python hears of it when ONNX Runtime or TensorRT returns, which can take minutes, so that is said."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

from overflow_fixer.cli.wake_ups import WakeUps

_ONCE_MORE = "; Ctrl-C once more stops within 3 s" if sys.platform == "linux" else ""
LATE = f"stopping as soon as what runs has ended{_ONCE_MORE}"
_LATE_SECONDS = 1.0


class LateAnswers:
    """From `begin` to `end`, calls `tell` once, from another thread, where a Ctrl-C has ended nothing within a second.

    Outside the main thread it does nothing. What takes the wake-ups in between (interrupts) gives them back.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._settled = threading.Event()
        self._wake_ups = WakeUps(self._answer)

    def begin(self) -> None:
        self._wake_ups.begin()

    def end(self) -> None:
        self._settled.set()
        self._wake_ups.end()

    def _answer(self, number: int) -> None:
        if number == signal.SIGINT and not self._settled.wait(_LATE_SECONDS):
            self._settled.set()
            self._tell(LATE)

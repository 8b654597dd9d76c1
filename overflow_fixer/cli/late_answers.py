"""Ctrl-C outside a scan: Python hears of it when ONNX Runtime or TensorRT returns, which can take minutes, so that is said."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable

_ONCE_MORE = "; Ctrl-C once more stops within 3 s" if sys.platform == "linux" else ""
LATE = f"stopping as soon as what runs has ended{_ONCE_MORE}"
_LATE_SECONDS = 1.0


class LateAnswers:
    """From `begin` to `end`, calls `tell` from another thread where a Ctrl-C has ended nothing within a second.

    Outside the main thread it does nothing. What takes the wake-ups in between (interrupts) gives them back.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._ended = threading.Event()
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        ours, theirs = self._sockets = socket.socketpair()
        theirs.setblocking(False)
        self._previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(ours,), daemon=True).start()

    def end(self) -> None:
        self._ended.set()
        if self._sockets is not None:
            signal.set_wakeup_fd(self._previous)
            self._sockets[1].close()  # ends the thread
            self._sockets = None

    def _watch(self, signals: socket.socket) -> None:
        with signals:
            while number := signals.recv(1):
                if number[0] == signal.SIGINT and not self._ended.wait(_LATE_SECONDS):
                    self._tell(LATE)
                    return

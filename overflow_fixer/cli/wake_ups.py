"""Signals told to a thread as they come: Python's own handlers run in the main thread alone, when it is not in ONNX Runtime."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable


class WakeUps:
    """From `begin` to `end`, calls `take` from a thread of its own with the number of each signal that has a handler of Python's."""

    def __init__(self, take: Callable[[int], None]) -> None:
        self._take = take
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def begin(self) -> bool:
        """False, and nothing done, where it has begun, or this is not the main thread."""
        if self.has_begun or threading.current_thread() is not threading.main_thread():
            return False
        ours, theirs = self._sockets = socket.socketpair()
        theirs.setblocking(False)
        self._previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, args=(ours,), daemon=True)
        self._watcher.start()
        return True

    @property
    def has_begun(self) -> bool:
        return self._sockets is not None

    def end(self) -> None:
        """Give the wake-ups back to whom they went before, if it has begun; those that came are taken, and the thread has ended."""
        if self._sockets is not None:
            signal.set_wakeup_fd(self._previous)
            self._sockets[1].close()
            self._sockets = None
            self._watcher.join()

    def _watch(self, signals: socket.socket) -> None:
        with signals:
            while number := signals.recv(1):
                self._take(number[0])

"""A call again and again while something else works."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread


class Heartbeat:
    """Calls `beat` every so many seconds from a thread of its own, until stopped.

    What `beat` raises ends the thread. The thread does not keep the process alive.
    """

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self._beat, self._seconds = beat, seconds
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when no beat is under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._beat()

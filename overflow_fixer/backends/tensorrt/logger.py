"""TensorRT's log, kept: on failure its functions return None, and the reason is only in here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_MOST_LINES = 2000


@lru_cache(maxsize=1)
def make_logger(trt: Any) -> Any:
    """The process's one logger, an ILogger that records; TensorRT needs it for as long as it lives.

    It has `errors` and `warnings` (lists of lines, the newest last) and `forget()`, which empties both.
    """

    class RecordingLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def forget(self) -> None:
            self.errors, self.warnings = [], []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors = [*self.errors[-_MOST_LINES:], message]
            elif severity <= trt.ILogger.WARNING:
                self.warnings = [*self.warnings[-_MOST_LINES:], message]

    return RecordingLogger()


def last_errors(logger: Any, most: int = 3) -> str:
    """The newest errors, in one line; says so where there is none."""
    found = [" ".join(line.split()).rstrip(". ") for line in dict.fromkeys(logger.errors)]
    return "; ".join(found[-most:]) or "it gave no reason"

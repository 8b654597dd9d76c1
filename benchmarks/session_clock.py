"""What of a scan's time ONNX Runtime takes, told from outside of the scan."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

_RUNS = ("run", "run_with_ort_values", "run_with_iobinding")


class SessionClock:
    """From here on, in this thread, notes the seconds that sessions take to open and to run.

    What other threads open, such as a first session beside other work, takes no time of its own. `first_opened` is
    when the first began to open, on time.perf_counter; NaN while none has.
    """

    def __init__(self) -> None:
        from onnxruntime import InferenceSession

        self.open_seconds = self.run_seconds = 0.0
        self.first_opened = math.nan
        self._thread = threading.get_ident()
        InferenceSession.__init__ = self._timed(InferenceSession.__init__, self._note_open)
        for name in _RUNS:
            setattr(InferenceSession, name, self._timed(getattr(InferenceSession, name), self._note_run))

    def _note_open(self, start: float, seconds: float) -> None:
        self.open_seconds += seconds
        if math.isnan(self.first_opened):
            self.first_opened = start

    def _note_run(self, start: float, seconds: float) -> None:
        self.run_seconds += seconds

    def _timed(self, call: Callable[..., Any], note: Callable[[float, float], None]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if threading.get_ident() == self._thread:
                    note(start, time.perf_counter() - start)

        return timed

"""What takes place in the midst of a run, where nodes call back, or write into memory."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from overflow_fixer.ranges.unraisable import catch_unraisable
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import make_run_options


class Midst:
    """Of each run of a model: what `begins` before it, and the `error` that was raised in the midst of it, which ends it early."""

    def __init__(self) -> None:
        self.options = make_run_options()
        """Those of each run."""
        self.error: BaseException | None = None
        self._begins: list[weakref.WeakMethod[Callable[[Batch], None]]] = []

    def before_each(self, begin: Callable[[Batch], None]) -> None:
        """Call the method before each run, with the batch; of one batch there may be several. Its object is not held."""
        self._begins.append(weakref.WeakMethod(begin))

    def fail(self, error: BaseException) -> None:
        """Keep it until the run has ended, without what was looked at, which is gone then."""
        traceback.clear_frames(error.__traceback__)
        self.error, self.options.terminate = error, True

    @contextmanager
    def run(self, batch: Batch) -> Iterator[None]:
        """Around a run. Raises what was raised in the midst of it, in place of what came of that."""
        for begin in filter(None, (method() for method in self._begins)):
            begin(batch)
        try:
            with catch_unraisable(self.fail):
                yield
        finally:
            self.options.terminate = False
            error, self.error = self.error, None
            if error is not None:
                raise error

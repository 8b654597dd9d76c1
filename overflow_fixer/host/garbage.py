"""Python's search for circles of garbage, which goes through all objects there are whenever enough were made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """None meanwhile: where a model is read or a scan opened, what is made stays. What goes out of use is freed all the same."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

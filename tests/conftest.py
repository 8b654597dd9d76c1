"""What holds for every test."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Python's search for garbage would go through the thousands of tests that were collected, again and again."""
    gc.collect()
    gc.freeze()

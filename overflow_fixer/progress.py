"""How a stage tells its progress: a callback, so that no stage prints."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the steps done and the steps in all."""


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""

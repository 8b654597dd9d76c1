"""How a stage tells its progress: a callback, so that no stage prints."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the steps done and the steps in all."""


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


TIMED = ", seconds"
"""How the name of a stage ends whose steps are the seconds of a limit: how many it takes nobody knows."""


def is_timed(stage: str) -> bool:
    return stage.endswith(TIMED)


def say_steps(done: int, total: int, stage: str) -> str:
    """How far a stage is, without its name."""
    return f"{done} of at most {total} seconds" if is_timed(stage) else f"{done} of {total}"

"""What a caller from Python gives, held against what a setting may be; the config refuses the same by pydantic."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Real
from typing import Any

from overflow_fixer.errors import ConfigError


def need_number(
    name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    """Raise ConfigError unless `value` is a finite number, over `above`, and from `least` to `most`; NaN is none."""
    number = _read(value)
    if math.isfinite(number) and above < number and least <= number <= most:
        return
    bounds = {"above": above, "at least": least, "at most": most}
    said = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
    raise ConfigError(
        f"{name} is {value!r:.80}. Expected a finite number{', ' * bool(said)}{' and '.join(said)}. Give such a one."
    )


def _read(value: Any) -> float:
    """NaN of what is no number, of a bool, and of an integer that no float holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def need_word(name: str, value: Any, words: Collection[str]) -> None:
    """Raise ConfigError unless `value` is one of the `words`."""
    if not isinstance(value, str) or value not in words:
        raise ConfigError(
            f"{name} is {value!r:.80}. Expected one of {', '.join(map(repr, words))}. Give one of these."
        )


def need_several(name: str, value: Any) -> None:
    """Raise ConfigError for a text where several are meant: its letters would be taken one by one."""
    if isinstance(value, str):
        raise ConfigError(
            f"{name} is the text {value!r:.80}. Expected a tuple of texts. Give ({value!r:.80},)."
        )

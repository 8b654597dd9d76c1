"""How many there are, in words: a count with what is counted, and a few names of many."""

from __future__ import annotations

from collections.abc import Iterable


def say_plural(count: int, noun: str, nouns: str = "") -> str:
    """ "1 node", "2 nodes"; `nouns` where the plural does not end in s alone."""
    return f"{count} {agree(count, noun, nouns)}"


def agree(count: int, one: str, several: str = "") -> str:
    """The word alone that fits the count; `several` where it is not that for one with an s."""
    return one if count == 1 else several or one + "s"


def name_few(labels: Iterable[str]) -> str:
    """Up to three names, and how many more there are."""
    names = list(labels)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"

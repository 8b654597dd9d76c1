"""A count with what is counted."""

from __future__ import annotations


def say_plural(count: int, noun: str, nouns: str = "") -> str:
    """ "1 node", "2 nodes"; `nouns` where the plural does not end in s alone."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"

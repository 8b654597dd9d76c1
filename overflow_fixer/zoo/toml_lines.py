"""In which line of a TOML file a key stands: tomllib tells values alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Key = tuple[str | int, ...]
"""The names that lead to a value; a number counts the tables of an array, as in ("model", 1, "path")."""

_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PIECE = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*''', re.DOTALL
)


def find_lines(text: str) -> dict[Key, int]:
    """The line, counted from 1, of each table and of each key that begins a line; what looks like one in a value is none.

    An array of tables, and a table that only tables in it name, have the line of the first of these.
    """
    found: dict[Key, int] = {}
    counts: dict[Key, int] = {}
    table: Key = ()
    for number, line in _outer_lines(text):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _resolve(_split(header[2]), counts, is_array=header[1] == "[[")
        names = table if header else (*table, *_split(key[1])) if key else ()
        for end in range(1, len(names) + 1):
            found.setdefault(names[:end], number)
    return found


def line_of(key: Sequence[str | int], lines: dict[Key, int]) -> int | None:
    """The line of the key, or else of the innermost table around it that has one."""
    names = tuple(key)
    while names and names not in lines:
        names = names[:-1]
    return lines.get(names)


def _outer_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that begin in no array and in no string, as TOML counts them: a line separator of Unicode ends none."""
    bare = _STRING_OR_COMMENT.sub(lambda found: '""' + "\n" * found[0].count("\n"), text)
    depth = 0
    for number, (line, code) in enumerate(zip(text.split("\n"), bare.split("\n"), strict=True), 1):
        if depth == 0 and code.strip():
            yield number, line
        depth += code.count("[") - code.count("]")


def _split(dotted: str) -> Key:
    return tuple(piece.strip("\"'") for piece in _PIECE.findall(dotted))


def _resolve(names: Key, counts: dict[Key, int], *, is_array: bool) -> Key:
    """The names with the number of the table wherever one names an array of tables."""
    resolved: Key = ()
    for place, name in enumerate(names):
        resolved = (*resolved, name)
        is_last = place == len(names) - 1
        if is_array and is_last:
            counts[resolved] = counts.get(resolved, -1) + 1
        if resolved in counts:
            resolved = (*resolved, counts[resolved])
    return resolved

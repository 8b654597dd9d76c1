"""The ranges of a body's tensors, by the names that they have in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.records import RangeTable


def look_into(bodies: Sequence[Body], ranges: RangeTable) -> Iterator[RangeTable]:
    """For each body the ranges of its tensors, nested ones too, by the names that they have in it."""
    prefixes = sorted(body.prefix for body in bodies)
    tensors = [seen.tensor for seen in ranges.ranges] if bodies else []
    row_of = {tensor: row for row, tensor in enumerate(tensors)}
    rows, inner = _share_out(tensors, prefixes), _share_out([one.node for one in ranges.inner], prefixes)
    for body in bodies:
        start = len(body.prefix)
        names = {row: tensors[row][start:] for row in rows[body.prefix]}
        names |= {row_of[name]: name for name in sorted(body.captured_constants) if name in row_of}
        values = (ranges.inner[place] for place in inner[body.prefix])
        yield replace(
            ranges,
            ranges=tuple(replace(ranges.ranges[row], tensor=name) for row, name in names.items()),
            batch_max_abs=ranges.batch_max_abs[list(names)],
            inner=tuple(replace(one, node=one.node[start:]) for one in values),
            not_observed={},
        )


def _share_out(names: Sequence[str], prefixes: Sequence[str]) -> dict[str, list[int]]:
    """The places of the names that begin with each prefix. These are sorted, and none begins another."""
    found: dict[str, list[int]] = {prefix: [] for prefix in prefixes}
    for place, name in enumerate(names if prefixes else ()):
        prefix = prefixes[bisect_right(prefixes, name) - 1]
        if name.startswith(prefix):
            found[prefix].append(place)
    return found


def has_run(body: Body, view: RangeTable) -> bool:
    """Whether the body computed, or was given, a float in any batch; `view` is its own, as look_into gives it."""
    return any(seen.element_count for seen in view.ranges if seen.tensor not in body.captured_constants)

"""What became of every pinned node in an engine: each is counted once, so that none is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_SAID = {
    "honoured": "honoured",
    "not honoured": "NOT honoured",
    "not visible": "not visible",
    "no layer": "without a layer",
    "skipped": "skipped",
    "dropped": "dropped",
    "not reported": "not reported",
}


def sort_pins(
    planned: Iterable[str], states: Mapping[str, str], skipped: Collection[str], dropped: Collection[str]
) -> dict[str, list[str]]:
    """The labels of pinned nodes by what became of them, states without a node left out.

    `states` is what the engine says by node, which goes before all else but "dropped". A planned node
    that is in none of the three is "not reported".
    """
    found: dict[str, list[str]] = {state: [] for state in _SAID}
    for node in dict.fromkeys((*planned, *states, *dropped)):
        state = states.get(node, "skipped" if node in skipped else "not reported")
        found.setdefault("dropped" if node in dropped else state, []).append(node)
    return {state: nodes for state, nodes in found.items() if nodes}


def say_outcomes(found: Mapping[str, Collection[str]]) -> str:
    """Such as "2 honoured, 1 NOT honoured"; "all honoured" only where every pin is."""
    if set(found) == {"honoured"}:
        return "all honoured"
    return ", ".join(f"{len(nodes)} {_SAID.get(state, state)}" for state, nodes in found.items())

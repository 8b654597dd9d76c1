"""Of which tensor a watch may take the statistics for another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_calibration import floats, make_model, node, save

from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.watches import Told, find_told


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ("e", 1),
        ("t", 1),  # holds the same values
        ("r", 1),  # reaches as high, and no magnitude is larger
        ("f", 1),
        ("h", 0.5),
        ("d", 0.125),
        ("n", None),  # its highest is the other's lowest
        ("b", None),
        ("a", None),
        ("p", None),
        ("z", None),
        ("m", None),
        ("x", None),  # without a probe
    ],
)
def test_statistics_are_taken_of_what_reaches_as_high(
    tensor: str, told: float | None, tmp_path: Path
) -> None:
    nodes = [
        node("Elu", "x", "e"),
        node("Transpose", "e", "t"),
        node("Relu", "t", "r"),
        node("Flatten", "r", "f"),
        node("Neg", "e", "n"),
        node("Abs", "e", "a"),
        node("Mul", "e e", "m"),
        node("Mul", "half f", "h"),
        node("Div", "h four", "d"),
        node("Mul", "e minus", "b"),
        node("Add", "e half", "p"),
        node("Div", "half e", "z"),
    ]
    numbers = {"half": floats(0.5), "four": floats(4), "minus": floats(-1)}
    graph = save(make_model(nodes, {"x": [2, 3]}, "d n a m b p z", numbers), tmp_path)
    sources = find_sources(graph, list(graph.tensors))
    expected = None if told is None else Told("of e", told)
    assert find_told(graph, sources, {"e": "of e"}, tensor) == expected

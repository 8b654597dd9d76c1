"""Of which tensor a watch may take the statistics for another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_calibration import make_model, node, save

from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.watches import find_told


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ("e", "of e"),
        ("t", "of e"),  # holds the same values
        ("r", "of e"),  # reaches as high, and no magnitude is larger
        ("f", "of e"),
        ("n", None),  # its highest is the other's lowest
        ("a", None),
        ("m", None),
        ("x", None),  # without a probe
    ],
)
def test_statistics_are_taken_of_what_reaches_as_high(tensor: str, told: str | None, tmp_path: Path) -> None:
    nodes = [
        node("Elu", "x", "e"),
        node("Transpose", "e", "t"),
        node("Relu", "t", "r"),
        node("Flatten", "r", "f"),
        node("Neg", "e", "n"),
        node("Abs", "e", "a"),
        node("Mul", "e e", "m"),
    ]
    graph = save(make_model(nodes, {"x": [2, 3]}, "f n a m"), tmp_path)
    sources = find_sources(graph, list(graph.tensors))
    assert find_told(graph, sources, {"e": "of e"}, tensor) == told

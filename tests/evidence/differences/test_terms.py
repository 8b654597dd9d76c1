"""What a difference is of, and what of that FP16 rounds."""

from __future__ import annotations

from pathlib import Path

from in_memory_calibration import floats, make_model, node, scalar, scan

from overflow_fixer.evidence.differences.terms import find_lost_terms


def test_the_terms_that_are_lost(tmp_path: Path) -> None:
    model = make_model([node("Sum", "a c a b", "y")], {"a": [1], "b": [1]}, "y", {"c": scalar(1.1)})
    graph, ranges = scan(model, tmp_path, {"a": floats(600.2), "b": floats(-1201.3)})
    assert find_lost_terms(graph, ranges, graph.nodes[0]) == ("a", "b")

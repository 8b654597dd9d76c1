"""What operators do with what they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from in_memory_calibration import ints, make_model, node, save, scalar

from overflow_fixer.evidence.semantics import moves


def test_moving_operators(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x shape", "a"),
        node("Concat", "a a", "b", axis=0),
        node("Dropout", "b ratio", "d"),
        node("Dropout", "d ratio training", "e"),
        node("CastLike", "e x", "f"),
        node("Add", "f f", "y"),
    ]
    constants = {"shape": ints(-1), "ratio": scalar(0.5), "training": np.asarray(True)}
    graph = save(make_model(nodes, {"x": [1, 2, 4, 4]}, "y", constants), tmp_path)
    reshape, concat, dropout, training, cast, add = graph.nodes
    assert [moves(reshape, 0), moves(concat, 0), moves(concat, 1), moves(dropout, 0)] == [True] * 4
    assert [moves(reshape, 1), moves(dropout, 1), moves(training, 0), moves(add, 0)] == [False] * 4
    assert [moves(cast, 0), moves(cast, 1)] == [True, False]

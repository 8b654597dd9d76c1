"""A batch holds what it was given, in the machine's byte order."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, scan

from overflow_fixer import open_reference
from overflow_fixer.records import Batch


@pytest.mark.parametrize("kind", [">f4", "<f4", ">f8", ">f2", ">i8", "?", "u1", "O"])
def test_values_are_those_that_were_given(kind: str) -> None:
    given = np.array([[0, 1], [2, 100]], kind)
    batch = Batch("b", {"x": given, "y": given[0, 0]})
    assert batch.feeds["x"].dtype.isnative
    assert batch.feeds["x"].dtype == given.dtype.newbyteorder("=")
    assert batch.feeds["x"].tolist() == given.tolist()
    assert (batch.feeds["x"] is given) is given.dtype.isnative
    assert pickle.loads(pickle.dumps(batch)).feeds["x"].tolist() == given.tolist()


def test_big_endian_arrays_are_scanned_and_run_as_others(tmp_path: Path) -> None:
    values = floats(1, -2.5, 300)
    given = {"x": values.astype(">f4")}
    graph, ranges = scan(make_model([node("Neg", "x", "y")], {"x": [3]}, "y"), tmp_path, given)
    assert [(seen.tensor, seen.min, seen.max) for seen in ranges.ranges] == [
        ("x", -2.5, 300),
        ("y", -300, 2.5),
    ]
    assert open_reference(graph).run(Batch("b", given))["y"].tolist() == [-1, 2.5, -300]

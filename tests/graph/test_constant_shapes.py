"""What ConstantOfShape fills a tensor with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, save

from overflow_fixer.graph.constant_shapes import clip_fill, read_fill


def _fill(value: Any) -> onnx.NodeProto:
    named = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    return node("ConstantOfShape", "shape", "f", **named)


@pytest.mark.parametrize("value", [floats(-1e9), floats(-math.inf), np.asarray([7], np.int64)])
def test_the_number_with_its_type(value: Any, tmp_path: Path) -> None:
    nodes = [_fill(value), node("Cast", "f", "y", to=1)]
    graph = save(make_model(nodes, {"x": None}, "y", {"shape": ints(2, 0)}), tmp_path)
    found = read_fill(graph, "f")
    assert found is not None
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)
    assert read_fill(graph, "y") is None
    assert read_fill(graph, "x") is None


def test_none_where_it_names_none(tmp_path: Path) -> None:
    graph = save(make_model([_fill(None), node("Neg", "f", "y")], {}, "y", {"shape": ints()}), tmp_path)
    assert read_fill(graph, "f") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-math.inf, -25000), (-25000, -25000), (-24999, -24999), (math.inf, 25000), (math.nan, math.nan)],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_clipped(value: float, expected: float, dtype: Any) -> None:
    fill = _fill(np.asarray([value], dtype))
    clip_fill(fill, 25000)
    found = onnx.numpy_helper.to_array(fill.attribute[0].t)
    assert found.dtype == dtype
    assert np.array_equal(found, np.asarray([expected], dtype), equal_nan=True)

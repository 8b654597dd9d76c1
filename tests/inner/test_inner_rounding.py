"""Expressions of what rounding to FP16 loses, against numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, make_model, node, save
from onnx import TensorProto

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.rounding import measure_loss, round_to_fp16
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import open_session, run_session


def _measure(folder: Path, x: np.ndarray, opset: int = 17) -> tuple[np.ndarray, float]:
    """What FP16 makes of -x, and what that loses."""
    graph = save(make_model([node("Neg", "x", "y")], {"x": [None] * x.ndim}, "y", opset=opset), folder)
    constants: dict[object, str] = {}
    expression = Expression(graph, graph.nodes[0], "inside_", constants, {})
    rounded = round_to_fp16(expression, "y")
    names = rounded, measure_loss(expression, rounded)
    model = onnx.load(folder / "model.onnx")
    model.graph.node.extend(expression.nodes)
    model.graph.output.extend(onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    found = run_session(open_session(model, folder), names, Batch("b", {"x": x}))
    return found[0], float(found[1].reshape(-1)[0])


@pytest.mark.parametrize("opset", [9, 17])
def test_what_is_lost_is_a_share_of_the_whole(opset: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    rounded, loss = _measure(tmp_path, x, opset)
    np.testing.assert_array_equal(rounded, -x.astype(np.float16).astype(np.float32))
    exact = x.astype(np.float64)
    expected = np.linalg.norm(exact - x.astype(np.float16)) / np.linalg.norm(exact)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (floats(1, 2, 2048), 0.0),
        (floats(2.0**-26, -(2.0**-26)), 1.0),  # FP16 has zeros for them
        (floats(0, -0.0), 0.0),
        (np.zeros((0, 3), np.float32), 0.0),
        (np.float32(3), 0.0),
        (floats(1e5, 1), math.inf),
    ],
)
def test_boundary(x: np.ndarray, expected: float, opset: int, tmp_path: Path) -> None:
    assert _measure(tmp_path, np.asarray(x), opset)[1] == expected


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_nan_and_infinity_are_handed_on(worst: float, tmp_path: Path) -> None:
    rounded, loss = _measure(tmp_path, floats(1, worst))
    np.testing.assert_array_equal(rounded, floats(-1, -worst))
    assert not 0 <= loss < math.inf

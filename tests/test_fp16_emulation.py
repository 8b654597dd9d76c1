"""The judge is judged: each promise of fp16_emulation on a model small enough to do by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from fp16_emulation import run_fp16, run_fp32, run_typed

TINY = np.float32(1 + 2**-12)
"""Rounds to 1 in FP16, whose step there is 2^-10."""


def _save(folder: Path, graph: str, functions: str = "", opset: str = '"" : 17') -> Path:
    text = f"<ir_version: 8, opset_import: [{opset}]>\n{graph}\n{functions}"
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return folder / "model.onnx"


def _floats(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """y = x * w * 0.5, the product over FP16's range for large x."""
    return _save(
        tmp_path,
        "g (float[N] x) => (float[N] y) <float w = {1.000244140625}, float half = {0.5}>"
        "{ product = Mul(x, w) y = Mul(product, half) }",
    )


def test_fp32_rounds_nothing(chain: Path) -> None:
    values = run_fp32(chain, {"x": _floats(1, 1e6)})
    np.testing.assert_array_equal(values["product"], _floats(TINY, 1e6 * TINY))
    assert values["y"].dtype == np.float32


def test_fp16_rounds_what_is_read_and_written(chain: Path) -> None:
    values = run_fp16(chain, {"x": _floats(TINY, 65519, 65520, -1e6, 2**-26, np.nan)})
    expected = _floats(1, 65504, np.inf, -np.inf, 0, np.nan)
    np.testing.assert_array_equal(values["product"], expected)
    np.testing.assert_array_equal(values["y"], expected / 2)


def test_an_fp32_node_keeps_its_weights_and_its_fp16_reader_rounds(chain: Path) -> None:
    values = run_fp16(chain, {"x": _floats(1, 1e6)}, {"product"})
    np.testing.assert_array_equal(values["product"], _floats(TINY, 1e6 * TINY))
    np.testing.assert_array_equal(values["y"], _floats(0.5, np.inf))


def test_an_fp32_reader_too_gives_the_right_answer(chain: Path) -> None:
    values = run_fp16(chain, {"x": _floats(1e6)}, {"product", "y"})
    np.testing.assert_array_equal(values["y"], run_fp32(chain, {"x": _floats(1e6)})["y"])


def test_typed_rounds_the_float16_tensors_alone(tmp_path: Path) -> None:
    """The parser takes float16 by its bits: 16384 is 2.0."""
    path = _save(
        tmp_path,
        """g (float[N] x) => (float[N] y, float[N] z) <float16 two = {16384}> {
            low = Cast <to: int = 10> (x)
            doubled = Mul(low, two)
            y = Cast <to: int = 1> (doubled)
            z = Add(x, x)
        }""",
    )
    values = run_typed(path, {"x": _floats(TINY, 40000, 70000)})
    assert {values[name].dtype for name in ("low", "doubled", "two")} == {np.dtype(np.float16)}
    np.testing.assert_array_equal(values["low"], np.asarray([1, 40000, np.inf], np.float16))
    np.testing.assert_array_equal(values["y"], _floats(2, np.inf, np.inf))
    np.testing.assert_array_equal(values["z"], _floats(2 * TINY, 80000, 140000))


def test_typed_computes_in_fp32_between_roundings(tmp_path: Path) -> None:
    """60000 + 60000 - 60000 inside one node: FP16 partial sums would be infinite."""
    path = _save(
        tmp_path,
        """g (float16[3] x) => (float16[1] y) { y = ReduceSum <keepdims: int = 1> (x) }""",
    )
    values = run_typed(path, {"x": np.asarray([60000, 60000, -60000], np.float16)})
    np.testing.assert_array_equal(values["y"], np.asarray([60000], np.float16))


def test_integers_and_parameters_are_not_rounded(tmp_path: Path) -> None:
    path = _save(
        tmp_path,
        """g (int64[N] ids, float[1,1,8] x) => (int64[N] next, float[1,1,M] y)
        <int64 one = {1}, float[3] scales = {1, 1, 1.3749}> {
            next = Add(ids, one)
            y = Resize <mode: string = "nearest"> (x, , scales)
        }""",
    )
    values = run_fp16(path, {"ids": np.asarray([70001]), "x": np.ones((1, 1, 8), np.float32)})
    np.testing.assert_array_equal(values["next"], [70002])
    assert values["y"].shape == (1, 1, 10)


def test_control_flow_runs_whole_with_what_it_captures(tmp_path: Path) -> None:
    path = _save(
        tmp_path,
        """g (bool choice, float[N] x) => (float[N] y) {
            y = If (choice) <
                then_branch = t () => (float[N] a) { b = Mul(x, x) a = Sqrt(b) },
                else_branch = e () => (float[N] c) { c = Neg(x) }
            >
        }""",
    )
    values = run_fp16(path, {"choice": np.asarray(True), "x": _floats(1000, 70000)})
    np.testing.assert_array_equal(values["y"], _floats(1000, np.inf))
    values = run_typed(path, {"choice": np.asarray(False), "x": _floats(70000)})
    np.testing.assert_array_equal(values["y"], _floats(-70000))


def test_sequences_are_rounded_item_by_item(tmp_path: Path) -> None:
    path = _save(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            items = SplitToSequence(x)
            y = ConcatFromSequence <axis: int = 0> (items)
        }""",
    )
    values = run_fp16(path, {"x": _floats(TINY, 70000)})
    np.testing.assert_array_equal(np.concatenate(values["items"]), _floats(1, np.inf))
    np.testing.assert_array_equal(values["y"], _floats(1, np.inf))


def test_functions_are_opened(tmp_path: Path) -> None:
    path = _save(
        tmp_path,
        "g (float[N] x) => (float[N] y) { y = local.norm(x) }",
        '<domain: "local", opset_import: ["" : 17]> norm (x) => (y) { square = Mul(x, x) y = Sqrt(square) }',
        '"" : 17, "local" : 1',
    )
    np.testing.assert_array_equal(run_fp32(path, {"x": _floats(1000)})["y"], _floats(1000))
    np.testing.assert_array_equal(run_fp16(path, {"x": _floats(1000)})["y"], _floats(np.inf))

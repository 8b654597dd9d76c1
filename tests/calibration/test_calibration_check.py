from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from calibration_specs import floats, spec

from overflow_fixer.calibration.check import check_feedable, check_feeds, describe_dims, expected_dtype
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import InputSpec

PLACE = "calib, batch 7.npz"


def fault(feeds, *inputs, allow_nonfinite=False):
    with pytest.raises(CalibrationError) as caught:
        check_feeds(PLACE, feeds, inputs, allow_nonfinite=allow_nonfinite)
    text = str(caught.value)
    assert text.startswith(f"{PLACE}: ")
    return text


@pytest.mark.parametrize("dims", [(2, 3), ("n", 3), (None, "m"), (-1, 3), ("n", "m")], ids=str)
def test_what_fits_passes(dims):
    check_feeds(PLACE, {"x": floats(2, 3)}, [spec("x", *dims)], allow_nonfinite=False)


def test_an_input_of_unknown_rank_takes_any():
    free = InputSpec("x", onnx.TensorProto.FLOAT, None)
    for shape in ((), (0,), (1, 2, 3)):
        check_feeds(PLACE, {"x": floats(*shape)}, [free], allow_nonfinite=False)


def test_missing_and_unexpected_names():
    text = fault({"a": floats(1), "z": floats(1)}, spec("a", 1), spec("b", 1), spec("c", 1))
    assert "no data for input 'b', 'c' and data for unknown input 'z'" in text
    assert "'a', 'b', 'c'" in text


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool])
def test_a_dtype_is_never_converted(dtype):
    text = fault({"x": np.zeros(2, dtype)}, spec("x", 2))
    assert f"input 'x' is {np.dtype(dtype).name}. Expected float32" in text
    assert "array.astype('float32')" in text


def test_rank_and_fixed_dimensions():
    assert "has shape [2], 1 dimension. Expected 2: [n, 3]" in fault({"x": floats(2)}, spec("x", "n", 3))
    text = fault({"x": floats(2, 4)}, spec("x", "n", 3))
    assert "has shape [2, 4], dimension 1 is 4. Expected 3: [n, 3]" in text
    assert "dimension 0 is 2. Expected 0" in fault({"x": floats(2)}, spec("x", 0))


def test_inputs_that_share_a_symbol_must_agree():
    ids, mask = spec("ids", "n", "seq"), spec("mask", "n", None, "seq")
    check_feeds(PLACE, {"ids": floats(1, 4), "mask": floats(1, 9, 4)}, [ids, mask], allow_nonfinite=False)
    text = fault({"ids": floats(1, 4), "mask": floats(1, 9, 5)}, ids, mask)
    assert "dimension 2 of input 'mask' is 5, but dimension 1 of input 'ids' is 4" in text
    assert "'seq'" in text
    assert "both 'n'" not in text
    assert "'k'" in fault({"x": floats(2, 3)}, spec("x", "k", "k"))


@pytest.mark.parametrize("name", ["?", "", "-1", " ", "*", "2*n"])
def test_what_is_no_name_says_nothing_of_a_size(name):
    """Paddle2ONNX writes "?" for every dimension that it does not know; ONNX's names are identifiers."""
    image, other = spec("x", "n", name, name), spec("z", "n", name)
    feeds = {"x": floats(2, 48, 192), "z": floats(2, 5)}
    check_feeds(PLACE, feeds, [image, other], allow_nonfinite=False)
    text = fault({**feeds, "z": floats(3, 5)}, image, other)
    assert "dimension 0 of input 'z' is 3, but dimension 0 of input 'x' is 2" in text


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_nonfinite_values_are_counted_and_placed(dtype):
    x = np.zeros((2, 3), dtype)
    x[1, 0] = x[1, 2] = np.nan
    infinite = dtype is not ml_dtypes.float8_e4m3fn  # which has no infinity
    if infinite:
        x[0, 1] = -np.inf
    text = fault({"x": x}, spec("x", 2, 3, dtype=dtype))
    assert f"input 'x' holds 2 NaN and {int(infinite)} infinite values of 6" in text
    assert (
        "give --allow-nonfinite (allow_nonfinite = true in [calibration], or in a class of your own" in text
    )
    assert f"the first at {[0, 1] if infinite else [1, 0]}" in text
    check_feeds(PLACE, {"x": x}, [spec("x", 2, 3, dtype=dtype)], allow_nonfinite=True)


def test_strings_and_other_types_have_no_nonfinite_values():
    text = InputSpec("t", onnx.TensorProto.STRING, (2,))
    check_feeds(PLACE, {"t": np.array(["a", "bc"])}, [text], allow_nonfinite=False)
    check_feeds(PLACE, {"i": np.array([1, 2])}, [spec("i", 2, dtype=np.int64)], allow_nonfinite=False)
    assert "Expected str" in fault({"t": np.array([1, 2])}, text)
    assert "is str" in fault({"x": np.array(["a"])}, spec("x", 1))


def test_an_input_that_is_no_tensor_is_refused():
    with pytest.raises(CalibrationError, match=r"input 's' is not a tensor.*Expected"):
        check_feedable([spec("x", 1), InputSpec("s", onnx.TensorProto.UNDEFINED, None)])


def test_descriptions():
    assert describe_dims((1, "n", None, -1)) == "[1, n, ?, ?]"
    assert describe_dims(None) == "any shape"
    assert expected_dtype(InputSpec("x", onnx.TensorProto.BFLOAT16, ())) == ml_dtypes.bfloat16

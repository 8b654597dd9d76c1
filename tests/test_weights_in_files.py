"""Constants read in parts: together they are the whole, and no part is larger than asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file import weights
from overflow_fixer.model_file.weights import read_rows, read_values
from overflow_fixer.records import Array

BEFORE = b"header"


def _store(values: Array, folder: Path) -> TensorProto:
    """The constant as external data that begins at an odd place of a file."""
    tensor = numpy_helper.from_array(values, "w")
    (folder / "w.bin").write_bytes(BEFORE + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", str(len(BEFORE))), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.integers(0, 200),
    st.sampled_from([np.float32, np.float16, np.int64]),
    st.booleans(),
)
def test_rows_together_are_the_constant(dims: list[int], most: int, dtype: type, is_external: bool) -> None:
    values = np.arange(math.prod(dims)).reshape(dims).astype(dtype)
    with TemporaryDirectory() as name:
        folder = Path(name)
        tensor = _store(values, folder) if is_external else numpy_helper.from_array(values, "w")
        parts = [part.copy() for part in read_rows(tensor, folder, most)]  # the next overwrites it
    assert all(part.nbytes <= most or len(part) == 1 for part in parts)
    whole = np.concatenate(parts) if parts else values[:0]
    np.testing.assert_array_equal(whole, values, strict=True)


@pytest.mark.parametrize("read", [read_values, lambda tensor, folder: list(read_rows(tensor, folder, 64))])
def test_a_file_that_became_shorter_is_an_error(read: Callable[..., Any], tmp_path: Path) -> None:
    tensor = _store(np.ones((4, 8), np.float32), tmp_path)
    (tmp_path / "w.bin").write_bytes(b"x" * 100)
    with pytest.raises(ModelError, match="ends within the data of tensor 'w'"):
        read(tensor, tmp_path)


@pytest.mark.parametrize("length", [None, "", "0", "48"])
def test_a_length_that_is_left_out_is_the_rest_of_the_file(length: str | None, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = _store(values, tmp_path)
    del tensor.external_data[-1]
    if length is not None:
        tensor.external_data.add(key="length", value=length)
    np.testing.assert_array_equal(read_values(tensor, tmp_path), values, strict=True)


@pytest.mark.parametrize("dims", [(3, 5), (0, 4), ()])
@pytest.mark.parametrize(
    "kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "INT4", "UINT4", "FLOAT8E4M3FN"]
)
def test_every_type_is_read_as_the_library_reads_it(kind: str, dims: tuple[int, ...], tmp_path: Path) -> None:
    """Of some, two elements lie in a byte."""
    elements = np.ones(dims) if kind == "BOOL" else np.arange(math.prod(dims)) % 8
    made = helper.make_tensor("w", getattr(TensorProto, kind), dims, elements.reshape(-1).tolist())
    whole = numpy_helper.from_array(numpy_helper.to_array(made), "w")
    tensor = TensorProto(name="w", data_type=whole.data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    (tmp_path / "w.bin").write_bytes(BEFORE + whole.raw_data + b"behind")
    for key, value in (("location", "w.bin"), ("offset", len(BEFORE)), ("length", len(whole.raw_data))):
        tensor.external_data.add(key=key, value=str(value))
    found, expected = read_values(tensor, tmp_path), numpy_helper.to_array(whole)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_a_plain_constant_goes_through_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would hold it a second time."""
    values = np.arange(12, dtype=np.float32)
    tensor = _store(values, tmp_path)
    monkeypatch.setattr(weights, "bring_in", lambda *given: pytest.fail("it was put into a message"))
    np.testing.assert_array_equal(read_values(tensor, tmp_path), values, strict=True)

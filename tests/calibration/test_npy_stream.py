from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from overflow_fixer.calibration.npy_stream import read_array, read_rows

ARRAYS = hnp.arrays(
    st.sampled_from(["<f4", ">f8", "<i8", "?", "<f2", "u1", "<U3"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def stream(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    size_bytes = file.tell()
    file.seek(0)
    return file, size_bytes


@settings(deadline=None)
@given(ARRAYS, st.booleans(), st.sampled_from([None, (2, 0)]))
def test_it_reads_what_numpy_writes(array, fortran, version):
    array = np.asfortranarray(array) if fortran and array.ndim else array
    found = read_array(*stream(array, version))
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@settings(deadline=None)
@given(ARRAYS.filter(lambda array: array.ndim > 0), st.booleans(), st.data())
def test_rows_join_to_the_array(array, fortran, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=4)))
    counts = np.diff([0, *cuts, len(array)]).tolist()
    pieces = list(read_rows(*stream(np.asfortranarray(array) if fortran else array), counts))
    assert [len(piece) for piece in pieces] == counts
    assert b"".join(piece.tobytes() for piece in pieces) == array.tobytes()


def test_no_more_is_read_than_asked_for():
    file, size_bytes = stream(np.zeros((1000, 10), np.float32))
    next(read_rows(file, size_bytes, [2, 998]))
    assert file.tell() == 128 + 2 * 40


def handmade(descr, shape):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return io.BytesIO(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())


@pytest.mark.parametrize("descr", ["'|O'", "[('a', '|O')]"])
def test_objects_are_refused(descr):
    with pytest.raises(ValueError, match="pickled Python objects"):
        read_array(handmade(descr, "(1,)"), 1000)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        (f"({10**12},)", "ends after 0 of 4000000000000 bytes"),
        (f"({10**30}, 3)", "ends after 0 of"),
        (f"({10**30}, 0)", "dimension"),
        ("(-1, 3)", r"its shape is \(-1, 3\)"),
        ("(-1, -1)", r"its shape is \(-1, -1\)"),
        ("(1.5,)", "shape is not valid"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(shape, found):
    file = handmade("'<f4'", shape)
    with pytest.raises(ValueError, match=found):
        read_array(file, len(file.getvalue()))


def test_a_later_version_and_a_short_file_are_refused():
    with pytest.raises(ValueError, match="version"):
        read_array(io.BytesIO(b"\x93NUMPY\x03\x00"), 8)
    file, size_bytes = stream(np.zeros(9))
    with pytest.raises(ValueError, match="ends after 71 of 72 bytes"):
        read_array(file, size_bytes - 1)


def test_what_follows_an_array_is_not_left_out_unseen():
    file, size_bytes = stream(np.zeros(9))
    with pytest.raises(ValueError, match="3 bytes follow its array"):
        read_array(file, size_bytes + 3)

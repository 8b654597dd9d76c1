from __future__ import annotations

import io
from zipfile import ZipFile

import numpy as np
import pytest
from calibration_specs import floats, refusal, spec, walk

X = spec("x", 1, 3)
IDS = spec("ids", 1, "seq", dtype=np.int64)


def test_a_folder_holds_one_batch_a_file_in_natural_order(tmp_path):
    for index in (10, 2, 1):
        np.savez(tmp_path / f"b{index}.npz", x=np.full((1, 3), index, np.float32))
    batches = walk(tmp_path, X)
    assert [batch.name for batch in batches] == ["b1.npz", "b2.npz", "b10.npz"]
    assert [batch.feeds["x"][0, 0] for batch in batches] == [1, 2, 10]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_file_is_cut_along_its_sample_axis(tmp_path, save):
    x, ids = floats(6, 1, 3), np.arange(30).reshape(6, 5)
    save(tmp_path / "all.npz", x=x, ids=ids)
    batches = walk(tmp_path / "all.npz", X, IDS)
    assert [batch.name for batch in batches] == [f"all.npz[{index}]" for index in range(6)]
    for index, batch in enumerate(batches):
        np.testing.assert_array_equal(batch.feeds["x"], x[index])
        np.testing.assert_array_equal(batch.feeds["ids"], ids[index : index + 1])


def test_a_fortran_ordered_array_is_cut_into_the_same_samples(tmp_path):
    x = floats(4, 2, 3)
    np.savez_compressed(tmp_path / "all.npz", x=np.asfortranarray(x))
    batches = walk(tmp_path / "all.npz", spec("x", "n", 2, 3), batch_size=3)
    assert [batch.name for batch in batches] == ["all.npz[0:3]", "all.npz[3:4]"]
    np.testing.assert_array_equal(np.concatenate([batch.feeds["x"] for batch in batches]), x)


def test_input_names_with_slashes_and_colons_are_keys(tmp_path):
    np.savez(tmp_path / "b.npz", **{"images/in:0": floats(1, 3)})
    (batch,) = walk(tmp_path, spec("images/in:0", 1, 3))
    np.testing.assert_array_equal(batch.feeds["images/in:0"], floats(1, 3))


def test_one_batch_with_a_scalar_input(tmp_path):
    np.savez(tmp_path / "b.npz", x=floats(1, 3), s=np.float32(2))
    for path in (tmp_path, tmp_path / "b.npz"):
        (batch,) = walk(path, X, spec("s"))
        assert batch.feeds["s"].shape == ()
        assert batch.feeds["s"] == 2


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.9])
def test_a_truncated_file_is_refused_by_name(tmp_path, single, keep):
    path = tmp_path / "cut.npz"
    np.savez(path, x=floats(50, 3))
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    text = refusal(path if single else tmp_path, spec("x", "n", 3))
    assert text.startswith(f"{path} cannot be read: ")
    assert "numpy.savez" in text


@pytest.mark.parametrize("single", [True, False])
def test_a_flipped_byte_is_found_by_the_checksum(tmp_path, single):
    path = tmp_path / "b.npz"
    np.savez(path, x=floats(50, 3))
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(bytes(data))
    text = refusal(path if single else tmp_path, spec("x", "n", 3))
    assert text.startswith(f"{path} cannot be read: ")
    assert "CRC" in text


@pytest.mark.parametrize("single", [True, False])
def test_pickled_objects_are_never_loaded(tmp_path, single):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    np.savez(tmp_path / "b.npz", x=np.array([[Trap()] * 3], dtype=object))
    text = refusal(tmp_path / "b.npz" if single else tmp_path, X)
    assert "b.npz cannot be read" in text
    assert "pickled Python objects" in text


def test_a_member_that_is_no_array_is_refused(tmp_path):
    with ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x.npy", "not an array")
    assert "magic string" in refusal(tmp_path, X)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("second", ["x.npy", "x"])
def test_an_array_that_is_there_twice_is_refused(tmp_path, second, single):
    path, array = tmp_path / "b.npz", io.BytesIO()
    np.save(array, floats(1, 3))
    with ZipFile(path, "w") as archive:
        archive.writestr("x.npy", array.getvalue())
        archive.writestr(second, array.getvalue())
    text = refusal(path if single else tmp_path, X)
    assert text.startswith(
        f"{path} cannot be read: the array 'x' is in it twice, as x.npy and {second}. Expected"
    )


@pytest.mark.parametrize("single", [True, False])
def test_wrong_keys_name_what_is_missing_and_what_is_unknown(tmp_path, single):
    np.savez(tmp_path / "b.npz", floats(1, 3))
    text = refusal(tmp_path / "b.npz" if single else tmp_path, X)
    assert "no data for input 'x' and data for unknown input 'arr_0'" in text
    assert "b.npz" in text


def test_a_file_of_samples_in_a_folder_says_what_to_do(tmp_path):
    np.savez(tmp_path / "all.npz", x=floats(6, 3))
    text = refusal(tmp_path, X)
    assert "batch all.npz: input 'x' has shape [6, 3], dimension 0 is 6. Expected 1: [1, 3]" in text
    assert "give that one file" in text

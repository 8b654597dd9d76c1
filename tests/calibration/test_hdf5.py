from __future__ import annotations

import h5py
import numpy as np
import pytest
from calibration_specs import floats, refusal, spec, walk

X = spec("x", 1, 3)
MASK = spec("mask", "n", 2, dtype=bool)


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "all.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=floats(5, 1, 3), compression="gzip", chunks=(2, 1, 3))
        file["mask"] = np.arange(10).reshape(5, 2) > 4
    return path


def test_one_file_is_cut_along_its_sample_axis(samples):
    batches = walk(samples, X, MASK)
    assert [batch.name for batch in batches] == [f"all.h5[{index}]" for index in range(5)]
    np.testing.assert_array_equal(np.stack([b.feeds["x"] for b in batches]), floats(5, 1, 3))
    masks = np.concatenate([batch.feeds["mask"] for batch in batches])
    assert masks.dtype == bool
    np.testing.assert_array_equal(masks, np.arange(10).reshape(5, 2) > 4)


def test_a_folder_holds_one_batch_a_file(tmp_path):
    for index in range(2):
        with h5py.File(tmp_path / f"{index}.hdf5", "w") as file:
            file["x"] = floats(1, 3) + index
            file["s"] = np.float32(index)
    batches = walk(tmp_path, X, spec("s"))
    assert [batch.name for batch in batches] == ["0.hdf5", "1.hdf5"]
    np.testing.assert_array_equal(batches[1].feeds["x"], floats(1, 3) + 1)
    assert batches[1].feeds["s"].shape == ()


@pytest.mark.parametrize("name", ["a/b/c", "/a/b/c"])
def test_a_name_with_slashes_is_a_dataset_in_groups(tmp_path, name):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file[name] = floats(2, 1, 3)
    batches = walk(tmp_path / "b.h5", spec(name, 1, 3))
    np.testing.assert_array_equal(batches[1].feeds[name], floats(2, 1, 3)[1])


def test_a_dataset_of_two_names_is_that_of_two_inputs(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["g/x"] = floats(1, 3)
        file["y"] = file["g/x"]
    (batch,) = walk(tmp_path / "b.h5", spec("g/x", 1, 3), spec("y", 1, 3))
    np.testing.assert_array_equal(batch.feeds["y"], batch.feeds["g/x"])


def test_one_batch_with_a_scalar_input(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"], file["s"] = floats(1, 3), np.float32(2)
    (batch,) = walk(tmp_path / "b.h5", X, spec("s"))
    assert batch.feeds["s"].shape == ()
    assert batch.feeds["s"] == 2


def test_wrong_dataset_names_are_refused(samples):
    text = refusal(samples, X, spec("other", 1, 3))
    assert text.startswith(f"{samples}: ")
    assert "no data for input 'other' and data for unknown input 'mask'" in text


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("content", [b"", b"not HDF5 at all"])
def test_what_is_not_hdf5_is_refused(tmp_path, content, single):
    path = tmp_path / "b.h5"
    path.write_bytes(content)
    text = refusal(path if single else tmp_path, X)
    assert text.startswith(f"{path} cannot be read: ")
    assert "HDF5 file" in text


def test_data_that_memory_has_no_room_for_are_not_told_as_damaged(samples, monkeypatch):
    def refuse(*given):
        raise OSError("Can't synchronously read data (memory allocation failed for chunk)")

    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    with pytest.raises(MemoryError, match="memory allocation failed"):
        walk(samples, X, MASK)


def test_a_truncated_file_is_refused(samples):
    samples.write_bytes(samples.read_bytes()[:-2000])
    assert refusal(samples, X, MASK).startswith(f"{samples} cannot be read: ")


@pytest.mark.parametrize("data", [["a", "b"], h5py.Empty("f")])
def test_strings_and_empty_datasets_are_refused(tmp_path, data):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = data
    text = refusal(tmp_path / "b.h5", X)
    assert "its dataset 'x'" in text
    assert "is not an array of numbers" in text


@pytest.mark.parametrize("link", [h5py.SoftLink("/z"), h5py.ExternalLink("other.h5", "/z")])
def test_a_link_is_refused_as_one(tmp_path, link):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["z"] = floats(1, 3)
        file["x"] = link
    assert "its 'x' is a link to '/z', which is not followed" in refusal(tmp_path / "b.h5", X)


def test_a_dataset_with_its_values_in_another_file_is_refused(tmp_path):
    layout = h5py.VirtualLayout((5, 1, 3), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "z", (5, 1, 3))
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("x", (5, 1, 3), "f4", external=[("raw", 0, 60)])
    for name in ("virtual.h5", "external.h5"):
        text = refusal(tmp_path / name, X)
        assert "its dataset 'x' (virtual, or stored externally) has its values elsewhere" in text

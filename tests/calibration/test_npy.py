from __future__ import annotations

import numpy as np
import pytest
from calibration_specs import floats, refusal, spec, walk

from overflow_fixer.calibration.npy import folder_name

X = spec("x", 1, 3)
MASK = spec("mask", 1, 2, dtype=bool)


def write_folders(root, names, folders=("x", "mask")):
    for folder, array in zip(folders, (floats(1, 3), np.ones((1, 2), bool)), strict=True):
        (root / folder).mkdir()
        for name in names:
            np.save(root / folder / name, array)


def test_a_folder_for_a_model_with_one_input(tmp_path):
    for index in (0, 1):
        np.save(tmp_path / f"{index}.npy", floats(1, 3) + index)
    batches = walk(tmp_path, X)
    assert [batch.name for batch in batches] == ["0.npy", "1.npy"]
    np.testing.assert_array_equal(batches[1].feeds["x"], floats(1, 3) + 1)


def test_one_file_is_cut_along_its_sample_axis(tmp_path):
    np.save(tmp_path / "all.npy", floats(5, 3))
    batches = walk(tmp_path / "all.npy", X)
    assert [batch.name for batch in batches] == [f"all.npy[{index}]" for index in range(5)]
    np.testing.assert_array_equal(np.concatenate([b.feeds["x"] for b in batches]), floats(5, 3))


def test_a_folder_an_input(tmp_path):
    write_folders(tmp_path, ["10.npy", "9.npy"])
    batches = walk(tmp_path, X, MASK)
    assert [batch.name for batch in batches] == ["9.npy", "10.npy"]
    assert set(batches[0].feeds) == {"x", "mask"}
    assert batches[0].feeds["mask"].all()


def test_a_folder_an_input_serves_a_single_input_too(tmp_path):
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "0.npy", floats(1, 3))
    assert [batch.name for batch in walk(tmp_path, X)] == ["0.npy"]


def test_a_name_that_file_systems_refuse_is_written_with_underscores(tmp_path):
    write_folders(tmp_path, ["0.npy"], ("model_in_0", "mask"))
    (batch,) = walk(tmp_path, spec("model/in:0", 1, 3), MASK)
    np.testing.assert_array_equal(batch.feeds["model/in:0"], floats(1, 3))


def test_folder_name_replaces_only_what_is_refused():
    assert folder_name('a/b\\c:d*e?f"g<h>i|j\n') == "a_b_c_d_e_f_g_h_i_j_"
    assert folder_name("serving_default-x.1") == "serving_default-x.1"


def test_a_folder_of_two_inputs_is_refused(tmp_path):
    write_folders(tmp_path, ["0.npy"], ("a_b", "mask"))
    text = refusal(tmp_path, spec("a/b", 1, 3), spec("a:b", 1, 3), MASK)
    assert f"{tmp_path / 'a_b'} could be the folder of any of the inputs ['a/b', 'a:b']" in text


def test_files_without_folders_are_refused_for_several_inputs(tmp_path):
    np.save(tmp_path / "x.npy", floats(1, 3))
    text = refusal(tmp_path, X, MASK)
    assert "x.npy is the first" in text
    assert "x/, mask/" in text


def test_a_missing_and_an_unknown_folder_are_named(tmp_path):
    write_folders(tmp_path, ["0.npy"], ("x", "masks"))
    text = refusal(tmp_path, X, MASK)
    assert "no data for input 'mask' and data for unknown input 'masks'" in text


def test_folders_with_different_files_are_refused(tmp_path):
    write_folders(tmp_path, ["0.npy", "1.npy"])
    (tmp_path / "mask" / "1.npy").unlink()
    text = refusal(tmp_path, X, MASK)
    assert "input 'mask' has no 1.npy (1 of 2 are missing)" in text


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path, keep, single):
    path = tmp_path / "b.npy"
    np.save(path, floats(1, 3))
    path.write_bytes(path.read_bytes()[:keep])
    text = refusal(path if single else tmp_path, X)
    assert text.startswith(f"{path} cannot be read: ")
    assert "numpy.save" in text


@pytest.mark.parametrize("single", [True, False])
def test_several_arrays_in_one_file_are_refused_by_name(tmp_path, single):
    path = tmp_path / "b.npy"
    with path.open("wb") as file:
        for value in (1.0, 1e6):
            np.save(file, np.full((1, 3), value, np.float32))
    text = refusal(path if single else tmp_path, X)
    assert text.startswith(f"{path} cannot be read: 140 bytes follow its array")
    assert "only the first would be read. Expected a whole .npy file" in text


@pytest.mark.parametrize("single", [True, False])
def test_pickled_objects_are_never_loaded(tmp_path, single):
    np.save(tmp_path / "b.npy", np.array([{}], dtype=object))
    text = refusal(tmp_path / "b.npy" if single else tmp_path, X)
    assert "b.npy cannot be read" in text
    assert "pickled Python objects" in text

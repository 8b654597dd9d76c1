"""The format is found from the files; and every row of READERS keeps the same contract."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from calibration_specs import floats, refusal, spec
from PIL import Image
from test_polygraphy import encoded

from overflow_fixer.calibration import READERS, CalibrationOptions, open_calibration

X = spec("x", 1, 3, 4, 4)
BAD = spec("y", 2, 2, dtype=np.int64)


def write_npz(root):
    for index in range(3):
        np.savez(root / f"{index}.npz", x=floats(1, 3, 4, 4) + index)
    return root


def write_npy(root):
    (root / "x").mkdir()
    for index in range(3):
        np.save(root / "x" / f"{index}.npy", floats(1, 3, 4, 4) + index)
    return root


def write_hdf5(root):
    with h5py.File(root / "all.h5", "w") as file:
        file["x"] = floats(3, 1, 3, 4, 4)
    return root / "all.h5"


def write_polygraphy(root):
    (root / "in.json").write_text(
        json.dumps([{"x": encoded(floats(1, 3, 4, 4) + index)} for index in range(3)])
    )
    return root


def write_images(root):
    for index in range(3):
        Image.new("RGB", (5, 6), (index, 2, 3)).save(root / f"{index}.png")
    return root


EXAMPLES = {
    "npz": write_npz,
    "npy": write_npy,
    "hdf5": write_hdf5,
    "polygraphy": write_polygraphy,
    "images": write_images,
    "random": lambda root: "random",
}
OPTIONS = CalibrationOptions(random_batches=3, images={})


def test_every_reader_has_an_example_and_suffixes_of_its_own():
    assert set(EXAMPLES) == set(READERS)
    suffixes = [suffix for reader in READERS.values() for suffix in reader.SUFFIXES]
    assert len(suffixes) == len(set(suffixes))
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in suffixes)


@pytest.mark.parametrize("name", READERS)
def test_a_set_can_be_walked_again_and_again(name, tmp_path):
    calibration = open_calibration(EXAMPLES[name](tmp_path), [X], OPTIONS)
    first, second = list(calibration), list(calibration)
    names = [batch.name for batch in first]
    assert len(calibration) == len(names) == len(set(names)) == 3
    assert names == [batch.name for batch in second]
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.feeds["x"], two.feeds["x"])
    assert (first[0].feeds["x"] != first[1].feeds["x"]).any()


@pytest.mark.parametrize("name", READERS)
def test_two_walks_at_once_do_not_disturb_each_other(name, tmp_path):
    calibration = open_calibration(EXAMPLES[name](tmp_path), [X], OPTIONS)
    for one, two in zip(calibration, calibration, strict=True):
        assert one.name == two.name
        np.testing.assert_array_equal(one.feeds["x"], two.feeds["x"])


@pytest.mark.parametrize("name", READERS)
def test_a_set_says_where_it_comes_from(name, tmp_path):
    path = EXAMPLES[name](tmp_path)
    calibration = open_calibration(path, [X], OPTIONS)
    assert str(path) in calibration.source
    assert calibration.synthetic == (name == "random")
    assert len(bytes.fromhex(calibration.fingerprint)) == 32
    assert calibration.fingerprint == open_calibration(path, [X], OPTIONS).fingerprint


@pytest.mark.parametrize("name", [name for name in READERS if name != "random"])
def test_data_for_another_model_are_refused_with_the_place(name, tmp_path):
    path = EXAMPLES[name](tmp_path)
    text = refusal(path, BAD, images={})
    assert "'y'" in text
    assert str(path) in text or name == "images"


@pytest.mark.parametrize("name", [name for name in READERS if name != "random"])
def test_a_broken_file_is_named(name, tmp_path):
    EXAMPLES[name](tmp_path)
    broken = sorted(file for file in tmp_path.rglob("*") if file.is_file())[-1]
    broken.write_bytes(b"\x00 broken \x00")
    text = refusal(tmp_path, X, images={})
    assert text.startswith(f"{broken} cannot be read: ")


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("random", "npy")])
def test_only_npy_lies_in_subfolders(name, tmp_path):
    (tmp_path / "sub").mkdir()
    EXAMPLES[name](tmp_path / "sub")
    assert f"{tmp_path} has its data in subfolders (sub/" in refusal(tmp_path, X, images={})


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("max_batches", [1, 3, 5])
def test_a_set_can_be_limited(name, max_batches, tmp_path):
    path = EXAMPLES[name](tmp_path)
    calibration = open_calibration(path, [X], replace(OPTIONS, max_batches=max_batches))
    assert len(list(calibration)) == len(calibration) == min(3, max_batches)


def test_mixed_formats_are_refused_by_name(tmp_path):
    write_npz(tmp_path)
    write_images(tmp_path)
    text = refusal(tmp_path, X)
    assert f"{tmp_path} mixes formats: 0.npz, 0.png" in text


@pytest.mark.parametrize("name", ["0.bin", "data", "input_0.pb", "a.npy.gz"])
def test_a_file_of_no_known_format_is_refused_by_name(tmp_path, name):
    write_npz(tmp_path)
    (tmp_path / name).touch()
    for path in (tmp_path, tmp_path / name):
        text = refusal(path, X)
        assert f"{name} is no calibration data by its name" in text
        assert ".npz, .npy, .h5" in text


def test_an_empty_and_a_missing_folder(tmp_path):
    assert "holds no calibration data" in refusal(tmp_path, X)
    assert f"{tmp_path / 'gone'} cannot be read" in refusal(tmp_path / "gone", X)


def test_endings_in_capitals_are_known(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "A.PNG")
    Image.new("RGB", (4, 4)).save(tmp_path / "b.Jpeg")
    assert len(open_calibration(tmp_path, [X], OPTIONS)) == 2


def test_a_model_without_inputs_gets_one_batch_without_feeds(tmp_path):
    for path in (tmp_path, "random", tmp_path / "gone"):
        calibration = open_calibration(path, [])
        assert [batch.feeds for batch in calibration] == [{}] == [batch.feeds for batch in calibration]
        assert len(calibration) == 1
        assert not calibration.synthetic
        assert "no inputs" in calibration.source
        assert calibration.fingerprint

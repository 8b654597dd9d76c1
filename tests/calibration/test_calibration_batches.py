from __future__ import annotations

import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from calibration_specs import floats, refusal, spec, walk

from overflow_fixer.calibration import CalibrationOptions, open_calibration
from overflow_fixer.errors import CalibrationError

X = spec("x", "n", 3)


def fingerprint(path, **options):
    return open_calibration(path, [X], CalibrationOptions(**options)).fingerprint


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "calib"
    root.mkdir()
    for index in range(3):
        np.savez(root / f"{index}.npz", x=floats(1, 3) + index)
    return root


@pytest.mark.parametrize("dtype", [">f4", "<f4"])
def test_arrays_come_in_native_byte_order(tmp_path, dtype):
    np.savez(tmp_path / "b.npz", x=floats(1, 3).astype(dtype))
    (batch,) = walk(tmp_path, X)
    assert batch.feeds["x"].dtype.isnative
    np.testing.assert_array_equal(batch.feeds["x"], floats(1, 3))


def test_arrays_come_in_c_order_and_can_be_written(tmp_path):
    np.savez(tmp_path / "b.npz", x=np.asfortranarray(floats(2, 3)))
    (batch,) = walk(tmp_path, X)
    assert batch.feeds["x"].flags.c_contiguous
    assert batch.feeds["x"].flags.writeable
    np.testing.assert_array_equal(batch.feeds["x"], floats(2, 3))


def test_a_type_that_npy_has_no_name_for(tmp_path):
    values = floats(1, 3).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "b.npz", x=values)
    (batch,) = walk(tmp_path, spec("x", 1, 3, dtype=ml_dtypes.bfloat16))
    assert batch.feeds["x"].dtype == ml_dtypes.bfloat16
    assert batch.feeds["x"].tobytes() == values.tobytes()
    assert "Expected float32" in refusal(tmp_path, spec("x", 1, 3))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.complex64])
def test_types_that_onnxruntime_takes_from_no_array_are_refused(tmp_path, dtype):
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 3), dtype))
    text = refusal(tmp_path, spec("x", 1, 3, dtype=dtype))
    assert text.startswith("The model's input 'x' is of type ")
    assert "Have the model take a float32 and cast it." in text


def test_feeds_are_in_the_order_of_the_models_inputs(tmp_path):
    np.savez(tmp_path / "b.npz", a=floats(1, 3), b=floats(1, 3))
    (batch,) = walk(tmp_path, spec("b", 1, 3), spec("a", 1, 3))
    assert list(batch.feeds) == ["b", "a"]


def test_batches_are_read_when_they_are_asked_for(folder):
    (folder / "1.npz").write_bytes(b"broken")
    calibration = open_calibration(folder, [X])
    assert len(calibration) == 3
    batches = iter(calibration)
    assert next(batches).name == "0.npz"
    with pytest.raises(CalibrationError, match=r"1\.npz cannot be read"):
        next(batches)


def test_max_batches_takes_the_first(folder):
    calibration = open_calibration(folder, [X], CalibrationOptions(max_batches=2))
    assert len(calibration) == 2
    assert [batch.name for batch in calibration] == ["0.npz", "1.npz"]
    assert len(open_calibration(folder, [X], CalibrationOptions(max_batches=9))) == 3


def test_a_fingerprint_stays_when_nothing_changes(folder, tmp_path):
    mark = fingerprint(folder)
    os.utime(folder / "1.npz", (1, 1))
    (folder / "README.md").write_text("words")
    assert fingerprint(folder, seed=5, allow_nonfinite=True) == mark
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == mark


def test_a_fingerprint_changes_with_the_data(folder):
    mark = fingerprint(folder)
    (folder / "2.npz").rename(folder / "3.npz")
    renamed = fingerprint(folder)
    np.savez(folder / "3.npz", x=floats(1, 3) + 7)
    changed = fingerprint(folder)
    (folder / "3.npz").unlink()
    assert len({mark, renamed, changed, fingerprint(folder), fingerprint(folder, max_batches=1)}) == 5


def test_a_fingerprint_looks_at_no_more_than_is_used(folder):
    mark = fingerprint(folder, max_batches=2)
    (folder / "2.npz").write_bytes(b"changed")
    assert fingerprint(folder, max_batches=2) == mark


def test_data_that_were_written_again_as_they_were_are_read(folder):
    """By rsync; or they have another inode each time they are opened, as on file systems in user space."""
    calibration = open_calibration(folder, [X])
    before = calibration.fingerprint
    content = (folder / "1.npz").read_bytes()
    (folder / "1.npz").unlink()
    (folder / "other").touch()  # takes the inode
    (folder / "1.npz").write_bytes(content)
    os.utime(folder / "2.npz", (1, 1))
    assert len(list(calibration)) == len(calibration)
    assert calibration.fingerprint == before


def test_what_is_written_behind_the_fingerprint_is_refused_where_it_is_read(folder):
    calibration = open_calibration(folder, [X])
    before = calibration.fingerprint
    batches = iter(calibration)
    next(batches)
    np.savez(folder / "1.npz", x=floats(1, 3) + 9)
    with pytest.raises(CalibrationError, match=r"1\.npz changed while it was in use"):
        next(batches)
    anew = open_calibration(folder, [X])
    assert len(list(anew)) == 3
    assert anew.fingerprint != before


def test_a_fingerprint_changes_with_the_size_of_batches(tmp_path):
    np.savez(tmp_path / "all.npz", x=floats(6, 3))
    marks = [fingerprint(tmp_path / "all.npz", batch_size=size) for size in (2, 3, 2)]
    assert marks[0] == marks[2] != marks[1]


def test_a_file_that_is_gone_by_then_is_named(folder):
    calibration = open_calibration(folder, [X])
    (folder / "1.npz").unlink()
    with pytest.raises(CalibrationError, match=r"1\.npz cannot be read: No such file"):
        _ = calibration.fingerprint


def test_a_file_that_may_not_be_read_is_not_told_to_be_written_again(folder, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    source = open_calibration(folder, [X], CalibrationOptions())
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("io.open", refuse)
    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(
        CalibrationError, match=r"Permission denied\. Expected a file that this user may read"
    ):
        list(source)

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from calibration_specs import refusal, spec, walk

from overflow_fixer.calibration import CalibrationOptions, open_calibration
from overflow_fixer.records import InputSpec


def test_shapes_and_values_by_dtype():
    inputs = [spec("x", "n", 3, None, 64), spec("i", "n", 100, dtype=np.int64), spec("b", 100, dtype=bool)]
    inputs += [spec("h", -1, 5, dtype=np.float16), spec("bf", 2, dtype=ml_dtypes.bfloat16), spec("s")]
    batch = walk("random", *inputs)[0]
    shapes = {name: array.shape for name, array in batch.feeds.items()}
    assert shapes == {"x": (1, 3, 1, 64), "i": (1, 100), "b": (100,), "h": (1, 5), "bf": (2,), "s": ()}
    assert 0 <= batch.feeds["x"].min() < batch.feeds["x"].max() < 1
    assert set(batch.feeds["i"].ravel().tolist()) == {0, 1}
    assert batch.feeds["b"].dtype == bool
    assert batch.feeds["bf"].dtype == ml_dtypes.bfloat16


def test_it_says_that_it_is_random_and_proves_nothing():
    calibration = open_calibration("random", [spec("x", 3)])
    assert calibration.synthetic
    assert "random" in calibration.source
    assert "prove nothing about real data" in calibration.source


def test_the_seed_decides_and_batches_differ():
    first, second = walk("random", spec("x", 9), random_batches=2)
    assert [first.name, second.name] == ["random[0]", "random[1]"]
    assert (first.feeds["x"] != second.feeds["x"]).any()
    again = walk("random", spec("x", 9), random_batches=7)[1]
    np.testing.assert_array_equal(again.feeds["x"], second.feeds["x"])
    other = walk("random", spec("x", 9), seed=1)[0]
    assert (other.feeds["x"] != first.feeds["x"]).any()
    sets = [open_calibration("random", [spec("x", 9)], CalibrationOptions(seed=seed)) for seed in (0, 0, 1)]
    assert sets[0].fingerprint == sets[1].fingerprint != sets[2].fingerprint


@pytest.mark.parametrize(
    "unknown", [InputSpec("x", onnx.TensorProto.FLOAT, None), InputSpec("x", onnx.TensorProto.STRING, (1,))]
)
def test_what_cannot_be_drawn_is_refused(unknown):
    assert "Random data cannot be made for input 'x'" in refusal("random", unknown)


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: "./random"])
def test_a_folder_of_that_name_is_reached_by_a_path(tmp_path, monkeypatch, make):
    folder = tmp_path / "random"
    folder.mkdir()
    np.save(folder / "0.npy", np.ones(3, np.float32))
    monkeypatch.chdir(tmp_path)
    calibration = open_calibration(make(folder.relative_to(tmp_path)), [spec("x", 3)])
    assert not calibration.synthetic
    assert [batch.name for batch in calibration] == ["0.npy"]

"""Options that do nothing for the data at hand are told, and those that do something are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_specs import spec
from in_memory_calibration import InMemoryCalibration
from PIL import Image

from overflow_fixer.calibration import CalibrationOptions, open_calibration, say_unheeded
from overflow_fixer.calibration.options import ImageOptions

SET: dict[str, Any] = {
    "batch_size": 2,
    "random_batches": 9,
    "seed": 3,
    "images": ImageOptions(size=(2, 2)),
    "max_batches": 5,
    "allow_nonfinite": True,
}
X = np.ones((4, 3), np.float32)


def _write(folder: Path) -> None:
    np.savez(folder / "one.npz", x=X)
    np.save(folder / "one.npy", X)
    for name in ("npz", "images"):
        (folder / name).mkdir()
    np.savez(folder / "npz" / "a.npz", x=X)
    Image.new("RGB", (2, 2)).save(folder / "images" / "a.png")


@pytest.mark.parametrize(
    ("calib", "dims", "heeded"),
    [
        ("one.npz", ("n", 3), {"batch_size"}),
        ("one.npy", ("n", 3), {"batch_size"}),
        ("one.npz", (2, 3), set()),
        ("one.npy", (3,), set()),
        ("npz", ("n", 3), set()),
        ("random", ("n", 3), {"random_batches", "seed"}),
        ("images", ("n", 3, 2, 2), {"batch_size", "images"}),
        ("images", (1, 3, 2, 2), {"images"}),
    ],
)
def test_what_the_data_do_not_heed_is_told_in_one_warning(
    calib: str, dims: tuple[Any, ...], heeded: set[str], tmp_path: Path
) -> None:
    _write(tmp_path)
    path = calib if calib == "random" else tmp_path / calib
    for name, value in SET.items():
        needed = {"images": SET["images"]} if calib == "images" else {}
        options = CalibrationOptions(**{**needed, name: value})
        told = list(say_unheeded(options, path, open_calibration(path, [spec("x", *dims)], options)))
        if name in heeded or name in ("max_batches", "allow_nonfinite"):
            assert told == []
        else:
            (warning,) = told
            assert warning.startswith(f"calibration.{name} has no effect on --calib {path}: {name} counts ")
            assert "Leave it out" in warning


def test_several_are_told_together(tmp_path: Path) -> None:
    _write(tmp_path)
    options = CalibrationOptions(batch_size=1000, seed=3)
    data = open_calibration(tmp_path / "npz", [spec("x", "n", 3)], options)
    (warning,) = say_unheeded(options, tmp_path / "npz", data)
    assert warning.startswith("calibration.batch_size, calibration.seed have no effect on --calib ")
    assert "in a folder of files a batch is what one of them holds" in warning
    assert not list(say_unheeded(CalibrationOptions(), tmp_path / "npz", data))


def test_a_model_without_inputs_and_data_of_a_callers_own_are_told_nothing(tmp_path: Path) -> None:
    options = CalibrationOptions(**SET)
    for data in (open_calibration("random", [], options), InMemoryCalibration(({"x": X},))):
        assert not list(say_unheeded(options, "random", data))

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from overflow_fixer.calibration import CalibrationOptions, ImageOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


OPTIONS, IMAGES = TypeAdapter(CalibrationOptions), TypeAdapter(ImageOptions)
"""As the config takes them."""


def test_defaults():
    options = CalibrationOptions()
    assert (options.allow_nonfinite, options.batch_size, options.random_batches) == (False, 1, 4)
    assert (options.seed, options.max_batches, options.images) == (0, None, None)
    images = ImageOptions()
    assert (images.size, images.layout, images.channels, images.scale) == (None, "NCHW", "RGB", 1 / 255)
    assert (images.mean, images.std, images.input, images.other_inputs) == ((0.0,), (1.0,), None, {})


def test_lists_of_a_config_file_are_taken():
    options = OPTIONS.validate_python(
        {"images": {"size": [224, 320], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
    )
    assert options.images is not None
    assert options.images.size == (224, 320)
    assert options.images.mean == (0.485, 0.456, 0.406)


def test_they_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        CalibrationOptions().seed = 1


def test_they_are_checked_without_a_config_too():
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        CalibrationOptions(batch_size=0)
    with pytest.raises(ValueError, match="layout must be one of NCHW, NHWC"):
        ImageOptions(layout="CHW")


def test_a_scan_without_a_config_does_without_pydantic():
    program = "import sys, overflow_fixer as f; f.load_graph, f.open_calibration, f.collect_ranges; print('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    "values",
    [
        {"batchsize": 2},
        {"batch_size": 0},
        {"random_batches": 0},
        {"max_batches": 0},
        {"seed": -1},
        {"images": {"sizes": [2, 2]}},
    ],
)
def test_unknown_keys_and_numbers_out_of_range_are_refused(values):
    with pytest.raises(ValidationError) as caught:
        OPTIONS.validate_python(values)
    assert next(iter(values)) in str(caught.value)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"mean": [1, 2]}, "mean has 2 numbers for RGB: give 1 or 3"),
        ({"channels": "L", "std": [1, 2, 3]}, "std has 3 numbers for L"),
        ({"std": [0]}, "must not be 0"),
        ({"scale": 0}, "must not be 0"),
        ({"mean": [float("nan")]}, "must be finite"),
        ({"size": [0, 4]}, "each at least 1"),
        ({"channels": "RGBA"}, "channels"),
        ({"layout": "CHW"}, "layout"),
    ],
)
def test_preprocessing_that_makes_no_sense_is_refused(values, found):
    with pytest.raises(ValidationError, match=found):
        IMAGES.validate_python(values)


def test_the_tables_in_the_documentation_are_valid():
    text = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text(encoding="utf-8")
    tables = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    assert len(tables) == 3
    for table in tables:
        OPTIONS.validate_python(table["calibration"])

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration
from onnx import TensorProto

from overflow_fixer.calibration import open_calibration
from overflow_fixer.calibration.given import check_batch, check_given, check_set, read_synthetic, read_text
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Batch, InputSpec

FEEDS = {"x": np.ones(2, np.float32)}


class Late:
    """A set whose fingerprint would take long."""

    source, synthetic = "late", False

    @property
    def fingerprint(self) -> str:
        raise AssertionError("asked for")

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        raise AssertionError("walked")


class Asking:
    """Asks a set for what it lacks, as len() and for do not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(InMemoryCalibration(()), name)


class Wrapped(Asking):
    """A set that asks another one for the rest."""

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        raise AssertionError("walked")


@pytest.mark.parametrize("given", [InMemoryCalibration(()), Late(), Wrapped()])
def test_a_set_is_taken_without_a_look_at_its_data(given: Any) -> None:
    check_set(given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([FEEDS], "a list, without source, synthetic, fingerprint. Expected"),
        (
            (feeds for feeds in [FEEDS]),
            "a generator, without __len__, source, synthetic, fingerprint. Expected",
        ),
        (Asking(), "a Asking, without __iter__, __len__. Expected"),
        (None, "a NoneType, without __iter__, __len__, source"),
    ],
)
def test_what_is_no_set_is_told(given: Any, found: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        check_set(given)
    assert f"The calibration data are {found}" in str(caught.value)
    assert "Open files with open_calibration, or make a class" in str(caught.value)


def test_a_batch_is_handed_on_and_a_dict_is_told() -> None:
    batch = Batch("first", FEEDS)
    assert check_batch(batch) is batch
    with pytest.raises(
        CalibrationError, match=r"gave a dict as a batch\. Expected a Batch, made of a name and"
    ):
        check_batch(FEEDS)


def test_a_name_that_is_no_text_is_told() -> None:
    with pytest.raises(CalibrationError, match=r"gave a Batch of the name 5\. Expected a text"):
        check_batch(Batch(5, FEEDS))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 5])
def test_what_tells_of_the_data_is_text(value: Any) -> None:
    given = InMemoryCalibration((), source=value, synthetic=value, fingerprint="made")
    assert read_text(given, "fingerprint") == "made"
    with pytest.raises(
        CalibrationError, match=f"The source of the calibration data is {value}. Expected a text"
    ):
        read_text(given, "source")
    with pytest.raises(CalibrationError, match=f"The synthetic of the .* is {value}. Expected True or False"):
        read_synthetic(given)


X, WORD, LIST = (
    InputSpec("x", TensorProto.FLOAT, ("n",)),
    InputSpec("word", TensorProto.STRING, (1,)),
    InputSpec("list", TensorProto.UNDEFINED, None),
)


def _check(given: InMemoryCalibration, *inputs: InputSpec, defaults: tuple[str, ...] = ()) -> Batch:
    (batch,) = given
    return check_given(Batch(batch.name, dict(given.feeds[0])), given, inputs, defaults)


@pytest.mark.parametrize(
    ("feeds", "told"),
    [
        ({"x": np.ones(2)}, "memory, batch batch_0: input 'x' is float64. Expected float32"),
        ({"x": np.ones((2, 2), np.float32)}, "has shape [2, 2], 2 dimensions. Expected 1: [n]"),
        ({"x": [1.0, 2.0]}, "memory, batch batch_0: input 'x' is a list. Expected a numpy array"),
        ({}, "no data for input 'x'. Expected exactly the model's inputs: 'x'"),
        ({**FEEDS, "z": np.ones(2, np.float32)}, "data for unknown input 'z'"),
        ({"x": np.float32([1, np.nan])}, "holds 1 NaN and 0 infinite values of 2, the first at [1]"),
        ({"x": np.array([1.0], object)}, "input 'x' is object. Expected float32"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_as_one_from_files_is(feeds: Any, told: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        _check(InMemoryCalibration((feeds,), allow_nonfinite=False), X)
    assert told in str(caught.value)


def test_what_is_not_finite_is_taken_where_the_set_allows_it() -> None:
    feeds = {"x": np.float32([np.nan, -np.inf])}
    assert _check(InMemoryCalibration((feeds,), allow_nonfinite=True), X).feeds["x"] is feeds["x"]
    silent = SimpleNamespace(source="memory")
    assert check_given(Batch("b", feeds), silent, (X,), ()).feeds["x"] is feeds["x"]  # type: ignore[arg-type]


@pytest.mark.parametrize("word", [["a"], np.array(["a"], object), np.array([b"a"])])
def test_what_no_file_holds_is_left_to_onnx_runtime(word: Any) -> None:
    """Other values of a default, a sequence, and texts as objects and bytes."""
    feeds = {**FEEDS, "w": np.ones(3), "word": np.asarray(word), "list": [np.ones(2)]}
    found = _check(InMemoryCalibration((feeds,)), X, WORD, LIST, defaults=("w",)).feeds
    assert [found[name] is value for name, value in feeds.items()] == [True] * 4


def test_batches_of_files_are_checked_where_they_were_opened_for_another_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "first.npz", x=np.ones(2, np.float32))
    opened = open_calibration(tmp_path, (X,))
    (batch,) = opened
    assert check_given(batch, opened, (X,), ()) is batch
    with pytest.raises(CalibrationError, match="no data for input 'y' and data for unknown input 'x'"):
        check_given(batch, opened, (InputSpec("y", TensorProto.FLOAT, None),), ())

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration

from overflow_fixer.calibration.given import check_batch, check_set
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Batch

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

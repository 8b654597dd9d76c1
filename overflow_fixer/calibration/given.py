"""Batches that a caller from Python gives, in place of a CalibrationSet of files."""

from __future__ import annotations

from typing import Any

from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Batch

_ASKED_OF_TYPE = "__iter__ __len__".split()
"""Python takes these from an object's class alone, whatever its __getattr__ gives."""
_HAS = [*_ASKED_OF_TYPE, "source", "synthetic", "fingerprint"]
_ADVICE = "Open files with open_calibration, or make a class of your own for arrays in memory, as docs/python.md shows."


def check_set(calibration: Any) -> None:
    """Raise CalibrationError unless it has what records.CalibrationSet tells. Nothing of it is computed or walked for that."""
    lacking = [name for name in _HAS if not _has(calibration, name)]
    if lacking:
        raise CalibrationError(
            f"The calibration data are a {type(calibration).__name__}, without {', '.join(lacking)}. Expected a CalibrationSet, "
            "which has a source, synthetic, a fingerprint and a len(), and gives Batch objects each time it is walked. "
            f"{_ADVICE}"
        )


def check_batch(batch: Any) -> Batch:
    """The batch itself. Raises CalibrationError for anything but a records.Batch, such as a bare dict of arrays."""
    if isinstance(batch, Batch):
        return batch
    raise CalibrationError(
        f"The calibration data gave a {type(batch).__name__} as a batch. Expected a Batch, made of a name and a dict of arrays by the "
        f"names of the model's inputs. {_ADVICE}"
    )


def _has(calibration: Any, name: str) -> bool:
    """Whether the class or, where Python looks there, the object has it. A property is not computed."""
    return name in dir(type(calibration)) or (name not in _ASKED_OF_TYPE and hasattr(calibration, name))

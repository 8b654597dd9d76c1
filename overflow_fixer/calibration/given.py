"""Batches that a caller from Python gives, in place of a CalibrationSet of files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from overflow_fixer.calibration.batches import CheckedBatches
from overflow_fixer.calibration.check import check_feeds
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Array, Batch, CalibrationSet, Feeds, InputSpec

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


def read_text(calibration: CalibrationSet, name: str) -> str:
    """Its source or fingerprint. Raises CalibrationError for what is no text."""
    value = getattr(calibration, name)
    if isinstance(value, str):
        return value
    raise _refuse_value(name, value, "a text")


def read_synthetic(calibration: CalibrationSet) -> bool:
    """Whether its data are random. Raises CalibrationError for what is neither True nor False."""
    if isinstance(calibration.synthetic, bool):
        return calibration.synthetic
    raise _refuse_value("synthetic", calibration.synthetic, "True or False")


def _refuse_value(name: str, value: Any, expected: str) -> CalibrationError:
    return CalibrationError(
        f"The {name} of the calibration data is {value!r}. Expected {expected}, by which reports and ranges files tell which data "
        f"were scanned. {_ADVICE}"
    )


def check_given(
    batch: Any, calibration: CalibrationSet, inputs: Sequence[InputSpec], defaults: Collection[str]
) -> Batch:
    """The batch itself, if it fits the model as one from files has to; raises CalibrationError otherwise.

    NaN and infinities are refused only where `calibration` has an `allow_nonfinite` that is false: who hands arrays in has them
    at hand. Beyond what files may hold, other values of `defaults`, inputs that are no tensors, and texts as objects or bytes are
    left to ONNX Runtime.
    """
    given = check_batch(batch)
    if isinstance(calibration, CheckedBatches) and calibration.inputs == inputs:
        return given
    tensors = [spec for spec in inputs if spec.elem_type != TensorProto.UNDEFINED]
    left = {spec.name for spec in inputs if spec not in tensors}.union(defaults)
    place = f"{calibration.source}, batch {given.name}"
    feeds = {
        name: _check_array(place, name, value) for name, value in given.feeds.items() if name not in left
    }
    feeds.update(_take_texts(feeds, tensors))
    check_feeds(place, feeds, tensors, allow_nonfinite=bool(getattr(calibration, "allow_nonfinite", True)))
    return given


def _check_array(place: str, name: str, value: Any) -> Array:
    """The value itself. Raises CalibrationError for what is no array."""
    if isinstance(value, np.ndarray):
        return value
    raise CalibrationError(
        f"{place}: input {name!r} is a {type(value).__name__}. Expected a numpy array. Make one with np.asarray(..., dtype), of the "
        "dtype that the model asks for."
    )


def _take_texts(feeds: Feeds, inputs: Sequence[InputSpec]) -> Feeds:
    """In the place of texts that numpy holds as objects or bytes, arrays of the same shapes as files have them."""
    names = [spec.name for spec in inputs if spec.elem_type == TensorProto.STRING and spec.name in feeds]
    return {name: np.empty(feeds[name].shape, str) for name in names if feeds[name].dtype.kind in "OS"}


def check_batch(batch: Any) -> Batch:
    """The batch itself. Raises CalibrationError for anything but a records.Batch, such as a bare dict of arrays, and one without a name."""
    if isinstance(batch, Batch) and isinstance(batch.name, str):
        return batch
    if isinstance(batch, Batch):
        raise CalibrationError(
            f"The calibration data gave a Batch of the name {batch.name!r}. Expected a text, by which reports tell where a value came "
            f"from. {_ADVICE}"
        )
    raise CalibrationError(
        f"The calibration data gave a {type(batch).__name__} as a batch. Expected a Batch, made of a name and a dict of arrays by the "
        f"names of the model's inputs. {_ADVICE}"
    )


def _has(calibration: Any, name: str) -> bool:
    """Whether the class or, where Python looks there, the object has it. A property is not computed."""
    return name in dir(type(calibration)) or (name not in _ASKED_OF_TYPE and hasattr(calibration, name))

"""Whether a batch is what the model asks for: names, dtypes, ranks, dimensions, finite values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np
import onnx

from overflow_fixer.errors import CalibrationError
from overflow_fixer.plurals import say_plural
from overflow_fixer.records import Array, Dim, Feeds, InputSpec, is_fixed

_STRING = onnx.TensorProto.STRING
_NOT_FED = ("FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2", "COMPLEX")
"""How the types begin that are not fed: ONNX Runtime takes them from no array as it is."""


def check_feeds(place: str, feeds: Feeds, inputs: Sequence[InputSpec], *, allow_nonfinite: bool) -> None:
    """Check one batch against the model's inputs; raises CalibrationError beginning with `place`.

    feeds: arrays by input name. Dtypes must be the model's own, nothing is converted; fixed
    dimensions must be met, and one with a name, which is an identifier, must have the same size wherever it appears. NaN
    and infinities are counted and refused unless allowed.
    """
    check_names(place, feeds, inputs)
    for spec in inputs:
        _check_dtype(place, spec, feeds[spec.name])
        check_rank(place, spec, feeds[spec.name].shape)
        _check_fixed(place, spec, feeds[spec.name].shape)
    _check_symbols(place, feeds, inputs)
    if not allow_nonfinite:
        for spec in inputs:
            _check_finite(place, spec.name, feeds[spec.name])


def check_names(place: str, names: Iterable[str], inputs: Sequence[InputSpec]) -> None:
    """Check that `names` are the inputs' names, none missing and none besides; raises as check_feeds does."""
    found, expected = set(names), {spec.name for spec in inputs}
    if found == expected:
        return
    faults = [
        f"{word} {_quoted(names)}"
        for word, names in (
            ("no data for input", expected - found),
            ("data for unknown input", found - expected),
        )
        if names
    ]
    raise CalibrationError(
        f"{place}: {' and '.join(faults)}. Expected exactly the model's inputs: {_quoted(expected)}. Name each "
        "array after its input."
    )


def check_feedable(inputs: Sequence[InputSpec]) -> None:
    """Raise CalibrationError for inputs that no format holds (sequences, optionals, maps), and types that cannot be fed."""
    for spec in inputs:
        name = onnx.TensorProto.DataType.Name(spec.elem_type)
        if name.startswith(_NOT_FED):
            raise CalibrationError(
                f"The model's input {spec.name!r} is of type {name}, which fix-fp16 cannot feed. Expected one of 8 bits "
                "or more that numpy has, or bfloat16. Have the model take a float32 and cast it."
            )
        if spec.elem_type == onnx.TensorProto.UNDEFINED:
            raise CalibrationError(
                f"The model's input {spec.name!r} is not a tensor, or says nothing of its type. Expected tensors, "
                "since calibration data are arrays. Export the model with a tensor in its place."
            )


def expected_dtype(spec: InputSpec) -> np.dtype[Any]:
    """The numpy dtype of an input; for bfloat16 and the float8s that of ml_dtypes."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(spec.elem_type))


def dtype_name(spec: InputSpec) -> str:
    return "str" if spec.elem_type == _STRING else expected_dtype(spec).name


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype can hold NaN or infinity, those of ml_dtypes included."""
    return str(dtype.name).startswith(("float", "bfloat", "complex"))


def _is_name(dim: Dim) -> TypeGuard[str]:
    """Whether a dimension has a name, an identifier as ONNX asks; exporters write "?" for any that is not known."""
    return isinstance(dim, str) and dim.isidentifier()


def describe_dims(dims: Sequence[Dim] | None) -> str:
    if dims is None:
        return "any shape"
    return "[" + ", ".join(str(dim) if is_fixed(dim) or isinstance(dim, str) else "?" for dim in dims) + "]"


def check_rank(place: str, spec: InputSpec, shape: tuple[int, ...]) -> None:
    """Check the number of dimensions; an input of unknown rank takes any. Raises as check_feeds does."""
    if spec.dims is None or len(shape) == len(spec.dims):
        return
    raise CalibrationError(
        f"{place}: input {spec.name!r} has shape {list(shape)}, {say_plural(len(shape), 'dimension')}. Expected {len(spec.dims)}: "
        f"{describe_dims(spec.dims)}. {_advice(spec, shape)}"
    )


def _check_dtype(place: str, spec: InputSpec, array: Array) -> None:
    fits = array.dtype.kind == "U" if spec.elem_type == _STRING else array.dtype == expected_dtype(spec)
    if fits:
        return
    raise CalibrationError(
        f"{place}: input {spec.name!r} is {array.dtype.name}. Expected {dtype_name(spec)}, as the model says. Write the "
        f"data with array.astype({dtype_name(spec)!r}) if that loses nothing; nothing is converted silently."
    )


def _check_fixed(place: str, spec: InputSpec, shape: tuple[int, ...]) -> None:
    for axis, (size, dim) in enumerate(zip(shape, spec.dims or shape, strict=True)):
        if is_fixed(dim) and size != dim:
            raise CalibrationError(
                f"{place}: input {spec.name!r} has shape {list(shape)}, dimension {axis} is {size}. Expected {dim}: "
                f"{describe_dims(spec.dims)}. {_advice(spec, shape)}"
            )


def _advice(spec: InputSpec, shape: tuple[int, ...]) -> str:
    if spec.dims and shape[1:] in (tuple(spec.dims[1:]), tuple(spec.dims)):
        return (
            "If the first axis counts samples, give that one file as calibration data instead of its folder."
        )
    return "Write the batch in the shape that the model is fed in use."


def _check_symbols(place: str, feeds: Feeds, inputs: Sequence[InputSpec]) -> None:
    seen: dict[str, tuple[str, int, int]] = {}
    for spec in inputs:
        for axis, (size, dim) in enumerate(zip(feeds[spec.name].shape, spec.dims or (), strict=False)):
            if not _is_name(dim):
                continue
            name, first, first_size = seen.setdefault(dim, (spec.name, axis, size))
            if size != first_size:
                raise CalibrationError(
                    f"{place}: dimension {axis} of input {spec.name!r} is {size}, but dimension {first} of input "
                    f"{name!r} is {first_size}. Expected the same size, since the model calls both {dim!r}. Write "
                    "the batch with inputs that belong together."
                )


def _check_finite(place: str, name: str, array: Array) -> None:
    if not is_float(array.dtype):
        return
    bad = ~np.isfinite(array)
    if not bad.any():
        return
    nan = int(np.isnan(array).sum())
    first = [int(index) for index in np.unravel_index(int(bad.argmax()), array.shape)]
    raise CalibrationError(
        f"{place}: input {name!r} holds {nan} NaN and {int(bad.sum()) - nan} infinite values of {array.size}, the "
        f"first at {first}. Expected finite numbers. Repair or remove the batch, or, if the model is fed such values in "
        "use, give --allow-nonfinite (allow_nonfinite = true in [calibration], or in a class of your own for arrays in memory)."
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))

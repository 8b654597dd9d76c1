"""Random data, where `--calib random` asks for it: no file, and no word on real data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from overflow_fixer.calibration.check import dtype_name, expected_dtype, is_float
from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.source import Part, Source
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Array, Feeds, InputSpec, is_fixed

SUFFIXES: tuple[str, ...] = ()
_HEEDS = frozenset({"random_batches", "seed"})


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """`random_batches` batches: floats uniform in [0, 1), integers and booleans 0 or 1.

    Dimensions that are not fixed are 1. The same seed gives the same batches.
    """
    for spec in inputs:
        _check_drawable(spec)
    parts = tuple(Part(f"random[{index}]", ()) for index in range(options.random_batches))
    return Source(parts, partial(_draw_all, inputs, options), f"seed {options.seed}", _HEEDS)


def describe(options: CalibrationOptions) -> str:
    """What the report says of this data."""
    return (
        f"random numbers in [0, 1) (seed {options.seed}), as asked for: they prove nothing about real data, "
        "whose ranges can be far wider"
    )


def _draw_all(inputs: Sequence[InputSpec], options: CalibrationOptions) -> Iterator[Feeds]:
    for index in range(options.random_batches):
        generator = np.random.default_rng([options.seed, index])
        yield {spec.name: _draw(generator, spec) for spec in inputs}


def _draw(generator: np.random.Generator, spec: InputSpec) -> Array:
    dtype = expected_dtype(spec)
    shape = tuple(dim if is_fixed(dim) else 1 for dim in spec.dims or ())
    values = generator.random(shape) if is_float(dtype) else generator.integers(0, 2, shape)
    return np.asarray(values).astype(dtype)


def _check_drawable(spec: InputSpec) -> None:
    if spec.dims is None or expected_dtype(spec).kind == "O":
        shape = "unknown rank" if spec.dims is None else "known rank"
        raise CalibrationError(
            f"Random data cannot be made for input {spec.name!r} ({dtype_name(spec)}, {shape}). Expected numbers of a "
            "known number of dimensions. Give calibration data from files."
        )

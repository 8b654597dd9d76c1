"""Images (PNG, JPEG): a folder or one file, made into one input as `[calibration.images]` says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overflow_fixer.calibration.check import describe_dims, dtype_name, expected_dtype, is_float
from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.options import CalibrationOptions, ImageOptions
from overflow_fixer.calibration.source import Part, Source
from overflow_fixer.errors import CalibrationError
from overflow_fixer.plurals import say_plural
from overflow_fixer.records import Array, Dim, Feeds, InputSpec, is_fixed

SUFFIXES: tuple[str, ...] = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class _Target:
    """What an image becomes: `size` is height and width; `has_batch_axis` is False for rank 3."""

    spec: InputSpec
    options: ImageOptions
    size: tuple[int, int]
    has_batch_axis: bool

    @property
    def first(self) -> Dim:
        """How many images the model takes at once."""
        return self.spec.dims[0] if self.spec.dims is not None and self.has_batch_axis else None

    @property
    def has_free_batches(self) -> bool:
        return self.has_batch_axis and not is_fixed(self.first)


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """One image a batch, or as many as the model's first dimension says; `batch_size` where that is open.

    Raises CalibrationError where the model's input does not say or does not fit the preprocessing.
    """
    images = _section(listing, options)
    spec = _image_input(listing, inputs, images)
    target = _Target(spec, images, _size(spec, images), spec.dims is None or len(spec.dims) == 4)
    _check_levels(spec, images)
    others = {other.name: _constant(other, images) for other in inputs if other.name != spec.name}
    groups = _group(listing, target, options.batch_size)
    parts = tuple(Part(_name_group(listing, group), group) for group in groups)
    told = json.dumps(asdict(images), separators=(",", ":"), ensure_ascii=False)
    heeds = {"images", "batch_size"} if target.has_free_batches else {"images"}
    return Source(parts, partial(_read_all, groups, target, others), told, frozenset(heeds))


def _section(listing: Listing, options: CalibrationOptions) -> ImageOptions:
    if options.images is not None:
        return options.images
    raise CalibrationError(
        f"{listing.root} holds images ({listing.files[0].name} is the first), but nothing says how the model's input is "
        "made from them. Expected a [calibration.images] table in the config: size, layout, channels, scale, mean, std. "
        "Write one with what the model was trained with; a guess would make the ranges wrong."
    )


def _image_input(listing: Listing, inputs: Sequence[InputSpec], images: ImageOptions) -> InputSpec:
    names = [spec.name for spec in inputs]
    name = images.input if images.input is not None or len(names) > 1 else names[0]
    unknown = set(images.other_inputs) - (set(names) - {name})
    if name not in names or unknown or len(images.other_inputs) != len(names) - 1:
        raise CalibrationError(
            f"{listing.root}: [calibration.images] has input = {images.input!r} and other_inputs {sorted(images.other_inputs)}. "
            f"Expected one of the model's inputs {names} for the images, and a value in other_inputs for each of the rest. "
            "Set both, or write .npz files, which hold every input."
        )
    return inputs[names.index(name)]


def _size(spec: InputSpec, images: ImageOptions) -> tuple[int, int]:
    if spec.dims is not None and len(spec.dims) not in (3, 4):
        raise _misfit(spec, images, "Use .npz files for a model that takes no plain images.")
    channel, height, width = _image_dims(spec, images)
    if is_fixed(channel) and channel != images.channel_count:
        raise _misfit(spec, images, "Set layout and channels to what the model takes.")
    size = images.size or (height, width)
    if not (is_fixed(size[0]) and is_fixed(size[1]) and min(size[0], size[1]) > 0):
        raise _misfit(spec, images, "Set size = [height, width], since the model does not fix it.")
    if any(is_fixed(dim) and dim != want for dim, want in zip((height, width), size, strict=True)):
        raise _misfit(spec, images, "Set size to the model's own, or leave it out.")
    return size[0], size[1]


def _image_dims(spec: InputSpec, images: ImageOptions) -> tuple[Dim, ...]:
    """The input's channel, height and width."""
    dims = (None, None, None) if spec.dims is None else spec.dims[-3:]
    return dims if images.layout == "NCHW" else (dims[2], dims[0], dims[1])


def _misfit(spec: InputSpec, images: ImageOptions, advice: str) -> CalibrationError:
    size = "no size" if images.size is None else f"size {list(images.size)}"
    return CalibrationError(
        f"[calibration.images] makes {images.layout} images with {say_plural(images.channel_count, 'channel')} ({images.channels}) and "
        f"{size}. Expected what the model's input {spec.name!r} takes: {describe_dims(spec.dims)}. {advice}"
    )


def _check_levels(spec: InputSpec, images: ImageOptions) -> None:
    """Refuse an integer input whose preprocessing does not keep the 256 levels of a pixel apart."""
    dtype = expected_dtype(spec)
    if is_float(dtype):
        return
    levels = _normalize(np.arange(256.0)[:, np.newaxis], images)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if (
            np.array_equal(levels, np.rint(levels))
            and limits.min <= levels.min() <= levels.max() <= limits.max
        ):
            return
    raise CalibrationError(
        f"[calibration.images] makes values from {levels.min():.6g} to {levels.max():.6g}, but the model's input "
        f"{spec.name!r} is {dtype_name(spec)}. Expected every pixel value to be one of that type. Set scale = 1, and "
        "whole numbers in mean and std, for an integer input."
    )


def _constant(spec: InputSpec, images: ImageOptions) -> Array:
    """The value that [calibration.images] gives to another input; no integer is rounded or wrapped."""
    value, dtype = images.other_inputs[spec.name], expected_dtype(spec)
    try:
        given = np.asarray(value)
        with np.errstate(invalid="ignore"):
            array = given.astype(dtype)
        if given.dtype.kind in "biuf" and (
            is_float(dtype) or np.array_equal(array.astype(given.dtype), given)
        ):
            return array
    except (ValueError, TypeError, OverflowError):
        pass
    raise CalibrationError(
        f"[calibration.images] gives {value!r} for input {spec.name!r} in other_inputs. Expected numbers of shape "
        f"{describe_dims(spec.dims)} that {dtype_name(spec)} can hold. Write them as nested lists."
    )


def _group(listing: Listing, target: _Target, batch_size: int) -> list[tuple[Path, ...]]:
    files, first = listing.flat_files(), target.first
    count = 1 if not target.has_batch_axis else first if is_fixed(first) else batch_size
    if is_fixed(first) and (count == 0 or len(files) % count):
        raise CalibrationError(
            f"{listing.root} holds {say_plural(len(files), 'image')}, which cannot be cut into batches of {count}. Expected a multiple "
            f"of the model's first dimension: {describe_dims(target.spec.dims)}. Add or remove images."
        )
    return [files[start : start + count] for start in range(0, len(files), count)]


def _name_group(listing: Listing, group: Sequence[Path]) -> str:
    names = [listing.name_of(file) for file in group]
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def _read_all(groups: Sequence[tuple[Path, ...]], target: _Target, others: Feeds) -> Iterator[Feeds]:
    for group in groups:
        samples = [_read_sample(path, target) for path in group]
        batch = np.stack(samples) if target.has_batch_axis else samples[0]
        yield {target.spec.name: batch, **others}


def _read_sample(path: Path, target: _Target) -> Array:
    from overflow_fixer.calibration.pixels import read_pixels  # loads Pillow

    values = _normalize(read_pixels(path, target.options.channels, target.size), target.options)
    if target.options.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    return values.astype(expected_dtype(target.spec))


def _normalize(pixels: npt.NDArray[np.float64], images: ImageOptions) -> npt.NDArray[np.float64]:
    """(x * scale - mean) / std, with channels on the last axis."""
    mean, std = np.asarray(images.mean, np.float64), np.asarray(images.std, np.float64)
    return np.asarray((pixels * images.scale - mean) / std)

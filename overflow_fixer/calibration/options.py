"""What the user sets about calibration data: the `[calibration]` table of the config file.

Plain dataclasses, which the config's models take as they are: to import pydantic costs a scan without a config 0.1 s
and 9 MB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args


class _Strict:
    """Tells pydantic to convert nothing to this type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        return {**handler(source), "strict": True}


Flag = Annotated[bool, _Strict()]
Whole = Annotated[int, _Strict()]
Number = Annotated[float, _Strict()]
"""Whole numbers too."""
Layout = Literal["NCHW", "NHWC"]
Channels = Literal["RGB", "BGR", "L"]


@dataclass(frozen=True)
class ImageOptions:
    """How a model's input is made from an image: the `[calibration.images]` table.

    In this order: decode (EXIF orientation applied, alpha dropped, 16-bit values read as their high
    byte) -> convert to `channels` -> resize to `size`, bilinear, aspect ratio not kept -> x * scale
    -> (x - mean) / std -> `layout` -> the input's dtype. Pixels are 0 to 255 before scaling; the
    arithmetic is float64, rounded once, at the end. Raises ValueError for what makes no sense.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    size: tuple[Whole, Whole] | None = None
    """Height and width in pixels; None takes them from the model's fixed dimensions."""
    layout: Layout = "NCHW"
    """Order of axes; an input of rank 3 has the same without N."""
    channels: Channels = "RGB"
    """Channels in this order; L is one channel, luma as ITU-R 601-2 has it."""
    scale: Number = 1 / 255
    mean: tuple[Number, ...] = (0.0,)
    """Subtracted after scaling; one number, or one a channel in the order of `channels`."""
    std: tuple[Number, ...] = (1.0,)
    """Divided by after `mean`; one number, or one a channel in the order of `channels`."""
    input: str | None = None
    """Name of the input that takes the images; needed where the model has several."""
    other_inputs: dict[str, Any] = field(default_factory=dict)
    """Values of the model's other inputs, nested lists by name, the same in every batch."""

    @property
    def channel_count(self) -> int:
        return len(self.channels)

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check()

    def _check(self) -> None:
        for name, known in (("layout", get_args(Layout)), ("channels", get_args(Channels))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channel_count):
                raise ValueError(
                    f"{name} has {len(values)} numbers for {self.channels}: give 1 or {self.channel_count}"
                )
        if not all(map(math.isfinite, (self.scale, *self.mean, *self.std))):
            raise ValueError("scale, mean and std must be finite")
        if self.scale == 0 or 0 in self.std:
            raise ValueError("scale and std must not be 0")
        if self.size is not None and min(self.size) < 1:
            raise ValueError("size must be (height, width), each at least 1")


@dataclass(frozen=True)
class CalibrationOptions:
    """Everything about calibration data that the files themselves do not say. Raises ValueError for a number out of range.

    `images` may be given as a dict of what ImageOptions takes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    allow_nonfinite: Flag = False
    """Let NaN and infinities in the data pass; otherwise they are an error."""
    batch_size: Whole = 1
    """Samples a batch, where samples are cut and the model's first dimension is not fixed."""
    random_batches: Whole = 4
    """Batches of random data, where it was asked for."""
    seed: Whole = 0
    """Seed of random data."""
    max_batches: Whole | None = None
    """Use the first batches alone; None uses all."""
    images: ImageOptions | None = None
    """How images become inputs; images are refused without it."""

    def __post_init__(self) -> None:
        if isinstance(self.images, dict):
            object.__setattr__(self, "images", ImageOptions(**self.images))
        for name, least in (("batch_size", 1), ("random_batches", 1), ("seed", 0), ("max_batches", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")

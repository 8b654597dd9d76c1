"""What the user sets about calibration data: the `[calibration]` table of the config file."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(extra="forbid", frozen=True)


class ImageOptions(BaseModel):
    """How a model's input is made from an image: the `[calibration.images]` table.

    In this order: decode (EXIF orientation applied, alpha dropped, 16-bit values read as their high
    byte) -> convert to `channels` -> resize to `size`, bilinear, aspect ratio not kept -> x * scale
    -> (x - mean) / std -> `layout` -> the input's dtype. Pixels are 0 to 255 before scaling; the
    arithmetic is float64, rounded once, at the end.
    """

    model_config = _FROZEN

    size: tuple[int, int] | None = None
    """Height and width in pixels; None takes them from the model's fixed dimensions."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of axes; an input of rank 3 has the same without N."""
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    """Channels in this order; L is one channel, luma as ITU-R 601-2 has it."""
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    """Subtracted after scaling; one number, or one a channel in the order of `channels`."""
    std: tuple[float, ...] = (1.0,)
    """Divided by after `mean`; one number, or one a channel in the order of `channels`."""
    input: str | None = None
    """Name of the input that takes the images; needed where the model has several."""
    other_inputs: dict[str, Any] = Field(default_factory=dict)
    """Values of the model's other inputs, nested lists by name, the same in every batch."""

    @property
    def channel_count(self) -> int:
        return len(self.channels)

    @model_validator(mode="after")
    def _check(self) -> ImageOptions:
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
        return self


class CalibrationOptions(BaseModel):
    """Everything about calibration data that the files themselves do not say."""

    model_config = _FROZEN

    allow_nonfinite: bool = False
    """Let NaN and infinities in the data pass; otherwise they are an error."""
    batch_size: int = Field(default=1, ge=1)
    """Samples a batch, where samples are cut and the model's first dimension is not fixed."""
    random_batches: int = Field(default=4, ge=1)
    """Batches of random data, where it was asked for."""
    seed: int = Field(default=0, ge=0)
    """Seed of random data."""
    max_batches: int | None = Field(default=None, ge=1)
    """Use the first batches alone; None uses all."""
    images: ImageOptions | None = None
    """How images become inputs; images are refused without it."""

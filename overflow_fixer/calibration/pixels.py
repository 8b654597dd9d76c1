"""One image file to its pixels. A room of its own, since Pillow takes memory that most scans can spare."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from overflow_fixer.calibration.source import reading

_EXPECTED = "a whole PNG or JPEG image of a sane size"


def read_pixels(path: Path, channels: str, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Decode, convert and resize one image: float64 [height, width, channel], values 0 to 255.

    Raises CalibrationError for what is no whole image, or has more pixels than Pillow's guard against
    decompression bombs allows (Image.MAX_IMAGE_PIXELS).
    """
    height, width = size
    with reading(path, _EXPECTED), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            upright = ImageOps.exif_transpose(image)
            converted = _convert(upright, "L" if channels == "L" else "RGB")
            resized = converted.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(resized, np.float64).reshape(height, width, -1)
    return pixels[:, :, ::-1] if channels == "BGR" else pixels


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit gray, which Pillow's own conversion would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":  # a palette with transparency; straight to RGB makes Pillow warn
        image = image.convert("RGBA")
    return image.convert(mode)

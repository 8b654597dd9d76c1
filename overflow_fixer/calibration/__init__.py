"""Calibration data: files in any of the formats below, as batches that fit the model.

    calibration = open_calibration("calib/", graph.inputs)
    for batch in calibration: ...                      # again and again

A format is one module with SUFFIXES and open_source (see source.Reader), and one line in readers.READERS.
"""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.calibration.jittered import jitter, make_copies, make_copy
    from overflow_fixer.calibration.options import CalibrationOptions, ImageOptions
    from overflow_fixer.calibration.readers import READERS, open_calibration
    from overflow_fixer.calibration.shapes import survey_shapes
    from overflow_fixer.calibration.unheeded import say_unheeded

__all__ = [
    "READERS",
    "CalibrationOptions",
    "ImageOptions",
    "jitter",
    "make_copies",
    "make_copy",
    "open_calibration",
    "say_unheeded",
    "survey_shapes",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jittered": ("jitter", "make_copies", "make_copy"),
            "options": ("CalibrationOptions", "ImageOptions"),
            "readers": ("READERS", "open_calibration"),
            "shapes": ("survey_shapes",),
            "unheeded": ("say_unheeded",),
        },
    )

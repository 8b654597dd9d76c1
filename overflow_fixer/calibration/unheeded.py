"""Options that were set for calibration data of another kind, and do nothing for these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overflow_fixer.calibration.batches import CheckedBatches
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.plurals import name_few
from overflow_fixer.records import CalibrationSet

_COUNTS = {
    "batch_size": "batch_size counts where samples of one file, or images, are cut and the model's first dimension is not fixed "
    "(in a folder of files a batch is what one of them holds)",
    "random_batches": "random_batches counts for --calib random",
    "seed": "seed counts for --calib random",
    "images": "images counts for PNG and JPEG",
}
ALL = frozenset(_COUNTS)
"""The options that only some data heed, by their names in CalibrationOptions."""


def say_unheeded(
    options: CalibrationOptions, calib: Path | str, calibration: CalibrationSet
) -> Iterator[str]:
    """Which options were set and have no effect on the data that `calib` names; nothing of data that a caller made."""
    usual = CalibrationOptions()
    heeds = calibration.contents.heeds if isinstance(calibration, CheckedBatches) else ALL
    given = [name for name in _COUNTS if getattr(options, name) != getattr(usual, name)]
    names = [name for name in given if name not in heeds]
    if names:
        has, it = ("has", "it") if len(names) == 1 else ("have", "them")
        yield (
            f"{name_few(f'calibration.{name}' for name in names)} {has} no effect on --calib {calib}: "
            f"{'; '.join(_COUNTS[name] for name in names)}. Leave {it} out, or give data that heed {it} (docs/calibration.md)."
        )

"""What is said of a model file that the system does not let this process read."""

from __future__ import annotations

import os
from pathlib import Path

from overflow_fixer.errors import ModelError


def refuse_unreadable(path: Path, error: OSError) -> ModelError:
    """What is to be raised where reading the model file failed with `error`."""
    return ModelError(
        f"{path} cannot be read: {error.strerror or error}. Expected an ONNX model file. Check the path."
    )


def check_there(path: Path) -> None:
    """Raise ModelError where there is no such file, before anything else is asked for."""
    try:
        os.stat(path)
    except OSError as error:
        raise refuse_unreadable(path, error) from error

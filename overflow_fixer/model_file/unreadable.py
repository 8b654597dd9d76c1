"""What is said of a model file that the system does not let this process read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from overflow_fixer.errors import ModelError
from overflow_fixer.host.shortages import tell_shortage


def refuse_unreadable(path: Path, error: OSError) -> ModelError:
    """What is to be raised where reading the model file failed with `error`."""
    shortage = tell_shortage(error)
    if shortage is not None:
        return ModelError(f"{path} cannot be read: {shortage}")
    is_denied = isinstance(error, PermissionError)
    expected = "an ONNX model file that this user may read" if is_denied else "an ONNX model file"
    remedy = "Change its permissions or those of its folder (chmod)" if is_denied else "Check the path"
    return ModelError(f"{path} cannot be read: {error.strerror or error}. Expected {expected}. {remedy}.")


def check_there(path: Path) -> None:
    """Raise ModelError where there is no such file, before anything else is asked for. Of what is no path it says nothing."""
    try:
        with suppress(ValueError):  # a NUL character
            os.stat(path)
    except OSError as error:
        raise refuse_unreadable(path, error) from error

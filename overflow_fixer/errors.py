"""Every error a user can meet, with the exit code it ends the command with.

An error's text is one paragraph: what was found, what was expected, what to do.
"""

from __future__ import annotations

EXIT_FIXED = 0
EXIT_NOT_VERIFIED = 1
EXIT_FAULT = 70
EXIT_STOPPED = 130


class FixError(Exception):
    """Base of all errors that end a command with one paragraph and no traceback."""

    exit_code = 2


class ConfigError(FixError):
    """The command line or a config file cannot be used."""

    exit_code = 2


class ModelError(FixError):
    """The model cannot be read, checked or run."""

    exit_code = 3


class RunError(ModelError):
    """ONNX Runtime could not run a batch; `reason` is what it said."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class CalibrationError(FixError):
    """The calibration data cannot be read or does not fit the model."""

    exit_code = 4


class PlanError(FixError):
    """A plan or a ranges file belongs to another model, or a pin matches nothing."""

    exit_code = 5


class BackendError(FixError):
    """A backend is missing, or could not build or run its artifact."""

    exit_code = 6


class OutputError(FixError):
    """A result cannot be written (read-only folder, full disk)."""

    exit_code = 2

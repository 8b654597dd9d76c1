"""The `onnx` backend: a typed mixed-precision ONNX model, which TensorRT >= 10.12 and trtexec take."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.backends.mixed_onnx.assignment import IoTypes
    from overflow_fixer.backends.mixed_onnx.default_loading import warn_of_default_loading
    from overflow_fixer.backends.mixed_onnx.emission import (
        describe,
        emit,
        find_foreign,
        name_files,
        open_as_it_stands,
        open_runner,
        open_tracer,
    )
    from overflow_fixer.backends.mixed_onnx.loading import find_fault

__all__ = [
    "IoTypes",
    "describe",
    "emit",
    "find_fault",
    "find_foreign",
    "name_files",
    "open_as_it_stands",
    "open_runner",
    "open_tracer",
    "warn_of_default_loading",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "assignment": ("IoTypes",),
            "default_loading": ("warn_of_default_loading",),
            "emission": (
                "describe",
                "emit",
                "find_foreign",
                "name_files",
                "open_as_it_stands",
                "open_runner",
                "open_tracer",
            ),
            "loading": ("find_fault",),
        },
    )

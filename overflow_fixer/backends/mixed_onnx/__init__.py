"""The `onnx` backend: a typed mixed-precision ONNX model, which TensorRT >= 10.12 and trtexec take."""

from overflow_fixer.backends.mixed_onnx.assignment import IoTypes
from overflow_fixer.backends.mixed_onnx.emit import describe, emit, open_runner

__all__ = ["IoTypes", "describe", "emit", "open_runner"]

"""overflow_fixer: find what overflows in FP16 in an ONNX model, keep just that in FP32, prove it."""

__version__ = "0.1.0"

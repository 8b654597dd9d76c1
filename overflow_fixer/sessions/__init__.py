"""ONNX Runtime: the one place that opens and runs sessions, on the providers that it has."""

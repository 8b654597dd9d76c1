"""The model as the stages see it: nodes, tensors, types, constants. ONNX structure is read here alone."""

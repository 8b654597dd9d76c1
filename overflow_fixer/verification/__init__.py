"""An artifact held against FP32 on the same batches, and what FP32 itself or FP16 inputs do not settle."""

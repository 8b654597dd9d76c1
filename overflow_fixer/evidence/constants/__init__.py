"""Constants that FP16 cannot hold, and infinities and NaN that constants bring: where they go, and what becomes of them there.

huge_values tells what operators do to such a value; traces and carriers follow it from constants; infinite_constants and
divided_by_zero tell where FP16 makes of infinities and NaN what FP32 does.
"""

"""Differences of which FP16's rounding of the terms leaves little or nothing: the forms that the rule lost_difference knows."""

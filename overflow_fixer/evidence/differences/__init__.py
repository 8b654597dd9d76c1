"""Differences of which FP16's rounding of the terms leaves little or nothing: most forms that the rule lost_difference knows.

A form is a module, by what shows the loss: the difference is of terms over 1024 (far_differences), divided by
(divided_differences, cancelled_squares, poles), scaled up row by row (normalised_differences, row_differences), given out
(given_differences, shown_differences), chosen among (nearest_differences, offset_choices, placed_choices), compared
(compared_differences) or an exponent (rounded_exponents). The others serve several of these: terms, losses and small_differences
tell what a difference is of, how much has to be left of it, and where less is; kept_small where as little goes on; sources what
has to be right for it.
"""

"""Values of which FP16 makes zero, or which it holds badly: what they are made of, and what becomes of them.

near_zero tells what operators make of such values, and small_sources goes back to what they are of. Divided by: divisors,
with part_values and cancellation, and dividends. Compared: lost_decisions, with shown_decisions, and decision_sources. Small as
a whole, or in a row or a factor: shown_losses, small_logarithms, small_factors and small_angles. rounded_away tells how large a
value may be that is zero since it comes of a difference.
"""

"""What verification tolerates where nothing else is asked for."""

MOST_NOISE = 10.0**-1.5
"""Of the values, root mean square: 30 dB below them."""

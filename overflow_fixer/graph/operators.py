"""Groups of standard operators that several rooms ask for; sets that take in more, or less, name these and the rest."""

from __future__ import annotations

from collections.abc import Mapping

REARRANGES = frozenset("Identity Reshape Transpose Squeeze Unsqueeze Flatten".split())
"""Operators that write each element that they read once, as it is."""
ADDS = frozenset("Add Sub Sum".split())
"""Operators that add up what they read, element by element, and may write less than each of their terms."""
MATRIX_PRODUCTS = frozenset("MatMul Gemm Einsum".split())
ROUNDS = frozenset("Floor Ceil Round".split())
"""Operators that make whole numbers of others."""
CASTS = frozenset({"Cast", "CastLike"})
COMPARES = frozenset("Less LessOrEqual Greater GreaterOrEqual".split())
SCATTERS = frozenset("Scatter ScatterElements ScatterND".split())
DIVISOR_SLOTS: Mapping[str, int] = {"Div": 1, "Reciprocal": 0}
"""Operators that divide, and at which slot they read what they divide by."""
UNSEEN = frozenset({"", "If", "Loop", "Scan"})
"""Operators behind which nobody looks, those of other domains among them."""

"""The values inside nodes that a scan measures, by the words that reports use for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Quantity = Literal[
    "deviation",
    "sum",
    "last sum",
    "norm",
    "sum of magnitudes",
    "sum of squares",
    "row maximum",
    "sum of exponentials",
    "scores",
    "scaled scores",
    "hidden state",
    "cell state",
    "products",
    "mean margin",
    "cancellation",
    "row cancellation",
    "sampling loss",
    "exponent loss",
    "softmax loss",
    "decided otherwise",
    "made equal",
    "output",
]

Found = tuple[Quantity, str]
"""A quantity, and the tensor of an expression that holds it."""
NOTHING = ""
"""The tensor of a quantity that is of no interest in this model."""

LONGEST_UNTOLD: Mapping[Quantity, int] = {"sum of exponentials": 4096}
"""Of rows of so many elements at most a quantity is not told: no exponential is larger than 1. As probes.cpp has it."""

BOUNDS: frozenset[Quantity] = frozenset({"sum of magnitudes"})
"""Those that bound what a node computes: it depends on the order in which a kernel adds."""

DIVIDED_BY: Mapping[str, frozenset[Quantity]] = {
    "LpNormalization": frozenset({"sum of squares", "norm"}),
    "ReduceL2": frozenset({"sum of squares"}),
    "GlobalLpPool": frozenset({"sum of squares"}),
}
"""By operator, those of which a small one matters: the node, or one behind it, may divide by it or by its root."""

SIGNED: frozenset[Quantity] = frozenset(
    {"sum", "last sum", "row maximum", "scores", "scaled scores", "hidden state", "cell state", "output"}
)
"""Those that can be negative; of the others no minimum is told."""

NO_MAGNITUDES: frozenset[Quantity] = frozenset(
    {
        "row maximum",
        "mean margin",
        "cancellation",
        "row cancellation",
        "sampling loss",
        "exponent loss",
        "softmax loss",
        "decided otherwise",
        "made equal",
        "output",
    }
)
"""Those of which a large one is no overflow: the maximum of a masked row, margins, ratios, shares, losses and choices."""

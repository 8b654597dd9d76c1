"""Outputs that are maps, or sequences of maps, as a classifier's probabilities are by class (ZipMap): their values as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from overflow_fixer.records import Array


def read_values(value: Any) -> list[Array]:
    """The arrays of an output: of a map its values in the order of its keys [key], of maps with the same keys one [map, key].

    What is no map is as it is, a sequence one array an item. Values of floats are float64, NaN and infinities as they are.
    """
    items = value if isinstance(value, list) else [value]
    keys = _find_keys(value)
    if keys and all(one == keys[0] for one in keys):
        return [np.array([[one[key] for key in keys[0]] for one in items]).reshape(len(keys), len(keys[0]))]
    return [np.asarray([one[key] for key in sorted(one)] if isinstance(one, dict) else one) for one in items]


def say_other_keys(reference: Any, candidate: Any) -> str | None:
    """The keys of the first map that has others than in FP32, both told; None where all are the same, or there are no maps."""
    pairs = zip(_find_keys(reference), _find_keys(candidate), strict=False)
    return next((f"keys {found} instead of {right}" for right, found in pairs if right != found), None)


def _find_keys(value: Any) -> list[list[Any]]:
    """The sorted keys of each map; of what is no map, or no sequence of nothing else, none."""
    items = value if isinstance(value, list) else [value]
    return [sorted(one) for one in items] if all(isinstance(one, dict) for one in items) else []

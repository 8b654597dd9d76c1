"""The ways in which a scan observes, each held against the plainest: every tensor marked as an output."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pytest

from overflow_fixer.graph.model import Graph
from overflow_fixer.native import SWITCH
from overflow_fixer.ranges import collect_ranges, instrument
from overflow_fixer.records import CalibrationSet, InnerRange, RangeTable

Probes = Literal["native", "shared", "operators"]
PROBES: tuple[Probes, ...] = ("native", "shared", "operators")
_SAME = 1e-5
"""Sums of values inside nodes depend on the order in which they are added."""
_NOTHING = 1e-6
"""What rounding leaves of the deviations of equal numbers."""


@contextmanager
def use_probes(kind: Probes) -> Iterator[None]:
    """With the native operators, where they were built, or without. "shared": all tensors are noted to be small ones."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SWITCH, "0" if kind == "operators" else "1")
        if kind == "shared":
            patched.setattr(instrument, "find_small", _take_all_for_small)
        yield


def _take_all_for_small(graph: Graph, tensors: Collection[str]) -> dict[str, int]:
    return dict.fromkeys(tensors, 1)


def scan_each_way(
    graph: Graph, data: CalibrationSet, but: Collection[str] = (), **settings: Any
) -> RangeTable:
    """The ranges, which are the same in all ways, bit for bit; of values inside nodes, natively, to 1e-5, `but` of these."""
    marked = collect_ranges(graph, data, observe="outputs", **settings)
    found: dict[str, RangeTable] = {}
    for kind in PROBES:
        with use_probes(kind):
            found[kind] = collect_ranges(graph, data, **settings)
        assert_same_table(found[kind], marked)
    assert list(map(repr, found["operators"].inner)) == list(map(repr, marked.inner))
    for kind in ("native", "shared"):
        for one, other in zip(found[kind].inner, marked.inner, strict=True):
            if one.quantity not in but:
                assert_same_inner(one, other)
    return found["native"]


def assert_same_table(first: RangeTable, second: RangeTable) -> None:
    """But for values inside nodes."""
    assert list(map(repr, first.ranges)) == list(map(repr, second.ranges))
    assert first.batch_names == second.batch_names
    assert first.batch_max_abs.dtype == second.batch_max_abs.dtype == np.float32
    np.testing.assert_array_equal(first.batch_max_abs, second.batch_max_abs, strict=True)
    assert (first.model_sha256, first.calibration) == (second.model_sha256, second.calibration)
    assert dict(first.not_observed) == dict(second.not_observed)


def assert_same_inner(first: InnerRange, second: InnerRange) -> None:
    """What is small beside the largest magnitude is right to 1e-5 of that; what is not finite may be NaN or infinite."""
    assert (first.node, first.quantity, first.is_bound) == (second.node, second.quantity, second.is_bound)
    one, other = first.seen, second.seen
    assert one.nan_count + one.inf_count == other.nan_count + other.inf_count
    if one.nan_count + one.inf_count:
        return
    margin = _NOTHING + (_SAME * other.max_abs if np.isfinite(other.max_abs) else 0)
    assert np.isneginf(one.min_nonzero_abs) == np.isneginf(other.min_nonzero_abs)
    for name in ("max_abs", "max", "min", "min_nonzero_abs"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=_SAME, atol=margin)
    np.testing.assert_allclose(first.batch_max_abs, second.batch_max_abs, rtol=_SAME, atol=_NOTHING)

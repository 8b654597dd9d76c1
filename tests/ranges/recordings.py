"""Recordings that hypothesis draws, and when two are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from overflow_fixer.ranges.recording import Inner, Part, Recording, ScanKey, no_batches
from overflow_fixer.ranges.scan import Scan
from overflow_fixer.ranges.summaries import SUMMARY, SUMMARY_FIELDS, Summaries

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
_MAGNITUDES = st.one_of(
    st.just(np.nan), st.floats(0, allow_nan=False), st.sampled_from([0.0, 1.0, 65519.0, np.inf])
)
INNER = (Inner("norm", "deviation", False), Inner("pool", "sum of magnitudes", True))
_COUNTS = st.integers(0, 2**40)


@st.composite
def summaries(draw: st.DrawFn, count: int) -> Summaries:
    """Summaries [count] of one batch, as a walk gives them: a minimum is never -0."""
    rows = [
        (draw(_MAGNITUDES), *(draw(st.floats()) + 0.0 for _ in range(3)), *(draw(_COUNTS) for _ in range(4)))
        for _ in range(count)
    ]
    return np.array(rows, SUMMARY)


@st.composite
def recordings(draw: st.DrawFn, tensors: tuple[str, ...], number: int = 0) -> Recording:
    """A scan of up to three batches of the data set `number`, finished or not."""
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    total = len(names) + draw(st.integers(0, 2))
    key = ScanKey("ab" * 32, f"data {number}", "reductions", total)
    part = Part(draw(NAMES), draw(st.booleans()), key.calibration_fingerprint, 0)
    begun = no_batches(key, part, tensors, INNER, {"s": "it holds strings"})
    model = draw(st.sampled_from([("", ""), ("1:2:3", "/models/m.onnx")]))
    scan = Scan(replace(begun, model_stamp=model[0], model_path=model[1]))
    for name in names:
        fractional = draw(st.frozensets(st.sampled_from(["x", "z"])))
        scan.add(name, draw(summaries(len(tensors) + len(INNER))), fractional)
    return scan.recording


def assert_same_recording(first: Recording, second: Recording) -> None:
    """Bit for bit; NaN is like NaN."""
    assert (first.key, first.parts, first.names) == (second.key, second.parts, second.names)
    assert (first.inner, first.model_stamp) == (second.inner, second.model_stamp)
    assert first.model_path == second.model_path
    assert first.fractional == second.fractional
    assert dict(first.not_observed) == dict(second.not_observed)
    assert first.batch_names == second.batch_names
    for name in SUMMARY_FIELDS:
        assert repr(first.totals[name].tolist()) == repr(second.totals[name].tolist())
    assert first.worst_batch.dtype == second.worst_batch.dtype == np.int64
    assert first.worst_batch.tolist() == second.worst_batch.tolist()
    assert first.batch_max_abs.dtype == second.batch_max_abs.dtype == np.float32
    np.testing.assert_array_equal(first.batch_max_abs, second.batch_max_abs, strict=True)

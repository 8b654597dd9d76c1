"""Data that changed since the scan are told in tests/test_pipeline.py, by the jobs that meet them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_factories import BATCHES, make_finding, make_pin, make_plan, make_range, make_table

from overflow_fixer.reports.other_data import say_other_ranges


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rule": "threshold", "value": 4.0}, None),
        ({"rule": "threshold", "value": 3.0}, "max |x| 3 in t, and they of 4"),
        ({"rule": "threshold", "value": 5.0}, "max |x| 5 in t, and they of 4"),
        ({"rule": "threshold", "value": 5.0, "tensor": "none"}, None),
        ({"batch": "another"}, "t in another, which is none of their batches"),
        ({"batch": None}, None),
        ({"batch": BATCHES[0]}, None),
        ({"rule": "repair", "batch": "another"}, None),
        ({"rule": "region", "batch": "another"}, None),
    ],
)
@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_plan_that_ranges_do_not_bear_out_is_told(
    changes: dict[str, Any], told: str | None, is_pinned: bool
) -> None:
    """By what it pins, and by what it considered."""
    finding = make_finding("a", **{"tensor": "t", **changes})
    plan = make_plan(replace(make_pin("a"), findings=(finding,))) if is_pinned else make_plan()
    plan = plan if is_pinned else replace(plan, pins=(), considered=(finding,))
    said = list(say_other_ranges(plan, make_table(make_range("t", 4.0)), (Path("r.h5"), Path("p.json"))))
    if told is None:
        assert said == []
    else:
        (warning,) = said
        assert warning.startswith("p.json was made from other ranges than r.h5: it tells of ")
        assert f"{told}. " in warning

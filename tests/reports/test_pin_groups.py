from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from report_factories import make_finding, make_pin

from overflow_fixer.records import Pin
from overflow_fixer.reports.numbers_json import encode_record
from overflow_fixer.reports.pin_groups import group_pins


def _entries(*pins: Pin) -> list[dict[str, Any]]:
    return [encode_record(pin) for pin in pins]


def test_pins_of_one_tensor_and_rule_are_one_group() -> None:
    pins = _entries(make_pin("/a", tensor="t"), make_pin("/b", tensor="u"), make_pin("/c", tensor="t"))
    groups = group_pins(pins)
    assert [[pin["node"] for pin in group.pins] for group in groups] == [["/a", "/c"], ["/b"]]


def test_the_group_furthest_from_its_limit_comes_first() -> None:
    pins = _entries(
        make_pin("/user", tensor="", value=math.nan, limit=math.nan, rule="include"),
        make_pin("/near", tensor="near", value=10001.0),
        make_pin("/epsilon", tensor="epsilon", value=1e-12, limit=2.0**-25, rule="vanishing"),
        make_pin("/mask", tensor="mask", value=-math.inf, limit=65504.0),
    )
    order = [group.pins[0]["node"] for group in group_pins(pins)]
    assert order == ["/mask", "/epsilon", "/near", "/user"]


def test_a_pin_belongs_to_its_worst_finding_that_pins() -> None:
    near, far = make_finding("/a", "near", value=10001.0), make_finding("/a", "far", value=1e9)
    noted = make_finding("/a", "noted", value=math.inf, action="none")
    (group,) = group_pins(_entries(Pin("/a", "Add", ("y",), (noted, near, far))))
    assert group.cause is not None
    assert group.cause["tensor"] == "far"


def test_a_pin_without_a_finding_is_not_lost() -> None:
    (group,) = group_pins(_entries(Pin("/a", "Add", ("y",), ())))
    assert group.cause is None
    assert [pin["node"] for pin in group.pins] == ["/a"]


_PINS = st.lists(
    st.builds(
        lambda index, tensor, value, limit: make_pin(f"/n{index}", tensor=tensor, value=value, limit=limit),
        st.integers(0, 99),
        st.sampled_from(["a", "b", "c", ""]),
        st.floats(),
        st.floats(),
    )
)


@given(_PINS)
def test_every_pin_is_in_one_group(pins: list[Pin]) -> None:
    entries = _entries(*pins)
    grouped = [pin for group in group_pins(entries) for pin in group.pins]
    assert sorted(map(id, grouped)) == sorted(map(id, entries))

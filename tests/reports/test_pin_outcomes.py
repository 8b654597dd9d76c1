from __future__ import annotations

from overflow_fixer.reports.pin_outcomes import say_outcomes, sort_pins


def test_every_planned_pin_is_counted_once() -> None:
    states = {"a": "honoured", "b": "not honoured", "c": "not visible", "d": "no layer"}
    found = sort_pins("abcdefg", states, skipped={"e"}, dropped={"f"})
    assert found == {
        "honoured": ["a"],
        "not honoured": ["b"],
        "not visible": ["c"],
        "no layer": ["d"],
        "skipped": ["e"],
        "dropped": ["f"],
        "not reported": ["g"],
    }


def test_a_dropped_pin_is_dropped_whatever_the_engine_does_with_its_node() -> None:
    assert sort_pins((), {"a": "honoured"}, (), {"a"}) == {"dropped": ["a"]}


def test_what_the_engine_says_goes_before_a_skip_of_one_of_the_layers() -> None:
    assert sort_pins("a", {"a": "not honoured"}, {"a"}, ()) == {"not honoured": ["a"]}


def test_a_node_pinned_beyond_the_plan_is_counted_too() -> None:
    assert sort_pins("a", {"a": "honoured", "b": "not honoured"}, (), ())["not honoured"] == ["b"]


def test_all_are_honoured_only_where_each_is() -> None:
    assert say_outcomes({"honoured": ["a", "b"]}) == "all honoured"
    assert say_outcomes({"honoured": ["a"], "not reported": ["b"]}) == "1 honoured, 1 not reported"
    assert say_outcomes({"not honoured": ["b"]}) == "1 NOT honoured"
    assert say_outcomes({}) == ""

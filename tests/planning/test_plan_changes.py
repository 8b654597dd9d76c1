"""What is said to differ between two plans."""

from __future__ import annotations

from overflow_fixer.planning.plan_changes import compare_plans, say_change
from overflow_fixer.records import Finding, Pin, PrecisionPlan


def plan(threshold: float, *nodes: str) -> PrecisionPlan:
    pins = (
        Pin(name, "Relu", (f"{name}_out",), (Finding("threshold", name, "t", 1.0, 0.5, "why"),))
        for name in nodes
    )
    return PrecisionPlan("ab" * 32, threshold, tuple(pins))


def test_added_and_removed_are_told_in_the_order_of_the_plans() -> None:
    change = compare_plans(plan(100, "a", "b", "c"), plan(50, "b", "d", "e"))
    assert [pin.node for pin in change.added] == ["d", "e"]
    assert [pin.node for pin in change.removed] == ["a", "c"]
    assert list(say_change(change)) == [
        "Against the plan there was (threshold 100, now 50): 2 more pinned, 2 no longer.",
        "  + d (Relu): why",
        "  + e (Relu): why",
        "  - a (Relu): why",
        "  - c (Relu): why",
    ]


def test_equal_plans() -> None:
    change = compare_plans(plan(100, "a"), plan(100, "a"))
    assert list(say_change(change)) == ["Against the plan there was: the same nodes are pinned."]


def test_a_long_list_is_cut() -> None:
    lines = list(say_change(compare_plans(plan(1), plan(1, *map(str, range(9))))))
    assert lines[0] == "Against the plan there was: 9 more pinned, 0 no longer."
    assert lines[-1] == "  + 4 more"
    assert len(lines) == 7


def test_a_pin_without_a_finding_is_told() -> None:
    """As one is that was put into plan.json by hand."""
    bare = PrecisionPlan("ab" * 32, 1, (Pin("a", "Relu", ("a_out",), ()),))
    assert list(say_change(compare_plans(bare, plan(1))))[1:] == ["  - a (Relu): no finding was recorded"]

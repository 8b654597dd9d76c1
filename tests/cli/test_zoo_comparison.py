"""What newly fails, and which plans changed, is said in a few lines."""

from __future__ import annotations

from typing import Any

from overflow_fixer.cli.zoo_comparison import say_comparison

NOTHING: dict[str, Any] = {
    "tool_version": "0.1.0",
    "newly_failing": [],
    "newly_passing": [],
    "changed_plans": [],
    "changed_content": [],
    "changed_versions": {},
    "added": [],
    "removed": [],
}


def _say(**changes: object) -> list[str]:
    return list(say_comparison({**NOTHING, **changes}))


def test_each_kind_of_change_is_one_line() -> None:
    assert _say(
        newly_failing=["a"],
        newly_passing=["b", "c"],
        changed_plans=[
            {"name": "d", "added": ["/n1", "/n2"], "removed": ["/n3"]},
            {"name": "e", "added": [], "removed": ["/n4"]},
        ],
        changed_versions={"onnxruntime": ["1.20", "1.21"], "tensorrt": [None, "10.0"]},
        changed_content=["h"],
        added=["f"],
        removed=["g"],
    ) == [
        "Since the earlier run (fix-fp16 0.1.0):",
        "  newly failing (1): a",
        "  newly passing (2): b, c",
        "  only in this run (1): f",
        "  only in the earlier run (1): g",
        "  other model or data (1): h",
        "  other pins (2): d (2 gained, /n1, /n2; 1 lost, /n3); e (1 lost, /n4)",
        "  other versions: onnxruntime 1.20 -> 1.21, tensorrt none -> 10.0",
    ]


def test_that_nothing_changed_is_said() -> None:
    assert _say() == [
        "Since the earlier run (fix-fp16 0.1.0) nothing changed: no outcome, plan, version, model or data."
    ]


def test_many_names_are_counted_and_long_or_odd_ones_made_fit() -> None:
    names = [f"m{index}" for index in range(1000)]
    plans = [{"name": "long" * 100, "added": names, "removed": ["a\nb"]}] * 7
    lines = _say(newly_failing=names, changed_plans=plans)
    assert lines[1] == "  newly failing (1000): m0, m1, m2, m3, m4, and 995 more"
    assert "1000 gained, m0, m1, m2, and 997 more; 1 lost, a" in lines[2]
    assert lines[2].endswith(", and 2 more")
    assert len(lines[2]) < 1000
    assert "\n" not in "".join(lines)

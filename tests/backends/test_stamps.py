"""What of a plan decides what is built."""

from __future__ import annotations

from dataclasses import replace

from overflow_fixer.backends.stamps import fingerprint
from overflow_fixer.records import Clamp, Pin, PrecisionPlan


def test_the_fingerprint_is_of_pins_clamps_and_io_types() -> None:
    plan = PrecisionPlan("model", 1e4, (), (Clamp("a", 2.0, "r"), Clamp("b", 3.0, "r")))
    turned = replace(plan, threshold=5.0, clamps=plan.clamps[::-1])
    assert fingerprint(plan, "keep") == fingerprint(turned, "keep")
    assert len(fingerprint(plan, "keep")) == 64
    others = [
        fingerprint(replace(plan, pins=(Pin("n", "Relu", (), ()),)), "keep"),
        fingerprint(replace(plan, clamps=()), "keep"),
        fingerprint(replace(plan, clamps=(Clamp("a", 2.5, "r"), plan.clamps[1])), "keep"),
        fingerprint(plan, "fp16"),
    ]
    assert len({fingerprint(plan, "keep"), *others}) == 5

"""What of a plan decides what is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overflow_fixer.backends.stamps import fingerprint, refuse_other_types
from overflow_fixer.errors import BackendError
from overflow_fixer.records import Clamp, Pin, PrecisionPlan


def test_the_fingerprint_is_of_pins_clamps_tf32_and_io_types() -> None:
    plan = PrecisionPlan("model", 1e4, (), (Clamp("a", 2.0, "r"), Clamp("b", 3.0, "r")))
    turned = replace(plan, threshold=5.0, clamps=plan.clamps[::-1])
    assert fingerprint(plan, "keep") == fingerprint(turned, "keep")
    assert len(fingerprint(plan, "keep")) == 64
    others = [
        fingerprint(replace(plan, pins=(Pin("n", "Relu", (), ()),)), "keep"),
        fingerprint(replace(plan, clamps=()), "keep"),
        fingerprint(replace(plan, clamps=(Clamp("a", 2.5, "r"), plan.clamps[1])), "keep"),
        fingerprint(replace(plan, tf32=False), "keep"),
        fingerprint(plan, "fp16"),
    ]
    assert len({fingerprint(plan, "keep"), *others}) == 6


def test_the_types_that_a_file_was_built_with_are_named() -> None:
    plan = PrecisionPlan("model", 1e4, (), ())
    for used, asked in (("keep", "fp16"), ("fp16", "keep")):
        with pytest.raises(
            BackendError, match=rf"io_types '{used}'\. Expected '{asked}'.* Add --io-types {used}"
        ):
            refuse_other_types(Path("m"), plan, asked, fingerprint(plan, used))
        for other in (None, fingerprint(plan, asked), "of another plan"):
            refuse_other_types(Path("m"), plan, asked, other)

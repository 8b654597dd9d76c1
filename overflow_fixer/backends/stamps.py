"""Of which plan a file is that a backend wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from overflow_fixer.errors import BackendError
from overflow_fixer.records import PrecisionPlan


def fingerprint(plan: PrecisionPlan, io_types: str) -> str:
    """What of a plan decides what is built, in 64 hexadecimal digits."""
    clamps = sorted((clamp.tensor, clamp.magnitude) for clamp in plan.clamps)
    without_tf32 = [] if plan.tf32 else ["no TF32"]
    text = json.dumps([sorted(plan.pinned), clamps, io_types, *without_tf32])
    return hashlib.sha256(text.encode()).hexdigest()


def refuse_other_types(path: Path, plan: PrecisionPlan, io_types: str, stamp: str | None) -> None:
    """Raise BackendError where `path`, of that stamp, was built from this very plan with other types of inputs and outputs."""
    other = "keep" if io_types == "fp16" else "fp16"
    if stamp == fingerprint(plan, other):
        raise BackendError(
            f"{path} was built from this plan with io_types {other!r}. Expected {io_types!r}, as the settings say. Add --io-types "
            f"{other} (io_types in the table [build]), or build it again with fix-fp16 build."
        )

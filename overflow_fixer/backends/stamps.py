"""Of which plan a file is that a backend wrote."""

from __future__ import annotations

import hashlib
import json

from overflow_fixer.records import PrecisionPlan


def fingerprint(plan: PrecisionPlan, io_types: str) -> str:
    """What of a plan decides what is built, in 64 hexadecimal digits."""
    clamps = sorted((clamp.tensor, clamp.magnitude) for clamp in plan.clamps)
    text = json.dumps([sorted(plan.pinned), clamps, io_types])
    return hashlib.sha256(text.encode()).hexdigest()

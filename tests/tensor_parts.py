"""Nodes that take the last two of four elements, by each operator that leaves elements out."""

from __future__ import annotations

import numpy as np
import onnx
from in_memory_calibration import ints, node

PART_CONSTANTS = {
    "from": ints(2),
    "to": ints(4),
    "axis": ints(0),
    "sizes": ints(2, 2),
    "places": ints(2, 3),
    "rows": np.array([[2], [3]], np.int64),
    "chosen": np.array([False, False, True, True]),
}


def take_part(source: str, part: str) -> dict[str, onnx.NodeProto]:
    """By operator, a node that makes `part` of `source`, with PART_CONSTANTS."""
    return {
        "Slice": node("Slice", f"{source} from to axis", part),
        "Split": node("Split", f"{source} sizes", f"rest {part}", axis=0),
        "Gather": node("Gather", f"{source} places", part),
        "GatherND": node("GatherND", f"{source} rows", part),
        "GatherElements": node("GatherElements", f"{source} places", part),
        "Compress": node("Compress", f"{source} chosen", part, axis=0),
    }

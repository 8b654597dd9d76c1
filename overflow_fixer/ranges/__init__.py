"""Batches to ranges: every float tensor of a model observed on real runs."""

from overflow_fixer.ranges.collect import collect_ranges
from overflow_fixer.ranges.store import load_ranges, save_ranges
from overflow_fixer.ranges.walk import Observe

__all__ = ["Observe", "collect_ranges", "load_ranges", "save_ranges"]

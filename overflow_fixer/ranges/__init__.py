"""Batches to ranges: every float tensor of a model observed on real runs."""

from overflow_fixer.ranges.collect import collect_ranges
from overflow_fixer.ranges.merge import merge_ranges
from overflow_fixer.ranges.observers import Observe
from overflow_fixer.ranges.over_limit import OnOver, ignore_over
from overflow_fixer.ranges.resumption import Existing
from overflow_fixer.ranges.store import load_ranges

__all__ = ["Existing", "Observe", "OnOver", "collect_ranges", "ignore_over", "load_ranges", "merge_ranges"]

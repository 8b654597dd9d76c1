"""Batches to ranges: every float tensor of a model observed on real runs."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.ranges.collect import collect_ranges
    from overflow_fixer.ranges.merge import merge_ranges
    from overflow_fixer.ranges.observers import Observe
    from overflow_fixer.ranges.over_limit import OnOver, ignore_over
    from overflow_fixer.ranges.resumption import Existing
    from overflow_fixer.ranges.store import load_ranges

__all__ = ["Existing", "Observe", "OnOver", "collect_ranges", "ignore_over", "load_ranges", "merge_ranges"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "collect": ("collect_ranges",),
            "merge": ("merge_ranges",),
            "observers": ("Observe",),
            "over_limit": ("OnOver", "ignore_over"),
            "resumption": ("Existing",),
            "store": ("load_ranges",),
        },
    )

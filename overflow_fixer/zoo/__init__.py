"""Many models, each fixed in a process of its own, and one summary of them all."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.zoo.entries import Zoo, ZooEntry
    from overflow_fixer.zoo.fixing import fix_zoo
    from overflow_fixer.zoo.outcomes import ZooOutcome

__all__ = ["Zoo", "ZooEntry", "ZooOutcome", "fix_zoo"]

__getattr__ = lazy_names(
    __name__, {"entries": ("Zoo", "ZooEntry"), "fixing": ("fix_zoo",), "outcomes": ("ZooOutcome",)}
)

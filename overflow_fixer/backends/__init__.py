"""Backends turn a plan into an artifact and open it for verification. `table` has them, `choice` chooses."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.backends.choice import choose_backend, find_protected
    from overflow_fixer.backends.table import BACKENDS, Backend

__all__ = ["BACKENDS", "Backend", "choose_backend", "find_protected"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__, {"choice": ("choose_backend", "find_protected"), "table": ("BACKENDS", "Backend")}
    )

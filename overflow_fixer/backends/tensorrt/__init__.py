"""The `tensorrt` backend: engines with the planned layers in FP32, on every TensorRT from 8.5 to 11.

`capabilities` asks the module what it can do, `network` parses, `mapping` finds a node's layers, `pins`
sets them, `builder` builds, `inspection` reads what was built, `runner` runs it, `latency` times it;
`weak` and `emission` are the whole of it, `price` compares, `exports` writes the plan for other tools. The
tensorrt module itself is imported in `capabilities` alone.
"""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.backends.tensorrt.availability import find_lack, require
    from overflow_fixer.backends.tensorrt.emission import (
        check_settings,
        describe,
        emit,
        emit_fp32,
        find_foreign,
        name_files,
        open_runner,
        open_tracer,
    )
    from overflow_fixer.backends.tensorrt.engine_file import note_price, read_price
    from overflow_fixer.backends.tensorrt.price import FIXED, FP32, FP32_EXACT, NAIVE, measure_price
    from overflow_fixer.backends.tensorrt.profiles import check_cover, override_shapes
    from overflow_fixer.backends.tensorrt.protection import find_protected

__all__ = [
    "FIXED",
    "FP32",
    "FP32_EXACT",
    "NAIVE",
    "check_cover",
    "check_settings",
    "describe",
    "emit",
    "emit_fp32",
    "find_foreign",
    "find_lack",
    "find_protected",
    "measure_price",
    "name_files",
    "note_price",
    "open_runner",
    "open_tracer",
    "override_shapes",
    "read_price",
    "require",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "availability": ("find_lack", "require"),
            "emission": (
                "check_settings",
                "describe",
                "emit",
                "emit_fp32",
                "find_foreign",
                "name_files",
                "open_runner",
                "open_tracer",
            ),
            "engine_file": ("note_price", "read_price"),
            "price": ("FIXED", "FP32", "FP32_EXACT", "NAIVE", "measure_price"),
            "profiles": ("check_cover", "override_shapes"),
            "protection": ("find_protected",),
        },
    )

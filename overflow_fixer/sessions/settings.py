"""What every session of this process is opened with: threads, custom operators, the options of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from overflow_fixer.errors import ModelError
from overflow_fixer.files import sha256_of
from overflow_fixer.host.allotment import count_threads
from overflow_fixer.native import find_library, may_hold_operators
from overflow_fixer.sessions.providers import Provider
from overflow_fixer.sessions.refusals import first_line

_DISABLE_QUANTIZED = "session.disable_quant_qdq"
_STOP_SPINNING = "session.force_spinning_stop"
_SPIN_MICROSECONDS = "session.intra_op.spin_duration_us", "500"
"""Idle threads would spin on the cores that another session, or what runs beside one that opens, needs."""
_custom_ops: list[Path] = []
"""Libraries for every session; a process has one list, as it has one set of loaded libraries."""
_threads = [0]
"""Of every session, on the CPU; 0: one a core. As many as ONNX Runtime likes would be pinned, each to a core on which
another thread may be at work."""


def use_custom_ops(libraries: Sequence[Path]) -> None:
    """Have ONNX Runtime load these libraries of custom operators for every session from now on, and no others.

    They run code of their own in this process. Raises ModelError for one that does not load, with ONNX Runtime's words.
    """
    for library in libraries:
        try:
            onnxruntime.SessionOptions().register_custom_ops_library(str(library.resolve()))
        except Exception as error:  # onnxruntime raises many unrelated types
            raise ModelError(
                f"The library of custom operators {library} does not load: {first_line(error)}. Expected a shared library "
                f"that registers operators with ONNX Runtime {onnxruntime.__version__} (RegisterCustomOps). Check the path "
                "and which ONNX Runtime it was built for."
            ) from error
    _custom_ops[:] = libraries


def use_threads(count: int) -> None:
    """Have every session from now on compute with so many threads; 0: one a core that this process may use."""
    _threads[0] = count


def hash_custom_ops() -> str:
    """The SHA-256 of the libraries in use, in hexadecimal; "" where there are none."""
    return sha256_of(_custom_ops) if _custom_ops else ""


def has_native_probes() -> bool:
    """Whether the native operators of overflow_fixer.native are there and load, so that a model may hold them."""
    library = find_library()
    return library is not None and _loads(library)


@cache
def _loads(library: Path) -> bool:
    with suppress(Exception):  # onnxruntime raises many unrelated types
        onnxruntime.SessionOptions().register_custom_ops_library(str(library))
        return True
    return False


def make_options(optimize: bool, by_priority: bool, provider: Provider) -> Any:
    """ONNX Runtime's SessionOptions, as open_session's parameters ask for them."""
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.enable_mem_pattern = False
    options.enable_mem_reuse = provider != "cpu"  # planning it takes the square of the number of nodes
    options.intra_op_num_threads = _threads[0] or count_threads()
    options.log_severity_level = 4
    if not optimize:  # even so, each reader of a DequantizeLinear, a probe too, would get one of its own
        options.add_session_config_entry(_DISABLE_QUANTIZED, "1")
    options.add_session_config_entry(_STOP_SPINNING, "1")
    options.add_session_config_entry(*_SPIN_MICROSECONDS)
    for library in _custom_ops:
        options.register_custom_ops_library(str(library.resolve()))
    if by_priority:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if provider != "cpu":
        options.use_deterministic_compute = True
    return options


def add_native(options: Any, model: onnx.ModelProto) -> None:
    """ONNX Runtime names the operators' domain in whatever it saves once it has heard of them, so that they need not be there."""
    library = find_library()
    if library is not None and may_hold_operators(model):
        options.register_custom_ops_library(str(library))

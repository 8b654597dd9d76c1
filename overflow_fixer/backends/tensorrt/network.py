"""An ONNX model parsed into a TensorRT network."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.cuda import open_device
from overflow_fixer.backends.tensorrt.logger import last_errors, make_logger
from overflow_fixer.errors import BackendError
from overflow_fixer.records import Typing

_CREATORS = ("getCreators", "getPluginCreators")
"""What a plug-in library exports that TensorRT asks for its plug-ins."""


@dataclass(frozen=True, eq=False)
class ParsedNetwork:
    """The network and what must live as long as it: TensorRT keeps no reference to the model's bytes.

    `note` is what a user has to know of what was parsed; "" for nothing.
    """

    network: Any
    parser: Any
    source: bytes | None
    note: str = ""


class RefusedModelError(BackendError):
    """The parser does not take a model; `reason` is what TensorRT says of it."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@lru_cache(maxsize=1)
def open_builder(trt: Any) -> Any:
    """The process's one builder (it takes seconds to start). The GPU is asked for first: see `open_device`."""
    open_device()
    return trt.Builder(make_logger(trt))


@lru_cache(maxsize=64)
def load_plugin(trt: Any, library: Path) -> None:
    """Load a plug-in library, once: it registers its plug-ins by itself, or hands them over when asked.

    The second kind exports one of `_CREATORS` and is TensorRT's to load, from 8.6 on. Raises BackendError if
    it does not load.
    """
    path = locate_plugin(library)
    try:
        loaded = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _refuse_plugin(trt, library, str(error)) from error
    if not any(hasattr(loaded, name) for name in _CREATORS):
        return
    registry = trt.get_plugin_registry()
    if not hasattr(registry, "load_library"):
        return
    logger = make_logger(trt)
    logger.forget()
    if registry.load_library(path) is None:
        raise _refuse_plugin(trt, library, last_errors(logger))


def locate_plugin(library: Path) -> str:
    """Where a library is, whatever folder it is loaded from; as it was named, if it is for the system's loader to find."""
    return str(library.resolve() if os.path.exists(library) else library)


def _refuse_plugin(trt: Any, library: Path, reason: str) -> BackendError:
    return BackendError(
        f"The plug-in library {library} does not load: {reason}. Expected a shared library built for TensorRT "
        f"{trt.__version__}. Check --plugin, and what the library itself links to (ldd)."
    )


def prepare(trt: Any, plugins: Sequence[Path]) -> None:
    """Register TensorRT's plug-ins and the user's; needed before parsing and before deserializing."""
    for library in plugins:
        load_plugin(trt, library)
    trt.init_libnvinfer_plugins(make_logger(trt), "")


def parse_model(
    trt: Any,
    found: Capabilities,
    source: Path | bytes,
    home: Path,
    told: str,
    typing: Typing,
    doubt: str,
) -> ParsedNetwork:
    """Parse a model's bytes, whose external data lies beside the file `home`, or a model's file.

    Raises RefusedModelError, which tells the model so, with TensorRT's own words about every node that it refuses, and the
    `doubt` that there was before.
    """
    logger = make_logger(trt)
    logger.forget()
    network = open_builder(trt).create_network(_creation_flags(trt, found, typing))
    parser = trt.OnnxParser(network, logger)
    if found.parser_flags and hasattr(trt.OnnxParserFlag, "NATIVE_INSTANCENORM"):
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    if isinstance(source, bytes):
        is_parsed = parser.parse(source, str(home))
    else:
        is_parsed = parser.parse_from_file(str(source))
    if not is_parsed:
        reason = _explain(parser, logger, found)
        raise RefusedModelError(
            f"TensorRT {found.version} cannot take {told}: {reason}. Expected a model of "
            f"operators that its parser knows. {doubt + ' ' if doubt else ''}Export the model without them, fold its constants where it is "
            "values or axes that are not known, give a plug-in with --plugin, or build the typed model with --backend onnx for a newer TensorRT.",
            reason,
        )
    return ParsedNetwork(network, parser, source if isinstance(source, bytes) else None)


def _creation_flags(trt: Any, found: Capabilities, typing: Typing) -> int:
    flags = trt.NetworkDefinitionCreationFlag.__members__
    chosen = ["EXPLICIT_BATCH"] if found.explicit_batch else []
    chosen += ["STRONGLY_TYPED"] if typing == "strong" else []
    return sum(1 << int(flags[name]) for name in chosen)


def _explain(parser: Any, logger: Any, found: Capabilities) -> str:
    """TensorRT's own words about every node that it refuses, and which those are."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    told = [" ".join(str(error.desc()).split()).rstrip(". ") for error in errors]
    reasons = "; ".join(dict.fromkeys(told)) or last_errors(logger)
    logged = [] if found.error_nodes else [*filter(None, map(_logged_place, logger.errors))]
    where = ", ".join(dict.fromkeys(logged or filter(None, (_place(error, found) for error in errors))))
    return f"{reasons} (at {where})" if where else reasons


def _place(error: Any, found: Capabilities) -> str:
    """The node of an error; empty where it is of none."""
    if found.error_nodes:
        name = repr(error.node_name()) if error.node_name() else f"number {error.node()}"
        return f"{error.node_operator()} {name}" if error.node_operator() else ""
    return f"node number {error.node()}" if error.node() >= 0 else ""


def _logged_place(line: str) -> str:
    """The node in a line of the log, which tells more of it than an older parser's error does."""
    found = re.search(r'While parsing node number \d+ \[(\S+) -> "(.*?)"\]', line)
    return f"{found[1]} that writes {found[2]!r}" if found else ""

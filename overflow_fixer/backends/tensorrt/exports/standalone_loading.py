"""A model parsed into a network by code that stands alone: its text is part of the exported loader script.

So it imports nothing of this package and keeps to Python 3.8.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from typing import Any

# ---------------------------------------------------------------- exported from here


def check_model(path: str, sha256: str) -> None:
    """Raise RuntimeError where the file is not the model that the plan was made for."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1 << 22), b""):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise RuntimeError(
            f"{path} is not the model that the plan was made for: make a new plan with fix-fp16."
        )


def prepare_plugins(trt: Any, logger: Any, libraries: Sequence[str]) -> None:
    """Register TensorRT's plug-ins and those of the libraries.

    A library that exports `getCreators` or `getPluginCreators` is TensorRT's to load. Raises RuntimeError
    where it refuses to.
    """
    for library in libraries:
        loaded = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        if not hasattr(loaded, "getCreators") and not hasattr(loaded, "getPluginCreators"):
            continue
        registry = trt.get_plugin_registry()
        if hasattr(registry, "load_library") and registry.load_library(library) is None:
            raise RuntimeError(f"TensorRT {trt.__version__} cannot load the plug-in library {library}")
    trt.init_libnvinfer_plugins(logger, "")


def parse_model(trt: Any, network: Any, logger: Any, path: str, changed: bytes | None) -> Any:
    """Parse the model's file, or what it was changed to, whose external data lies beside it.

    Raises RuntimeError with TensorRT's own words about what it refuses.
    """
    parser = trt.OnnxParser(network, logger)
    if hasattr(getattr(trt, "OnnxParserFlag", None), "NATIVE_INSTANCENORM"):
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    if not (parser.parse_from_file(path) if changed is None else parser.parse(changed, path)):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise RuntimeError(f"TensorRT {trt.__version__} cannot take {path}: {'; '.join(errors)}")
    return parser

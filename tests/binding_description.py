"""Run with a TensorRT module on the path: prints what it holds and what the package makes of it, as JSON.

Never imported by a test: the process that runs it has the module of one release, and ends.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Any

from overflow_fixer.backends.tensorrt.capabilities import choose_typing, import_tensorrt, probe
from overflow_fixer.backends.tensorrt.logger import make_logger
from overflow_fixer.errors import BackendError

_PLAIN = re.compile(r"__(?!init__|members__)|_pybind11")


def main() -> None:
    trt = import_tensorrt()
    public = {name: getattr(trt, name) for name in dir(trt) if not name.startswith("_")}
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    found = probe(trt)
    document = {
        "version": trt.__version__,
        "functions": {name: _signatures(name, value) for name, value in public.items() if callable(value)},
        "values": sorted(set(public) - set(classes)),
        "classes": {name: _members(value) for name, value in classes.items()},
        "enums": {name: _enum(value) for name, value in classes.items() if hasattr(value, "__members__")},
        "capabilities": asdict(found),
        "typing": {asked: _typing(found, asked) for asked in ("auto", "weak", "strong")},
        "callbacks": _callbacks(trt),
        "logged": _log(trt),
        "plugins": trt.init_libnvinfer_plugins(make_logger(trt), ""),
        "severities": _enum(trt.ILogger.Severity),
        "shape": list(trt.Dims((2, -1, 3))),
        "shape_equals_tuple": trt.Dims((2, -1)) == (2, -1),
        "shape_differs_from_tuple": trt.Dims((2, -1)) != (2, -1),
        "data_type_names": [trt.float32.name, trt.DataType.HALF.name],
    }
    json.dump(document, sys.stdout)


def _members(owner: type) -> dict[str, dict[str, Any]]:
    names = [name for name in dir(owner) if not _PLAIN.match(name)]
    return {name: _member(name, getattr(owner, name)) for name in names}


def _member(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, property):
        return {"kind": "attribute", "writable": value.fset is not None}
    if callable(value):
        return {"kind": "method", "signatures": _signatures(name, value)}
    return {"kind": "value"}


def _signatures(name: str, value: Any) -> list[str]:
    pattern = re.compile(rf"^(?:\d+\. )?{re.escape(name)}\((.*)\) -> ")
    lines = (value.__doc__ or "").splitlines()
    return [match[1] for match in map(pattern.match, lines) if match and match[1] != "*args, **kwargs"]


def _enum(owner: Any) -> dict[str, int]:
    return {name: int(member) for name, member in owner.__members__.items()}


def _typing(found: Any, asked: Any) -> str:
    try:
        return choose_typing(found, asked)
    except BackendError as error:
        return str(error)


def _callbacks(trt: Any) -> dict[str, bool]:
    names = ("IProfiler", "IOutputAllocator", "IProgressMonitor")
    return {name: hasattr(trt, name) and _can_be_subclassed(getattr(trt, name)) for name in names}


def _can_be_subclassed(base: Any) -> bool:
    def start(self: Any) -> None:
        base.__init__(self)

    return isinstance(type("Subclass", (base,), {"__init__": start})(), base)


def _log(trt: Any) -> dict[str, list[str]]:
    logger = make_logger(trt)
    for name in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO"):
        logger.log(getattr(trt.ILogger.Severity, name), name)
    return {"errors": logger.errors, "warnings": logger.warnings}


if __name__ == "__main__":
    main()

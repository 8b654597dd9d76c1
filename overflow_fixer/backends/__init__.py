"""Backends turn a plan into an artifact and open it for verification. One line here a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overflow_fixer.backends import mixed_onnx
from overflow_fixer.errors import BackendError
from overflow_fixer.graph import Graph
from overflow_fixer.records import Artifact, PrecisionPlan, Runner


class Emit(Protocol):
    """Builds the plan's artifact at a path, or describes one that was built there."""

    def __call__(
        self, graph: Graph, plan: PrecisionPlan, path: Path, *, io_types: mixed_onnx.IoTypes = "keep"
    ) -> Artifact: ...


@dataclass(frozen=True)
class Backend:
    """`suffix` ends the artifact's file name; `open_runner` may be asked for inner tensors as well."""

    suffix: str
    emit: Emit
    describe: Emit
    open_runner: Callable[[Artifact, Sequence[str]], Runner]


BACKENDS: dict[str, Backend] = {
    "onnx": Backend(".fp16.onnx", mixed_onnx.emit, mixed_onnx.describe, mixed_onnx.open_runner),
}


def choose_backend(name: str) -> tuple[str, str]:
    """The backend for a name ("auto" included) and, in one line, why. Raises BackendError if it is missing."""
    if name == "auto":
        return "onnx", "a typed ONNX model: this version of overflow_fixer builds no TensorRT engine itself"
    if name in BACKENDS:
        return name, "asked for"
    raise BackendError(
        f"The backend {name!r} is not in this version of overflow_fixer. Expected one of: auto, "
        f"{', '.join(BACKENDS)}. Build the typed model with --backend onnx and give it to trtexec "
        "(TensorRT 10.12 or newer, --stronglyTyped)."
    )

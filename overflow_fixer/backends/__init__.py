"""Backends turn a plan into an artifact and open it for verification. One line here a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from overflow_fixer.backends import mixed_onnx, tensorrt
from overflow_fixer.errors import BackendError
from overflow_fixer.graph import Graph
from overflow_fixer.progress import Progress
from overflow_fixer.records import Artifact, BuildSettings, PrecisionPlan, Runner


class Emit(Protocol):
    """Builds the plan's artifact at a path."""

    def __call__(
        self, graph: Graph, plan: PrecisionPlan, path: Path, settings: BuildSettings, progress: Progress
    ) -> Artifact: ...


@dataclass(frozen=True)
class Backend:
    """What a backend does.

    `suffix` ends the artifact's file name. `describe` tells of an artifact that was built before.
    `find_protected` gives the operators that it computes in FP32 inside by itself, and why.
    `is_engine`: it runs on a GPU, is built for the shapes of the data, and is compared with engines of
    its own kind (see `backends.tensorrt`).
    """

    suffix: str
    emit: Emit
    describe: Callable[[Graph, PrecisionPlan, Path, BuildSettings], Artifact]
    open_runner: Callable[[Artifact, BuildSettings], Runner]
    is_engine: bool = False
    find_protected: Callable[[Literal["auto", "weak", "strong"]], Mapping[str, str]] = lambda typing: {}


BACKENDS: dict[str, Backend] = {
    "onnx": Backend(
        ".fp16.onnx",
        lambda graph, plan, path, settings, progress: mixed_onnx.emit(
            graph, plan, path, io_types=settings.io_types
        ),
        lambda graph, plan, path, settings: mixed_onnx.describe(
            graph, plan, path, io_types=settings.io_types
        ),
        lambda artifact, settings: mixed_onnx.open_runner(artifact),
    ),
    "tensorrt": Backend(
        ".engine",
        tensorrt.emit,
        tensorrt.describe,
        tensorrt.open_runner,
        is_engine=True,
        find_protected=tensorrt.find_protected,
    ),
}


def choose_backend(name: str) -> tuple[str, str]:
    """The backend for a name ("auto" included) and, in one line, why. Raises BackendError if it is missing."""
    if name == "tensorrt":
        return name, f"asked for: {tensorrt.require()}"
    if name in BACKENDS:
        return name, "asked for"
    if name != "auto":
        raise BackendError(
            f"The backend {name!r} is not in this version of overflow_fixer. Expected one of: auto, "
            f"{', '.join(BACKENDS)}. Correct --backend."
        )
    lack = tensorrt.find_lack()
    if lack is None:
        return "tensorrt", f"an engine: {tensorrt.require()}"
    return "onnx", f"a typed ONNX model: {lack}"

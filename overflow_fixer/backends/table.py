"""The backends, in a table. A newcomer adds a module, a line here and a name in `choice`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overflow_fixer.backends import mixed_onnx, tensorrt
from overflow_fixer.graph.model import Graph
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

    `suffix` ends the artifact's file name; `name_files` names all that may stand beside it, and `find_foreign` what of
    that is there and was made by something else. `describe` tells of an artifact that was built before.
    `warn` tells, given the libraries of custom operators, what its users are to know of an artifact.
    `is_engine`: it runs on a GPU, is built for the shapes of the data, and is compared with engines of
    its own kind (see `backends.tensorrt`).
    """

    suffix: str
    emit: Emit
    describe: Callable[[Graph, PrecisionPlan, Path, BuildSettings], Artifact]
    open_runner: Callable[[Artifact, BuildSettings], Runner]
    name_files: Callable[[Path], Sequence[Path]]
    find_foreign: Callable[[Path, BuildSettings], Path | None]
    warn: Callable[[Artifact, Sequence[Path]], Iterable[str]] = lambda artifact, custom_ops: ()
    is_engine: bool = False


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
        mixed_onnx.name_files,
        lambda path, settings: mixed_onnx.find_foreign(path),
        lambda artifact, custom_ops: mixed_onnx.warn_of_default_loading(artifact, custom_ops),
    ),
    "tensorrt": Backend(
        ".engine",
        tensorrt.emit,
        tensorrt.describe,
        tensorrt.open_runner,
        tensorrt.name_files,
        tensorrt.find_foreign,
        is_engine=True,
    ),
}

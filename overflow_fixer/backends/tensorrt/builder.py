"""A parsed network built into an engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.logger import last_errors, make_logger
from overflow_fixer.backends.tensorrt.network import open_builder
from overflow_fixer.backends.tensorrt.profiles import add_profile
from overflow_fixer.backends.tensorrt.timings import attach_timings, find_obstacle, save_timings
from overflow_fixer.errors import BackendError, ConfigError
from overflow_fixer.progress import Progress
from overflow_fixer.records import BuildSettings, Constraints, PrecisionPlan

_DISOBEDIENT = re.compile(
    r"No implementation of layer (.+?) obeys|No supported formats for (.+?)\.?\)?$|implementation for node (.+?)\.?\)?\.?$",
    re.MULTILINE,
)
"""What a build says that fails under OBEY: the first in so many words, the others where pins conflict inside a layer."""


@dataclass(frozen=True)
class Precision:
    """What the builder may use: FP16 kernels, TF32 in FP32 layers, and how pins bind it."""

    fp16: bool
    tf32: bool = True
    constraints: Constraints = "none"


def allows_tf32(settings: BuildSettings, plan: PrecisionPlan) -> bool:
    """Whether FP32 layers may run in TF32: where neither forbids it."""
    return settings.tf32 and plan.tf32


@dataclass(frozen=True, eq=False)
class Built:
    """An engine's bytes, what building took, and TensorRT's warnings while it built."""

    plan: bytes
    seconds: float
    warnings: tuple[str, ...]


class DisobedientError(BackendError):
    """The build failed since a layer has no implementation that obeys its pins; `layer` is its fused name."""

    def __init__(self, text: str, layer: str) -> None:
        super().__init__(text)
        self.layer = layer


def build(
    trt: Any,
    found: Capabilities,
    network: Any,
    precision: Precision,
    settings: BuildSettings,
    progress: Progress,
) -> Built:
    """Build a network. Raises DisobedientError where pins cannot be obeyed, BackendError for any other failure."""
    logger, builder = make_logger(trt), open_builder(trt)
    config = _configure(trt, found, builder, network, precision, settings)
    path = settings.timing_cache
    keeps = path is not None and attach_timings(config, path)
    if found.progress:
        monitor = _make_monitor(trt, progress)  # kept, since the build calls it
        config.progress_monitor = monitor
    logger.forget()
    start = time.monotonic()
    memory = builder.build_serialized_network(network, config)
    seconds = time.monotonic() - start
    if memory is None:
        raise _refusal(found, logger, precision)
    notes = [find_obstacle()] if path is not None else []
    if keeps and path is not None:
        notes.append(save_timings(config, path))
    warnings = dict.fromkeys(line for line in (*notes, *logger.warnings) if line)
    return Built(bytes(memory), round(seconds, 3), tuple(warnings))


def _configure(
    trt: Any,
    found: Capabilities,
    builder: Any,
    network: Any,
    precision: Precision,
    settings: BuildSettings,
) -> Any:
    check_features(trt, found, settings)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.default_device_type = trt.DeviceType.GPU
    for name, wanted in _flags(precision):
        flag = trt.BuilderFlag.__members__[name]
        config.set_flag(flag) if wanted else config.clear_flag(flag)
    if settings.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.tactic_sources is not None:
        config.set_tactic_sources(_tactic_mask(trt, settings.tactic_sources))
    add_profile(builder, config, network, settings.shapes)
    return config


def _flags(precision: Precision) -> Iterator[tuple[str, bool]]:
    yield "TF32", precision.tf32
    if precision.fp16:
        yield "FP16", True
    if precision.constraints == "obey":
        yield "OBEY_PRECISION_CONSTRAINTS", True
    if precision.constraints == "prefer":
        yield "PREFER_PRECISION_CONSTRAINTS", True


def check_features(trt: Any, found: Capabilities, settings: BuildSettings) -> None:
    """Raise ConfigError for a setting that this TensorRT does not know."""
    if settings.tactic_sources is not None:
        _tactic_mask(trt, settings.tactic_sources)
    if settings.optimization_level is not None and not found.optimization_level:
        raise ConfigError(
            f"TensorRT {found.version} has no builder optimization level. Expected 8.6 or newer for --optimization-level. "
            "Leave it out."
        )


def _tactic_mask(trt: Any, names: tuple[str, ...]) -> int:
    known = trt.TacticSource.__members__
    unknown = [name for name in names if name.upper() not in known]
    if unknown:
        raise ConfigError(
            f"TensorRT {trt.__version__} has no tactic source {unknown[0]!r}. Expected some of: "
            f"{', '.join(known)}. Correct tactic_sources."
        )
    return sum(1 << int(known[name.upper()]) for name in names)


def _make_monitor(trt: Any, progress: Progress) -> Any:
    """TensorRT's progress monitor over a callback (phase, steps done, steps)."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            progress(phase_name, step + 1, self._steps.get(phase_name, 0))
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Monitor()


def _refusal(found: Capabilities, logger: Any, precision: Precision) -> BackendError:
    told = last_errors(logger)
    text = (
        f"TensorRT {found.version} could not build the engine: {told}. Expected a network that it has kernels for, and "
        "enough GPU memory. Give more workspace, a plug-in for what it lacks, or build with --backend onnx."
    )
    culprit = _find_culprit(logger.errors)
    if culprit is not None and precision.constraints == "obey":
        return DisobedientError(text, culprit)
    return BackendError(text)


def _find_culprit(errors: Sequence[str]) -> str | None:
    """The fused name of the layer that the errors of a build under OBEY blame."""
    for line in errors:
        found = _DISOBEDIENT.search(line)
        if found is not None and "insufficient workspace" not in line:
            return next(name for name in found.groups() if name)
    return None

"""Every network of the GPU tests fixed once, by the main job, for all tests to look at."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime
from gpu_networks import LARGE, write_network

from overflow_fixer.backends import BACKENDS
from overflow_fixer.backends.table import Backend
from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import BuildOptions, Export, FixConfig
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.pipeline import fix
from overflow_fixer.records import (
    Array,
    Artifact,
    BuildSettings,
    CalibrationSet,
    Engine,
    FixReport,
    Runner,
    Verification,
)
from overflow_fixer.trials.bench import make_settings
from overflow_fixer.verification.comparison import open_reference, verify

CALIB_DATA = Path(__file__).resolve().parents[1] / "calib_data"
SAMPLES = tuple(sorted(path.parent.name for path in CALIB_DATA.glob("*/model.onnx")))
NETWORKS = (*SAMPLES, *LARGE)
SCRIPTED = "gemm_softmax_l2"
"""The network whose plan is exported as scripts: unnamed layers are pinned there, and plain FP16 is wrong."""
EXPORTS: Mapping[str, tuple[Export, ...]] = {
    SCRIPTED: ("polygraphy-npps", "polygraphy-loader"),
    "big_conv_chain": ("trtexec",),
}


@dataclass(frozen=True)
class Fixed:
    """A network that was fixed: how it was asked for, and the report."""

    config: FixConfig
    report: FixReport

    @cached_property
    def graph(self) -> Graph:
        return load_graph(self.config.model)

    @cached_property
    def calibration(self) -> CalibrationSet:
        return open_calibration(self.config.calib, self.graph.inputs, self.config.calibration)

    @cached_property
    def settings(self) -> BuildSettings:
        return make_settings(self.config, self.graph, self.calibration, self.backend)

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.report.backend]

    @property
    def engine(self) -> Engine:
        assert self.report.artifact.engine is not None
        return self.report.artifact.engine

    def open(self, artifact: Artifact | None = None) -> Runner:
        """The engine that shipped, or another artifact's, opened again."""
        return self.backend.open_runner(artifact or self.report.artifact, self.settings)

    def verify(self, runner: Runner) -> Verification:
        return verify(open_reference(self.graph), runner, self.calibration, self.report.tolerance)


@dataclass
class Fixes:
    """Fixes each network when it is first asked for; a failure is raised again to whoever asks again."""

    folder: Path
    backend: Literal["onnx", "tensorrt"] = "tensorrt"
    _found: dict[str, Fixed | Exception] = field(default_factory=dict)

    def __call__(self, name: str) -> Fixed:
        if name not in self._found:
            self._found[name] = self._try(name)
        found = self._found[name]
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def reports(self) -> dict[str, FixReport]:
        """Of the networks that could be fixed or at least built, in the order of NETWORKS."""
        found = {name: self._found.get(name) for name in NETWORKS}
        return {name: fixed.report for name, fixed in found.items() if isinstance(fixed, Fixed)}

    def _try(self, name: str) -> Fixed | Exception:
        try:
            config = make_config(name, self.folder / name, self.backend)
            return Fixed(config, fix(config))
        except Exception as error:
            return error


def make_config(name: str, folder: Path, backend: Literal["onnx", "tensorrt"] = "tensorrt") -> FixConfig:
    """The main job on a network's files, which are written to `folder` or copied there."""
    if name in LARGE:
        model, data = write_network(LARGE[name].make(), folder)
    else:
        shutil.copytree(CALIB_DATA / name, folder)
        model, data = folder / "model.onnx", folder / "data"
    build = BuildOptions(backend=backend, exports=EXPORTS.get(name, ()) if backend == "tensorrt" else ())
    return FixConfig(model=model, calib=data, out=folder / "out", build=build)


def compare_by_hand(fixed: Fixed, runner: Runner) -> Iterator[tuple[str, float]]:
    """The SNR in dB of each output on each batch, against ONNX Runtime, without the package's own metrics.

    -inf as soon as one value is not finite.
    """
    session = onnxruntime.InferenceSession(fixed.config.model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for batch in fixed.calibration:
        found = runner.run(batch)
        for name, expected in zip(names, session.run(None, batch.feeds), strict=True):
            yield f"{name} of {batch.name}", snr_db(expected, found[name])


def snr_db(expected: Array, found: Array) -> float:
    """10 log10(sum ref^2 / sum (ref - found)^2): inf when equal, -inf where a value is not finite."""
    assert expected.shape == found.shape
    if not np.isfinite(found).all():
        return -np.inf
    wanted = expected.astype(np.float64)
    noise = np.square(wanted - found).sum()
    return float(10 * np.log10(np.square(wanted).sum() / noise)) if noise else np.inf


def fix_on_batches(model: Path, batches: Iterable[Array]) -> FixReport:
    """The model, whose one input is x, fixed with a TensorRT engine on these batches, all in its folder."""
    folder = model.parent
    (folder / "calib").mkdir()
    for number, batch in enumerate(batches):
        np.savez(folder / f"calib/{number}.npz", x=batch)
    build = BuildOptions(backend="tensorrt")
    return fix(FixConfig(model=model, calib=folder / "calib", out=folder / "out", build=build))

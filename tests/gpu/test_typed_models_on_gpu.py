"""Typed models on FP16 kernels: what the simulation on the CPU says of a plan and of plain FP16 holds on CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import pytest
from gpu_fixes import NETWORKS, Fixed, Fixes, compare_by_hand

from overflow_fixer.progress import silent
from overflow_fixer.records import Array, Batch, PrecisionPlan
from overflow_fixer.sessions.providers import find_lack

pytestmark = pytest.mark.gpu
every_network = pytest.mark.parametrize("name", NETWORKS)

RIGHT_DB = 30.0
NEAR_DB = 1.0
"""How much worse a kernel's own order of additions may be than what the simulation measured. At most 0.1 was seen."""


@pytest.fixture(scope="module", autouse=True)
def engines_can_be_built() -> None:
    """In place of what the tests of engines need: these need CUDA alone."""
    lack = find_lack("cuda")
    if lack is not None:
        pytest.skip(f"No typed model on CUDA: {lack}.")


@pytest.fixture(scope="module")
def fixes(engines_can_be_built: None, tmp_path_factory: pytest.TempPathFactory) -> Fixes:
    return Fixes(tmp_path_factory.mktemp("typed"), "onnx")


@dataclass(frozen=True)
class _Cuda:
    """A model on CUDA, without TF32, node by node or optimised as by default."""

    model: Path
    optimize: bool

    def run(self, batch: Batch) -> dict[str, Array]:
        options = onnxruntime.SessionOptions()
        if not self.optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        providers = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(self.model, options, providers=providers)
        assert session.get_providers()[0] == "CUDAExecutionProvider"
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(batch.feeds)), strict=True))


def _worst_db(fixed: Fixed, model: Path, optimize: bool) -> float:
    return min(snr for _, snr in compare_by_hand(fixed, _Cuda(model, optimize)))


@every_network
@pytest.mark.parametrize("optimize", [True, False])
def test_the_typed_model_is_as_right_on_cuda_as_its_simulation(
    fixes: Fixes, name: str, optimize: bool
) -> None:
    fixed = fixes(name)
    simulated = min(verdict.error.worst_batch_snr_db for verdict in fixed.report.fixed.outputs)
    worst = _worst_db(fixed, fixed.report.artifact.path, optimize)
    assert worst >= max(RIGHT_DB, simulated - NEAR_DB)


@every_network
def test_plain_fp16_is_wrong_on_cuda_where_the_simulation_says_so(
    fixes: Fixes, name: str, tmp_path: Path
) -> None:
    """Node by node: optimised, written-out norms become LayerNormalization, which CUDA computes in FP32."""
    fixed = fixes(name)
    assert fixed.report.naive is not None
    plan = PrecisionPlan(fixed.graph.sha256, 10000.0, ())
    naive = fixed.backend.emit(fixed.graph, plan, tmp_path / "naive.onnx", fixed.settings, silent)
    assert (_worst_db(fixed, naive.path, optimize=False) >= RIGHT_DB) == fixed.report.naive.passed


def test_plain_fp16_is_wrong_of_some_and_right_of_others(fixes: Fixes) -> None:
    """So that the test above asks both."""
    assert {fixes(name).report.naive.passed for name in NETWORKS if fixes(name).report.naive} == {True, False}

"""Engines of every sample and every large network: what plain FP16 does to them, and that the fix holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from engine_layers import inspect_artifact
from gpu_fixes import NETWORKS, Fixed, Fixes, compare_by_hand
from gpu_networks import LARGE

from overflow_fixer.backends import BACKENDS
from overflow_fixer.backends.tensorrt import FIXED, FP32_EXACT, NAIVE, weak
from overflow_fixer.backends.tensorrt.capabilities import import_tensorrt
from overflow_fixer.backends.tensorrt.network import open_builder
from overflow_fixer.backends.tensorrt.timings import attach_timings, find_obstacle, save_timings
from overflow_fixer.errors import PlanError
from overflow_fixer.pipeline import verify_built
from overflow_fixer.progress import silent
from overflow_fixer.records import Artifact, PrecisionPlan

pytestmark = pytest.mark.gpu
every_network = pytest.mark.parametrize("name", NETWORKS)

RIGHT_DB = 30.0
SLACK = 0.05
SMALL_ENOUGH_FOR_FP32 = ("conv_chain", "layernorm_transformer", "needs_constraints")
"""Samples that TensorRT may run in FP32 by itself. In masked_attention it clamps the mask by itself."""


def _emit(fixed: Fixed, plan: PrecisionPlan, path: Path) -> Artifact:
    return BACKENDS["tensorrt"].emit(fixed.graph, plan, path, fixed.settings, silent)


@every_network
def test_the_engine_that_ships_is_verified(fixes: Fixes, name: str) -> None:
    report = fixes(name).report
    assert report.passed
    assert report.fp32_engine is not None
    assert report.fp32_engine.passed


@every_network
def test_the_engine_that_ships_is_right_by_another_measure(fixes: Fixes, name: str) -> None:
    fixed = fixes(name)
    found = dict(compare_by_hand(fixed, fixed.open()))
    assert len(found) == len(fixed.calibration) * len(fixed.graph.outputs)
    assert {output: snr for output, snr in found.items() if not snr >= RIGHT_DB} == {}


@pytest.mark.parametrize("name", [name for name, large in LARGE.items() if large.naive == "wrong"])
def test_plain_fp16_is_wrong_where_fp16_kernels_are_chosen(fixes: Fixes, name: str) -> None:
    report = fixes(name).report
    assert report.naive is not None
    assert not report.naive.passed
    assert report.plan.pins


@pytest.mark.parametrize("name", SMALL_ENOUGH_FOR_FP32)
def test_plain_fp16_is_wrong_unless_tensorrt_ran_it_in_fp32(fixes: Fixes, name: str, tmp_path: Path) -> None:
    """Where a build of plain FP16 is right, no node that the plan pins is in a layer of it that shows itself all FP16."""
    fixed = fixes(name)
    naive = _emit(fixed, PrecisionPlan(fixed.graph.sha256, 10000.0, ()), tmp_path / "naive.engine")
    if not fixed.verify(fixed.open(naive)).passed:  # another build than the report's, with kernels of its own
        return
    layers = inspect_artifact(naive, fixed.graph, fixed.settings)
    in_fp16 = [layer for layer in layers if layer.is_fp16 and "fp32" not in layer.types]
    shown = {node for layer in in_fp16 if not layer.is_opaque for node in layer.nodes}
    assert shown & fixed.report.plan.pinned == set()


@pytest.mark.parametrize("name", ["big_conv_chain", "conv_chain"])
def test_the_producers_alone_are_wrong(fixes: Fixes, name: str, tmp_path: Path) -> None:
    """Those of the tensors that overflow: their values are converted on the way into the next layer."""
    fixed = fixes(name)
    report = fixed.report
    assert report.naive is not None
    if name == "conv_chain" and report.naive.passed:
        pytest.skip("TensorRT ran the small network in FP32 by itself.")
    over = {found.tensor for found in report.ranges.ranges if found.over_fp16_count}
    producers = tuple(pin for pin in report.plan.pins if not over.isdisjoint(pin.outputs))
    assert 0 < len(producers) < len(report.plan.pins)
    artifact = _emit(fixed, replace(report.plan, pins=producers), tmp_path / "producers.engine")
    consumers = report.plan.pinned - {pin.node for pin in producers}
    if name == "conv_chain" and consumers <= set(artifact.fp32_nodes):
        pytest.skip("TensorRT ran the consumers in the small network in FP32 by itself.")
    assert not fixed.verify(fixed.open(artifact)).passed


@every_network
def test_every_pin_is_honoured_or_hidden(fixes: Fixes, name: str) -> None:
    """A pin without a layer of its own is one whose layers cannot be pinned, and listed as such."""
    fixed = fixes(name)
    assert [pin.node for pin in fixed.engine.pins] == [pin.node for pin in fixed.report.plan.pins]
    skipped = {kept.node for kept in fixed.engine.skipped}
    doubtful = {
        pin.node: pin.state for pin in fixed.engine.pins if pin.state not in ("honoured", "not visible")
    }
    assert {
        node: state for node, state in doubtful.items() if state != "no layer" or node not in skipped
    } == {}
    assert fixed.engine.constraints in ("obey", "none")


@every_network
def test_what_else_is_in_fp32_says_what_for(fixes: Fixes, name: str) -> None:
    """Fused with a pinned node, or TensorRT's own choice, which the engine then shows."""
    report = fixes(name).report
    own = {kept.node for kept in report.artifact.kept if kept.kept_for == "speed"}
    fused = {kept.node for kept in report.artifact.kept if kept.kept_for == "fusion"}
    assert own | fused == {kept.node for kept in report.artifact.kept}
    assert (own | fused).isdisjoint(report.plan.pinned)
    assert own <= set(report.artifact.fp32_nodes)


def test_a_boolean_mask_is_left_as_it_is(fixes: Fixes) -> None:
    """-inf in FP16: no pin of the mask's, no clamp, and the engine is right (see the tests of every network)."""
    plan = fixes("boolean_mask_block").report.plan
    assert plan.pinned.isdisjoint({"mask", "masked_scores", "attention"})
    assert plan.clamps == ()


def test_the_pins_of_the_chain_are_seen_to_be_honoured(fixes: Fixes) -> None:
    pins = fixes("big_conv_chain").engine.pins
    assert {pin.node for pin in pins} >= {"conv5", "relu5", "conv6"}
    assert {pin.state for pin in pins} == {"honoured"}
    assert fixes("big_conv_chain").engine.fp16_layers > 0


def test_unnamed_layers_are_pinned(fixes: Fixes) -> None:
    """The Gemm and the ReduceL2 that overflow: their pins found layers, though TensorRT names hardly any."""
    fixed = fixes("gemm_softmax_l2")
    assert fixed.report.plan.pinned >= {"gemm1", "length", "unit"}
    assert {kept.node for kept in fixed.engine.skipped}.isdisjoint({"length", "unit"})


@pytest.mark.parametrize("name", ["big_conv_chain", "transformer_block"])
def test_the_fix_costs_more_than_plain_fp16_and_less_than_fp32(fixes: Fixes, name: str) -> None:
    price = fixes(name).report.price
    assert price is not None
    p50_ms = {found.name: found.p50_ms for found in price.latencies}
    assert (1 - SLACK) * p50_ms[NAIVE] <= p50_ms[FIXED] <= (1 + SLACK) * p50_ms[FP32_EXACT]


@every_network
def test_engine_and_sidecar_ship_whole(fixes: Fixes, name: str) -> None:
    fixed = fixes(name)
    folder, artifact = fixed.config.folder, fixed.report.artifact
    assert artifact.path == folder / "model.engine"
    assert all(path.stat().st_size > 0 for path in fixed.report.files)
    sidecar = json.loads((folder / "model.engine.json").read_text(encoding="utf-8"))
    assert sidecar["engine_sha256"] == hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    assert sidecar["model_sha256"] == fixed.report.model_sha256
    assert sidecar["engine"]["tensorrt"] == import_tensorrt().__version__
    assert list(folder.glob(".trials-*")) == []


@every_network
def test_the_folder_verifies_again(fixes: Fixes, name: str) -> None:
    fixed = fixes(name)
    build = fixed.config.build.model_copy(update={"compare": False})
    again = verify_built(fixed.config.model_copy(update={"build": build}))
    assert again.passed
    assert again.artifact.engine == fixed.engine


def test_the_timing_cache_is_kept_and_taken_again(fixes: Fixes, tmp_path: Path) -> None:
    """A cache that is refused would be started afresh, and then hold one build's timings alone."""
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    fixed = fixes("conv_chain")
    kept = fixed.settings.timing_cache
    assert kept is not None
    content = kept.read_bytes()
    config = open_builder(import_tensorrt()).create_builder_config()
    assert config.set_timing_cache(config.create_timing_cache(content), False)
    _emit(fixed, fixed.report.plan, tmp_path / "again.engine")
    assert len(kept.read_bytes()) >= len(content)


def test_timings_of_two_builds_are_merged(fixes: Fixes, tmp_path: Path) -> None:
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    contents = []
    for name in ("conv_chain", "big_conv_chain"):
        kept = fixes(name).settings.timing_cache
        assert kept is not None
        contents.append(kept.read_bytes())
        (tmp_path / name).write_bytes(contents[-1])
    config = open_builder(import_tensorrt()).create_builder_config()
    assert attach_timings(config, tmp_path / "conv_chain")
    assert save_timings(config, tmp_path / "big_conv_chain") is None
    assert len((tmp_path / "big_conv_chain").read_bytes()) > max(map(len, contents))
    (tmp_path / "conv_chain").write_bytes(contents[0][: len(contents[0]) // 2])
    assert "was replaced" in str(save_timings(config, tmp_path / "conv_chain"))


def test_a_pin_that_matches_no_layer_raises_with_its_name(
    fixes: Fixes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = fixes("big_conv_chain")
    if fixed.engine.typing != "weak":
        pytest.skip("With strong typing the model carries the pins, so none can miss its layer.")
    real = weak.map_layers
    monkeypatch.setattr(
        weak,
        "map_layers",
        lambda layers, graph: {node: mine for node, mine in real(layers, graph).items() if node != "conv5"},
    )
    with pytest.raises(PlanError, match="'conv5'"):
        _emit(fixed, fixed.report.plan, tmp_path / "lost.engine")
    assert list(tmp_path.iterdir()) == []

"""What a fix costs: four engines timed on one batch, and where FP16 brings nothing, every cause and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_scripts import engine, small_graph
from fake_tensorrt import Plan, Script, fake_tensorrt
from standin_gpu import StandInDriver, use_standin_gpu

from overflow_fixer.backends.tensorrt import FIXED, FP32, FP32_EXACT, NAIVE, measure_price
from overflow_fixer.backends.tensorrt.price import _explain_slowness
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import (
    Artifact,
    Batch,
    BuildSettings,
    Engine,
    Kept,
    Latency,
    PinOutcome,
    Price,
    ShapeRange,
)

SETTINGS = BuildSettings(shapes={"x": ShapeRange((1, 4), (2, 4), (8, 4))})
BATCH = Batch("batch 2", {"x": np.zeros((2, 4), np.float32)})
ENGINE = Engine("8.6.1", "GPU", (9, 0), "weak", "obey", 10, 2, 6, 2, 0, tf32=True)
LAYERS = (
    ("square", "FP32"),
    ("PWN(softmax, add)", "FP16"),
    ("Reformatting CopyNode for Input Tensor 0 to topk", "FP16"),
    ("{ForeignNode[topk...topk]}", "FP32"),
)


def _artifact(
    path: Path, engine_: Engine | None = ENGINE, fp16: int = 8, fp32: tuple[str, ...] = ()
) -> Artifact:
    names = tuple(f"half{index}" for index in range(fp16))
    return Artifact("tensorrt", path, (path,), names, fp32, (), 0, engine_)


# ---------------------------------------------------------------- measuring


class Shop:
    """Engines on disk that run as long as `ms` says, over a stand-in GPU."""

    def __init__(
        self, folder: Path, ms: dict[str, float], layers: tuple[tuple[str, str], ...] = LAYERS
    ) -> None:
        self.graph: Graph = small_graph(folder)
        self.driver = StandInDriver()
        self.engines: dict[bytes, Plan] = {}
        self.artifacts: dict[str, Artifact] = {}
        for name in ms:
            path = folder / f"{len(self.artifacts)}.engine"
            path.write_bytes(name.encode())
            self.engines[name.encode()] = engine(*layers, content=name.encode())
            self.artifacts[name] = _artifact(path)
        self.trt = fake_tensorrt("8.6", Script(engines=self.engines))
        self.trt.IExecutionContext = _make_context(self.trt, self.driver, ms)

    def measure(self) -> Price:
        with use_standin_gpu(self.trt, self.driver):
            return measure_price(self.graph, self.artifacts, BATCH, SETTINGS)


def _make_context(trt: Any, driver: StandInDriver, ms: dict[str, float]) -> type:
    class Context(trt.IExecutionContext):  # type: ignore[misc]
        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return (2, 4)

        def execute_async_v3(self, stream_handle: int) -> bool:
            driver.elapsed_ms = [ms[self._engine._plan.content.decode()]]
            for index, (name, _) in enumerate(LAYERS):
                if self.profiler is not None:
                    self.profiler.report_layer_time(name, float(index + 1))
            return bool(super().execute_async_v3(stream_handle))

    return Context


def test_the_price_is_told_of_every_engine(tmp_path: Path) -> None:
    ms = {FIXED: 1.5, NAIVE: 1.0, FP32_EXACT: 8.0, FP32: 3.0}
    price = Shop(tmp_path, ms).measure()
    assert price.batch == "batch 2"
    assert {latency.name: latency.p50_ms for latency in price.latencies} == ms
    assert price.remarks == ()


def test_the_shares_are_the_fixed_engines(tmp_path: Path) -> None:
    """The layers take 1 to 4 ms: 1 of 10 in FP32, 3 in a copy, 4 in a region."""
    price = Shop(tmp_path, {FIXED: 1.0, FP32: 3.0}).measure()
    assert (price.fp32_time_share, price.opaque_time_share) == (0.1, 0.4)


def test_a_fix_that_brings_nothing_is_remarked(tmp_path: Path) -> None:
    price = Shop(tmp_path, {FIXED: 3.0, FP32: 3.0}).measure()
    assert price.remarks[0] == "FP16 brings nothing: the fixed engine takes 3 ms, FP32 with TF32 3 ms."


def test_an_engine_that_does_not_load_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {FIXED: 1.0, FP32: 3.0})
    del shop.engines[FP32.encode()]
    with pytest.raises(BackendError, match="cannot load the engine"):
        shop.measure()


# ---------------------------------------------------------------- remarks


def _remarks(
    artifact: Artifact, ms: dict[str, float], compute_capability: tuple[int, int] = (9, 0)
) -> tuple[str, ...]:
    latencies = tuple(Latency(name, p50, p50, 200) for name, p50 in ms.items())
    trt, driver = fake_tensorrt("8.6", Script()), StandInDriver(compute_capability)
    with use_standin_gpu(trt, driver):
        return tuple(_explain_slowness(latencies, artifact))


PATH = Path("model.engine")
SLOW = {FIXED: 3.0, NAIVE: 1.0, FP32: 3.0}
PINNED = replace(ENGINE, pins=tuple(PinOutcome(f"wide{index}", "honoured") for index in range(8)))
WIDE = tuple(f"wide{index}" for index in range(8))
OPENING = "FP16 brings nothing: the fixed engine takes 3 ms, FP32 with TF32 3 ms."
UNKNOWN = "What the engine shows of itself does not tell why."


def test_an_engine_to_which_tf32_is_forbidden_is_held_against_fp32_without_it() -> None:
    """With it FP32 is faster, and may be wrong."""
    artifact = _artifact(PATH, replace(PINNED, tf32=False), 0, WIDE)
    assert _remarks(artifact, {FIXED: 3.0, NAIVE: 2.0, FP32: 1.0, FP32_EXACT: 4.0}) == ()
    told = _remarks(artifact, {FIXED: 3.0, NAIVE: 2.0, FP32: 1.0, FP32_EXACT: 3.0})
    assert told[0] == "FP16 brings nothing: the fixed engine takes 3 ms, FP32 without TF32 3 ms."
    assert any(remark.startswith("The pins cost it") for remark in told)


@pytest.mark.parametrize("fixed", [0.5, 2.8])
def test_a_fix_that_is_faster_is_not_remarked(fixed: float) -> None:
    assert _remarks(_artifact(PATH, PINNED, 0, WIDE), {**SLOW, FIXED: fixed}, (6, 1)) == ()


def test_without_an_fp32_engine_or_an_engine_nothing_is_remarked() -> None:
    assert _remarks(_artifact(PATH), {FIXED: 3.0, NAIVE: 1.0}) == ()
    assert _remarks(_artifact(PATH, None), SLOW) == ()


def test_no_cause_is_made_up() -> None:
    assert _remarks(_artifact(PATH), SLOW) == (OPENING, UNKNOWN)


@pytest.mark.parametrize(
    ("compute_capability", "slow"),
    [
        ((5, 0), True),
        ((5, 2), True),
        ((6, 1), True),
        ((3, 7), True),
        ((5, 3), False),
        ((6, 0), False),
        ((7, 5), False),
    ],
)
def test_the_gpu_is_blamed_where_it_has_no_fast_fp16(compute_capability: tuple[int, int], slow: bool) -> None:
    major, minor = compute_capability
    remark = f"This GPU (compute capability {major}.{minor}) has no fast FP16 units."
    assert (remark in _remarks(_artifact(PATH), SLOW, compute_capability)) == slow


def test_pins_are_blamed_where_plain_fp16_is_faster() -> None:
    remark = "The pins cost it: 8 of 16 float nodes are pinned, and plain FP16 takes 1 ms."
    pinned = _artifact(PATH, PINNED, 8, WIDE)
    assert _remarks(pinned, SLOW) == (OPENING, remark)
    slower = "8 of 16 float nodes are pinned, and plain FP16 takes 2.8 ms, which is no gain over FP32 either."
    assert _remarks(pinned, {**SLOW, NAIVE: 2.9}) == (OPENING, UNKNOWN)
    assert _remarks(pinned, {FIXED: 3.0, NAIVE: 2.8, FP32: 2.9})[1:] == (slower,)
    assert _remarks(pinned, {FIXED: 3.0, FP32: 3.0}) == (OPENING, UNKNOWN)
    assert _remarks(_artifact(PATH), SLOW) == (OPENING, UNKNOWN)


def test_tensorrts_own_choice_is_told_apart_from_pins() -> None:
    chosen = tuple(Kept(label, "Mul", "its own choice", "speed") for label in WIDE)
    (_, remark) = _remarks(replace(_artifact(PATH, ENGINE, 8, WIDE), kept=chosen), SLOW)
    assert remark.startswith(
        "TensorRT itself chose FP32 for 8 nodes that nothing pins: by its own timings FP16"
    )
    assert _remarks(replace(_artifact(PATH, ENGINE, 24, WIDE), kept=chosen), SLOW) == (OPENING, UNKNOWN)


def test_what_the_typed_model_keeps_is_not_blamed_on_tensorrt() -> None:
    kept = tuple(Kept(label, "Range", "ONNX allows no FP16 for it") for label in WIDE)
    (_, remark) = _remarks(replace(_artifact(PATH, ENGINE, 8, WIDE), kept=kept), SLOW)
    assert remark == "8 nodes are kept in FP32 besides those that are pinned."


def test_regions_are_named_where_there_are_any() -> None:
    (_, remark) = _remarks(_artifact(PATH, replace(ENGINE, opaque_layers=3)), SLOW)
    assert remark.startswith("3 of 10 layers are regions that show only their borders")


def test_one_layer_is_no_plural() -> None:
    told = _remarks(_artifact(PATH, replace(ENGINE, layers=3, typing="strong", opaque_layers=1)), SLOW)
    assert "1 of 3 layers is a region that shows only its borders." in told
    told = _remarks(_artifact(PATH, replace(ENGINE, layers=1, reformat_layers=1)), SLOW)
    assert "1 of 1 layer only converts between types and formats." in told


def test_what_runs_in_a_region_is_no_choice_where_types_come_from_the_model() -> None:
    (_, remark) = _remarks(_artifact(PATH, replace(ENGINE, typing="strong", opaque_layers=3)), SLOW)
    assert remark == "3 of 10 layers are regions that show only their borders."


def test_what_runs_in_a_region_is_no_choice_where_fp16_was_not_allowed() -> None:
    artifact = replace(_artifact(PATH, replace(ENGINE, opaque_layers=3)), fp16_nodes=())
    assert "3 of 10 layers are regions that show only their borders." in _remarks(artifact, SLOW)


def test_conversions_are_blamed_where_they_are_many() -> None:
    (_, remark) = _remarks(_artifact(PATH, replace(ENGINE, reformat_layers=4)), SLOW)
    assert remark == "4 of 10 layers only convert between types and formats."
    assert _remarks(_artifact(PATH, replace(ENGINE, reformat_layers=3)), SLOW) == (OPENING, UNKNOWN)
    assert _remarks(_artifact(PATH, replace(ENGINE, layers=0, reformat_layers=0)), SLOW) == (OPENING, UNKNOWN)


def test_a_tiny_batch_is_blamed_where_launches_are_all() -> None:
    (_, remark) = _remarks(_artifact(PATH), {FIXED: 0.05, FP32: 0.05})
    assert remark.startswith("One inference takes 0.05 ms: at this batch size the GPU waits for launches")
    assert _remarks(_artifact(PATH), {FIXED: 0.1, FP32: 0.1})[1:] == (UNKNOWN,)


def test_every_cause_is_told_at_once() -> None:
    engine_ = replace(PINNED, reformat_layers=4, opaque_layers=1, pins=PINNED.pins[:4])
    chosen = tuple(Kept(label, "Mul", "its own choice", "speed") for label in WIDE[4:])
    artifact = replace(_artifact(PATH, engine_, 2, WIDE), kept=chosen)
    found = _remarks(artifact, {FIXED: 0.05, NAIVE: 0.01, FP32: 0.05}, (6, 1))
    assert [remark.split(" ")[0] for remark in found] == ["FP16", "This", "The", "TensorRT", "1", "4", "One"]
    assert all("\n" not in remark for remark in found)

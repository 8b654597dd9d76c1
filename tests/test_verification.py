"""Verification that cannot be fooled, and the first tensor that goes wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save, scalar, scan
from onnx import TensorProto

from overflow_fixer import chunks as chunks_module
from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.errors import BackendError, CalibrationError, ConfigError
from overflow_fixer.graph import Graph, load_graph
from overflow_fixer.planning import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, PlanPolicy, PrecisionPlan, Runner, Tolerance, Verification
from overflow_fixer.verification import CachedRunner, OpenRunner, judge, open_reference, trace, verify

CALIB_DATA = Path(__file__).parents[1] / "calib_data"
TOLERANCE = Tolerance()


@dataclass
class Given:
    """A runner that gives these values for y, batch by batch."""

    values: Sequence[Any]
    output_names: tuple[str, ...] = ("y",)

    def run(self, batch: Batch) -> dict[str, Any]:
        return {name: self.values[int(batch.name.removeprefix("batch_"))] for name in self.output_names}


def compare(
    reference: Sequence[Any], candidate: Sequence[Any], tolerance: Tolerance = TOLERANCE
) -> Verification:
    batches = InMemoryCalibration(({},) * len(reference))
    return verify(Given(reference), Given(candidate), batches, tolerance)


def naive_artifact(graph: Graph, folder: Path) -> OpenRunner:
    """The model in FP16 without a pin, and the way to open it."""
    artifact = emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), folder / "naive.onnx")
    return lambda tensors: open_runner(artifact, tensors)


def sample(name: str) -> tuple[Graph, InMemoryCalibration]:
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    files = sorted((CALIB_DATA / name / "data").glob("*.npz"))
    return graph, InMemoryCalibration(tuple(dict(np.load(file)) for file in files))


# ---------------------------------------------------------------- judging outputs


def test_equal_outputs_pass() -> None:
    found = compare([floats(1, 2), floats(3)], [floats(1, 2), floats(3)])
    assert found.passed
    assert (found.batch_count, found.outputs[0].reason, found.first_wrong) == (2, "equal", None)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 500, 999])
def test_a_single_value_that_is_not_finite_fails(wrong: float, position: int) -> None:
    reference = np.linspace(-1, 1, 1000, dtype=np.float32)
    candidate = reference.copy()
    candidate[position] = wrong
    found = compare([reference, reference], [reference, candidate])
    assert not found.passed
    assert found.outputs[0].reason.startswith("1 of 2000 values do not match")
    assert found.outputs[0].error.worst_batch == "batch_1"


def test_all_nan_fails() -> None:
    found = compare([floats(1, 2)], [floats(math.nan, math.nan)])
    assert not found.passed
    assert "2 NaN and 0 infinite, against 0 and 0 in FP32" in found.outputs[0].reason


def test_nan_of_the_reference_itself_proves_nothing() -> None:
    (same,) = compare([floats(math.nan, 1, 2)], [floats(math.nan, 1, 2)]).outputs
    assert not same.passed
    assert same.reason.startswith("1 of 3 values are NaN in FP32 too, at the same places")
    (other,) = compare([floats(math.nan, 1, 2)], [floats(1, math.nan, 2)]).outputs
    assert other.reason.startswith(
        "2 of 3 values do not match: 1 NaN and 0 infinite, against 1 and 0 in FP32"
    )


def test_infinities_in_the_same_place_pass() -> None:
    assert compare([floats(-math.inf, 1)], [floats(-math.inf, 1)]).passed
    assert not compare([floats(-math.inf, 1)], [floats(1, -math.inf)]).passed


def test_finite_and_wholly_wrong_fails() -> None:
    rng = np.random.default_rng(0)
    found = compare([rng.normal(size=100)], [rng.normal(size=100)])
    assert not found.passed
    assert "dB is under 30 dB" in found.outputs[0].reason


def test_zeros_in_place_of_values_fail() -> None:
    found = compare([floats(1, 2, 3)], [floats(0, 0, 0)])
    assert (found.passed, found.outputs[0].error.snr_db) == (False, 0)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_wrong_values_of_any_scale_fail(scale: float) -> None:
    assert not compare([np.asarray([1.0, -1.0]) * scale], [np.asarray([-1.0, 1.0]) * scale]).passed
    assert compare([np.asarray([1.0, -1.0]) * scale], [np.asarray([1.0, -1.001]) * scale]).passed


def test_one_wrong_batch_among_louder_ones_fails() -> None:
    found = compare([floats(1000, 1000), floats(5, -5)], [floats(1000, 1000), floats(-5, 5)])
    assert not found.passed
    assert found.outputs[0].error.snr_db > 30
    assert "dB in batch_1 is under 30 dB" in found.outputs[0].reason


def test_the_tolerance_is_inclusive_and_per_output() -> None:
    reference, candidate = [floats(1)], [np.asarray([0.9])]
    snr_db = compare(reference, candidate).outputs[0].error.snr_db
    assert snr_db == pytest.approx(20)
    for limit, passes in ((snr_db, True), (snr_db + 1e-9, False)):
        assert compare(reference, candidate, Tolerance(min_snr_db=limit)).passed is passes
        assert compare(reference, candidate, Tolerance(per_output={"y": limit})).passed is passes
    both = ("y", "z")
    batches = InMemoryCalibration(({},) * len(reference))
    found = verify(Given(reference, both), Given(candidate, both), batches, Tolerance(per_output={"z": 1.0}))
    assert [verdict.passed for verdict in found.outputs] == [False, True]


def test_a_small_absolute_error_may_pass_instead() -> None:
    reference, candidate = [floats(0, 0)], [floats(1e-7, 0)]
    assert not compare(reference, candidate).passed
    assert compare(reference, candidate, Tolerance(max_abs_error=1e-6)).passed
    assert not compare([floats(0, 1)], [floats(1e-7, math.nan)], Tolerance(max_abs_error=1e9)).passed


def test_what_is_no_float_passes_by_agreement() -> None:
    reference = np.arange(100)
    candidate = reference.copy()
    candidate[7] = 0
    assert compare([reference], [candidate]).passed
    candidate[8] = 0
    found = compare([reference], [candidate])
    assert (found.passed, found.outputs[0].reason) == (False, "98.00% of the values are equal, under 99.00%")
    assert compare([reference > 3], [reference > 3]).passed
    assert not compare([np.asarray(["a"], object)], [np.asarray(["b"], object)]).passed


def test_another_shape_fails() -> None:
    assert not compare([floats(1, 2)], [floats(1)]).passed
    assert not compare([np.asarray([1, 2])], [np.asarray([[1, 2]])]).passed
    (found,) = compare([floats(1, 2)] * 2, [floats(1)] * 2).outputs
    assert found.reason == "it has another shape than in FP32, so that nothing can be compared"


def test_an_empty_output_says_that_nothing_was_compared() -> None:
    found = compare([floats()], [floats()])
    assert found.outputs[0].passed
    assert "nothing to compare" in found.outputs[0].reason
    assert not found.passed, "nothing was proved"


def test_a_number_that_is_not_known_does_not_pass() -> None:
    error = compare([floats(1)], [floats(1)]).outputs[0].error
    assert not judge(
        replace(error, snr_db=math.nan, worst_batch_snr_db=math.nan, max_abs_error=1.0), TOLERANCE
    ).passed


def test_a_tolerance_for_an_output_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"names 'Y', which is no output of the model. Expected one of: y\."
    ):
        compare([floats(1)], [floats(1)], Tolerance(per_output={"Y": 90.0}))


def test_no_batch_proves_nothing() -> None:
    with pytest.raises(CalibrationError, match="no batch to verify on"):
        compare([], [])


def test_an_artifact_without_the_output_is_an_error() -> None:
    with pytest.raises(BackendError, match="no output 'y'; it has z"):
        verify(Given([1.0]), Given([1.0], ("z",)), InMemoryCalibration(({},)), TOLERANCE)


def test_progress_is_told_batch_by_batch() -> None:
    seen: list[int] = []
    batches = InMemoryCalibration(({},) * 3)
    verify(Given([floats(1)] * 3), Given([floats(1)] * 3), batches, TOLERANCE, seen.append)
    assert seen == [1, 2, 3]


def test_the_reference_is_the_model_run_as_it_stands(tmp_path: Path) -> None:
    model = make_model(
        [node("Mul", "x two", "a"), node("Add", "a x", "y")], {"x": [2]}, "y", {"two": scalar(2)}
    )
    graph = save(model, tmp_path)
    batch = Batch("b", {"x": floats(1, 2)})
    assert open_reference(graph).run(batch)["y"].tolist() == [3, 6]
    inside = open_reference(graph, ["a", "y"]).run(batch)
    assert (inside["a"].tolist(), set(inside)) == ([2, 4], {"a", "y"})
    assert [output.name for output in graph.model.graph.output] == ["y"]


# ---------------------------------------------------------------- outputs that are kept


@dataclass
class Counted:
    """A runner that doubles x, and counts."""

    runs: int = 0
    output_names: tuple[str, ...] = ("y",)

    def run(self, batch: Batch) -> dict[str, Any]:
        self.runs += 1
        return {"y": np.asarray(batch.feeds["x"]) * 2}


def test_outputs_are_kept_for_the_same_values_whatever_the_batch_is_called() -> None:
    counted = Counted()
    runner = CachedRunner(counted)
    for _ in range(3):
        for start in (0, 1):
            x = np.arange(start, start + 4, dtype=np.float32)
            assert runner.run(Batch("same name", {"x": x}))["y"].tolist() == (x * 2).tolist()
    assert counted.runs == 2
    assert runner.output_names == ("y",)
    for other in (x.astype(np.float64), x.reshape(2, 2), x.view(np.int32)):
        assert runner.run(Batch("same name", {"x": other}))["y"].dtype == (other * 2).dtype
    assert counted.runs == 5


def test_what_does_not_fit_is_computed_again() -> None:
    counted = Counted()
    runner = CachedRunner(counted, limit_bytes=16)
    for _ in range(3):
        for start in (0, 1):
            runner.run(Batch("b", {"x": floats(start, 0, 0, 0)}))
    assert counted.runs == 1 + 3


def test_what_is_kept_cannot_be_written_to() -> None:
    runner = CachedRunner(Counted())
    batch = Batch("b", {"x": floats(1)})
    with pytest.raises(ValueError, match="read-only"):
        runner.run(batch)["y"][0] = 5
    assert runner.run(batch)["y"].tolist() == [2]


def test_strings_count_by_their_text_and_sequences_are_not_kept() -> None:
    @dataclass
    class Listed(Counted):
        def run(self, batch: Batch) -> dict[str, Any]:
            self.runs += 1
            return {"y": [batch.feeds["x"]]}

    texts = [np.asarray(["a", letter], object) for letter in "bcb"]
    counted, listed = Counted(), Listed()
    counting, listing = CachedRunner(counted), CachedRunner(listed)
    for text in texts:
        counting.run(Batch("b", {"x": np.asarray([1.0]), "text": text}))
        listing.run(Batch("b", {"x": np.asarray([1.0])}))
    assert (counted.runs, listed.runs) == (2, 3)


# ---------------------------------------------------------------- the first wrong tensor


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("needs_constraints", "/Sub_output_0"),
        ("conv_chain", "/conv4/Conv_output_0"),
        ("layernorm_transformer", "/ln_1/Pow_output_0"),
        ("masked_attention", "/Mul_output_0"),
    ],
)
def test_the_first_wrong_tensor_of_each_sample(name: str, first: str, tmp_path: Path) -> None:
    graph, batches = sample(name)
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    assert not found.passed
    ranges = collect_ranges(graph, batches)
    traced = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == first
    assert traced.outputs == found.outputs
    order = [t for n in graph.nodes for t in n.writes if graph.is_float(t) and t not in graph.constants]
    assert [error.tensor for error in traced.trace] == order
    before = order[: order.index(first)]
    assert all(judge(e, TOLERANCE).passed for e in traced.trace if e.tensor in before)


def test_what_differs_by_design_is_left_out(tmp_path: Path) -> None:
    graph, batches = sample("conv_chain")
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    ignore = frozenset({"/conv4/Conv_output_0"})
    traced = trace(found, graph, collect_ranges(graph, batches), batches, open_candidate, TOLERANCE, ignore)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == "/relu4/Relu_output_0"
    assert "/conv4/Conv_output_0" not in {error.tensor for error in traced.trace}


def _counting(open_candidate: OpenRunner, chunks: list[Sequence[str]]) -> OpenRunner:
    def open_and_note(tensors: Sequence[str]) -> Runner:
        chunks.append(list(tensors))
        return open_candidate(tensors)

    return open_and_note


@pytest.mark.parametrize(("bound", "count"), [(1, 4), (100_000, 4), (200_000, 2), (256 << 20, 1)])
def test_tensors_go_out_in_bounded_chunks(
    bound: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tensors of 128 x 128, of 4 bytes an element in FP32 and 2 in FP16: 98,304 bytes each."""
    graph, batches = sample("needs_constraints")
    ranges = collect_ranges(graph, batches)
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    whole = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", bound)
    chunks: list[Sequence[str]] = []
    pieces = trace(found, graph, ranges, batches, _counting(open_candidate, chunks), TOLERANCE)
    assert repr(pieces) == repr(whole)
    assert [name for chunk in chunks for name in chunk] == [error.tensor for error in whole.trace]
    assert all(len(chunk) * 98_304 <= max(bound, 98_304) for chunk in chunks)
    assert len(chunks) >= count


def test_chunks_shrink_when_the_traced_batch_is_much_larger_than_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Neg", f"t{i}", f"t{i + 1}") for i in range(40)]
    model = make_model(nodes, {"t0": ["n"]}, "t40")
    batches = [{"t0": np.full(1, 1.0, np.float32)}] * 20 + [{"t0": np.full(5000, 70000.0, np.float32)}]
    graph, ranges = scan(model, tmp_path, *batches)
    calibration = InMemoryCalibration(tuple(batches))
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), calibration, TOLERANCE)
    assert found.outputs[0].error.worst_batch == "batch_20"
    bound = 200_000
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", bound)
    chunks: list[Sequence[str]] = []
    trace(found, graph, ranges, calibration, _counting(open_candidate, chunks), TOLERANCE)
    assert sum(map(len, chunks)) == 40
    assert all(len(chunk) * 5000 * 6 <= bound for chunk in chunks[1:])


def test_sequences_and_integers_inside_are_passed_over(tmp_path: Path) -> None:
    model = make_model(
        [
            node("Mul", "x big", "a"),
            node("SequenceConstruct", "a x", "s"),
            node("SequenceAt", "s one", "b"),
            node("Cast", "b", "i", to=TensorProto.INT32),
            node("Cast", "i", "d", to=TensorProto.FLOAT),
            node("Add", "a d", "y"),
        ],
        {"x": [2]},
        "y",
        {"big": scalar(60000), "one": np.asarray(1, np.int64)},
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)})
    calibration = InMemoryCalibration(({"x": floats(1, 2)},))
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), calibration, TOLERANCE)
    traced = trace(found, graph, ranges, calibration, open_candidate, TOLERANCE)
    assert [error.tensor for error in traced.trace] == ["a", "b", "d", "y"]
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == "a"


def test_bf16_tensors_are_compared_too(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "narrow", to=TensorProto.BFLOAT16),
        node("Cast", "narrow", "wide", to=TensorProto.FLOAT),
        node("Mul", "wide wide", "y"),
    ]
    model = make_model(nodes, {"x": [2]}, "y narrow", output_types={"narrow": TensorProto.BFLOAT16})
    graph, batches = save(model, tmp_path), InMemoryCalibration(({"x": floats(1000, 2)},))
    open_naive = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_naive(()), batches, TOLERANCE)
    assert [verdict.passed for verdict in found.outputs] == [False, True]
    traced = trace(found, graph, collect_ranges(graph, batches), batches, open_naive, TOLERANCE)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == "y"
    assert [error.tensor for error in traced.trace] == ["narrow", "wide", "y"]


def test_a_planned_artifact_passes_where_the_naive_one_fails(tmp_path: Path) -> None:
    graph, batches = sample("needs_constraints")
    plan = plan_precision(graph, collect_ranges(graph, batches), PlanPolicy())
    fixed = emit(graph, plan, tmp_path / "fixed.onnx")
    assert verify(open_reference(graph), open_runner(fixed), batches, TOLERANCE).passed
    assert not verify(open_reference(graph), naive_artifact(graph, tmp_path)(()), batches, TOLERANCE).passed


def test_a_clamped_mask_runs_in_fp16_without_a_pin(tmp_path: Path) -> None:
    """Rows masked as a whole, and in part, that the plan never saw; naive FP16 gives NaN there."""
    nodes = [
        node("MatMul", "x w", "scores"),
        node("Where", "c k scores", "masked"),
        node("Softmax", "masked", "p"),
        node("MatMul", "p x", "y"),
    ]
    model = make_model(
        nodes,
        {"x": [2, 8, 8], "c": (TensorProto.BOOL, [2, 8, 8])},
        "y",
        {"w": np.eye(8, dtype=np.float32) * 3, "k": scalar(np.finfo(np.float32).min)},
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 8, 8)).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": x, "c": np.zeros((2, 8, 8), bool)})
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert (plan.pins, [clamp.tensor for clamp in plan.clamps]) == ((), ["k"])
    masked = rng.random((2, 8, 8)) < 0.5
    masked[0, :3] = True
    unseen = InMemoryCalibration(({"x": x, "c": masked},))
    fixed = open_runner(emit(graph, plan, tmp_path / "fixed.onnx"))
    assert verify(open_reference(graph), fixed, unseen, TOLERANCE).passed
    naive = verify(open_reference(graph), naive_artifact(graph, tmp_path)(()), unseen, TOLERANCE)
    assert naive.outputs[0].error.candidate_nan == 3 * 8

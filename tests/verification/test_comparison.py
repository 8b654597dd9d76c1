"""Verification that cannot be fooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, save, scalar, scan
from naive_artifacts import naive_artifact, sample
from onnx import TensorProto, helper

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.errors import BackendError, CalibrationError, ConfigError, ModelError, RunError
from overflow_fixer.pipeline import fix
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, PlanPolicy, Tolerance, Verification
from overflow_fixer.verification.comparison import (
    CachedRunner,
    CopyCheck,
    check_parts,
    find_worst_batch,
    judge,
    open_reference,
    verify,
)

CALIB_DATA = Path(__file__).parents[2] / "calib_data"
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


# ---------------------------------------------------------------- judging outputs


def test_equal_outputs_pass() -> None:
    found = compare([floats(1, 2), floats(3)], [floats(1, 2), floats(3)])
    assert found.passed
    assert (found.batch_count, found.outputs[0].reason, found.first_wrong) == (2, "equal", None)


@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_probabilities_by_class_are_judged_by_their_snr(io_types: str, tmp_path: Path) -> None:
    """A classifier whose exporter writes maps of them (ZipMap) is as healthy as one with a tensor of them."""
    nodes = [
        node("Softmax", "x", "p", axis=-1),
        node("ZipMap", "p", "y", domain="ai.onnx.ml", classlabels_strings=["cat", "dog", "eel"]),
    ]
    model = make_model(nodes, {"x": ["N", 3]}, "y")
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    value = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(1, None))
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(value))
    save(model, tmp_path)
    np.save(tmp_path / "x.npy", np.random.default_rng(3).normal(size=(20, 3)).astype(np.float32))
    build = BuildOptions.model_validate({"backend": "onnx", "io_types": io_types})
    report = fix(
        FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "x.npy", out=tmp_path / "out", build=build)
    )
    (verdict,) = report.fixed.outputs
    assert (report.passed, report.plan.pins) == (True, ())
    assert (verdict.error.element_count, verdict.error.compared, verdict.error.is_float) == (60, 60, True)
    assert 50 < verdict.error.snr_db < 100
    assert not [text for text in report.warnings if "FP32 itself" in text]


def test_changed_copies_are_counted_apart() -> None:
    batches = [Batch("batch_0", {}), Batch("batch_0", {}, is_changed=True), Batch("batch_1", {})]
    found = verify(Given([floats(1)] * 2), Given([floats(1)] * 2), batches, TOLERANCE)
    assert (found.batch_count, found.changed_count, found.outputs[0].error.element_count) == (2, 1, 3)


@dataclass
class Told:
    """A runner that tells the batches it ran, and what of each: an error is raised."""

    outputs: dict[str, Any]
    ran: list[str] = field(default_factory=list)
    output_names: tuple[str, ...] = ("y",)

    def run(self, batch: Batch) -> dict[str, Any]:
        self.ran.append(batch.name)
        if isinstance(self.outputs[batch.name], Exception):
            raise self.outputs[batch.name]
        return {"y": self.outputs[batch.name]}


@pytest.mark.parametrize(
    ("batch", "copy", "is_borne"),
    [
        (floats(1), floats(2), True),
        (floats(math.nan), floats(math.nan), True),
        (floats(math.nan), floats(math.inf), True),
        (floats(math.nan, math.nan), floats(1, math.nan), True),
        (floats(1), floats(math.nan), False),
        (floats(math.nan, 1), floats(math.nan, math.inf), False),
        (floats(1), RunError("no", "no such row"), False),
        (ints(1), ints(2), True),
        ([floats(1)], [floats(math.nan)], True),
        (np.array(["a"]), np.array(["b"]), True),
    ],
)
def test_a_copy_is_borne_where_fp32_gives_no_more_nan_and_infinities(
    batch: Any, copy: Any, is_borne: bool
) -> None:
    reference = Told({"b": batch, "c": copy})
    check = CopyCheck(reference)
    assert [check(Batch("b", {}), Batch("c", {}, is_changed=True)) for _ in range(2)] == [is_borne] * 2
    assert reference.ran == ["b", "c"]


def test_of_two_copies_the_batch_itself_is_run_once() -> None:
    reference = Told({"b": floats(1), "c": floats(2), "d": floats(math.nan)})
    check = CopyCheck(reference)
    assert [check(Batch("b", {}), Batch(name, {}, is_changed=True)) for name in "cd"] == [True, False]
    assert reference.ran == ["b", "c", "d"]


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
    assert same.reason.startswith("1 of 3 values are NaN in the original model too, at the same places")
    (other,) = compare([floats(math.nan, 1, 2)], [floats(1, math.nan, 2)]).outputs
    assert other.reason.startswith(
        "2 of 3 values do not match: 1 NaN and 0 infinite, against 1 and 0 in FP32"
    )


def test_nan_of_the_reference_alone_is_no_nan_at_the_same_place() -> None:
    (found,) = compare([floats(math.nan, 1, 2)], [floats(0, 1, 2)]).outputs
    assert not found.passed
    assert found.reason.startswith(
        "1 of 3 values do not match: 0 NaN and 0 infinite, against 1 and 0 in FP32"
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


def test_a_reason_does_not_round_what_fails_up_to_its_limit() -> None:
    tolerance = Tolerance(min_snr_db=19.96, min_agreement=0.99999)
    reason = compare([np.asarray([1.0])], [np.asarray([0.8995])], tolerance).outputs[0].reason
    assert reason == "SNR 19.957 dB is under 19.96 dB"
    many = np.arange(50_000)
    reason = compare([many], [np.where(many == 7, 0, many)], tolerance).outputs[0].reason
    assert reason == "99.998% of the values are equal, under 99.999%"


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
    assert compare([floats(0)], [floats(0.5)], Tolerance(max_abs_error=0.5)).passed
    assert not compare([floats(0, 1)], [floats(1e-7, math.nan)], Tolerance(max_abs_error=1e9)).passed


def test_what_is_no_float_passes_by_agreement() -> None:
    reference = np.arange(100)
    candidate = reference.copy()
    candidate[7] = 0
    assert compare([reference], [candidate]).passed
    candidate[8] = 0
    found = compare([reference], [candidate])
    assert (found.passed, found.outputs[0].reason) == (False, "98.00% of the values are equal, under 99%")
    assert compare([reference > 3], [reference > 3]).passed
    assert not compare([np.asarray(["a"], object)], [np.asarray(["b"], object)]).passed


def test_another_shape_fails() -> None:
    assert not compare([floats(1, 2)], [floats(1)]).passed
    assert not compare([np.asarray([1, 2])], [np.asarray([[1, 2]])]).passed
    (found,) = compare([floats(1, 2)] * 2, [floats(1)] * 2).outputs
    assert found.reason == "it has another shape than in FP32: [1] instead of [2] on batch_0"


@pytest.mark.parametrize(("size", "passed"), [(150, False), (250, True)])
def test_integers_of_another_shape_are_that_many_that_do_not_agree(size: int, passed: bool) -> None:
    many, few = np.arange(size), np.arange(2)
    (found,) = compare([many, few], [many, few[:1]]).outputs
    assert found.passed == passed
    told = "it has another shape than in FP32: [1] instead of [2] on batch_1; 98.68% of the values are equal, under 99%"
    assert passed or found.reason == told
    assert found.error.other_shape == "[1] instead of [2] on batch_1"


def test_another_shape_hides_no_nan() -> None:
    (found,) = compare([floats(1, 2), floats(1)], [floats(1, math.nan), floats(1, 2)]).outputs
    assert found.reason.startswith(
        "it has another shape than in FP32: [2] instead of [1] on batch_1; 3 of 4 values"
    )
    assert "1 NaN and 0 infinite" in found.reason


def test_of_many_tensors_the_first_of_another_shape_is_told() -> None:
    (found,) = compare([[floats(1), floats(1, 2)]], [[floats(1), floats(1)]]).outputs
    assert found.reason == "it has another shape than in FP32: [1] instead of [2] on batch_0"
    (found,) = compare([[floats(1)] * 5000], [[floats(1)] * 4999]).outputs
    assert found.reason == "it has another shape than in FP32: 4999 tensors instead of 5000 on batch_0"


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


@dataclass
class Failing(Given):
    """One that cannot run the second batch."""

    error: Exception = field(default_factory=lambda: RunError("The model could not be run.", "no such row"))

    def run(self, batch: Batch) -> dict[str, Any]:
        if batch.name == "batch_1":
            raise self.error
        return super().run(batch)


@pytest.mark.parametrize("value", [floats(1, 2), np.array([1, 2])])
def test_a_batch_that_the_candidate_alone_cannot_run_fails_every_output(value: np.ndarray) -> None:
    values = [value] * 1000
    batches = InMemoryCalibration(({},) * 1000)
    found = verify(Given(values), Failing(values), batches, TOLERANCE)
    (verdict,) = found.outputs
    assert (verdict.passed, verdict.error.is_float) == (False, value.dtype == np.float32)
    assert verdict.reason == "it cannot be computed on batch_1: no such row"
    assert (verdict.error.worst_batch, verdict.error.failure) == ("batch_1", "no such row")
    assert (verdict.error.element_count, verdict.error.mismatched) == (2000, 2)
    assert found.batch_count == 1000


def test_a_batch_that_fails_is_worse_than_one_that_is_all_wrong() -> None:
    wrong = [floats(1, 2), floats(1, 2), floats(math.nan, math.nan, math.nan)]
    right = [floats(1, 2), floats(1, 2), floats(1, 2, 3)]
    found = verify(Given(right), Failing(wrong), InMemoryCalibration(({},) * 3), TOLERANCE)
    assert found.outputs[0].reason == "it cannot be computed on batch_1: no such row"


def test_what_the_reference_cannot_run_and_memory_that_ran_out_are_errors() -> None:
    values, batches = [floats(1)] * 2, InMemoryCalibration(({},) * 2)
    with pytest.raises(RunError):
        verify(Failing(values), Given(values), batches, TOLERANCE)
    with pytest.raises(ModelError, match="no memory"):
        verify(Given(values), Failing(values, error=ModelError("no memory")), batches, TOLERANCE)


def test_a_tolerance_for_an_output_that_is_none_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"names 'Y', which is no output of the model. Expected one of: y; or a part of one"
    ):
        compare([floats(1)], [floats(1)], Tolerance(per_output={"Y": 90.0}))


def test_a_part_that_is_wrong_fails_by_itself_and_by_its_own_limit() -> None:
    right = np.stack([floats(1000, 2000, 3000), floats(1e-9, 2e-9, 3e-9)])
    wrong = np.where(right < 1, 0, right).astype(np.float32)
    found = compare([right], [wrong], Tolerance(parts=("y[1]", "y[0]")))
    assert [(one.error.name, one.passed) for one in found.outputs] == [
        ("y", True),
        ("y[1]", False),
        ("y[0]", True),
    ]
    assert found.outputs[1].reason == "SNR 0.0 dB is under 30 dB"
    assert compare([right], [wrong], Tolerance(per_output={"y[1]": 0.0})).passed


def test_a_part_that_is_not_in_the_output_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"There is no part y\[:, 2\]: y is of shape \[2\]"):
        compare([floats(1, 2)], [floats(1, 2)], Tolerance(parts=("y[:, 2]",)))


def test_a_part_that_no_batch_has_anything_of_is_an_error() -> None:
    tolerance = Tolerance(parts=("y[3:]",))
    with pytest.raises(ConfigError, match=r"There is no part y\[3:\]: y has no element there in any batch"):
        check_parts(compare([floats(1, 2), floats(1, 2, 3)], [floats(1, 2), floats(1, 2, 3)], tolerance))
    found = compare([floats(1, 2), floats(1, 2, 3, 4)], [floats(1, 2), floats(1, 2, 3, 4)], tolerance)
    check_parts(found)
    assert found.passed


def test_a_whole_output_is_no_part_without_elements() -> None:
    check_parts(compare([floats()], [floats()]))


DRAWN = np.random.default_rng(3).normal(size=(2, 40, 5, 6)).astype(np.float32)
SCALES = np.where(np.arange(40) == 3, np.float32(1e-5), 1)[:, None, None]
UNSEEN = {
    "nothing": (DRAWN, DRAWN * np.float32(1.001), (0, 0)),
    "a small channel": (DRAWN * SCALES, DRAWN * np.floor(SCALES), (1, 0)),
    "what varies around a mean": (1000 + DRAWN / 20, (1000 + DRAWN / 20).astype(np.float16), (0, 1)),
    "what varies around that of a channel": (
        DRAWN[:, :2] / 10 + floats(288, 1013)[:, None, None],
        (DRAWN[:, :2] / 10 + floats(288, 1013)[:, None, None]).astype(np.float16),
        (0, 1),
    ),
}


@pytest.mark.parametrize("form", UNSEEN)
def test_what_a_whole_output_hides_is_told(form: str) -> None:
    right, wrong, counts = UNSEEN[form]
    found = compare([right], [wrong.astype(np.float32)])
    assert found.passed
    assert (len(found.hidden), len(found.hidden_variations)) == counts


def test_the_worst_batch_is_that_of_what_fails_or_of_the_first() -> None:
    found = compare([floats(1), floats(1)], [floats(1), floats(2)])
    batches = InMemoryCalibration(({}, {}))
    assert find_worst_batch(found, batches).name == "batch_1"
    fine = compare([floats(1), floats(1)], [floats(1.0001), floats(1)])
    assert find_worst_batch(fine, batches).name == "batch_0"
    first = replace(fine.outputs[0], error=replace(fine.outputs[0].error, tensor="x"))
    assert find_worst_batch(replace(found, outputs=(first, *found.outputs)), batches).name == "batch_1"
    with pytest.raises(CalibrationError, match=r"batch_1 is not in the calibration data any more"):
        find_worst_batch(found, InMemoryCalibration(({},)))


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

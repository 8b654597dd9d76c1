"""The first tensor inside an artifact that goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save, scalar, scan
from naive_artifacts import naive_artifact, sample
from onnx import TensorProto, helper

from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Runner, Tolerance
from overflow_fixer.repair import chunks as chunks_module
from overflow_fixer.repair.trace import OpenRunner, trace
from overflow_fixer.verification.comparison import judge, open_reference, verify

TOLERANCE = Tolerance()


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


@pytest.mark.parametrize(("value", "first"), [(1e-8, "b"), (1e6, "bias")])
def test_digits_of_what_is_made_of_constants_are_not_blamed(value: float, first: str, tmp_path: Path) -> None:
    """A bias that nobody can see is zero in FP16, and harms nobody; one that is infinite does."""
    nodes = [
        node("Identity", "c", "bias"),
        node("Add", "x bias", "a"),
        node("Mul", "a a", "b"),
        node("Sqrt", "b", "y"),
    ]
    model = make_model(nodes, {"x": [3]}, "y", {"c": scalar(value)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 300, 2)})
    batches = InMemoryCalibration([{"x": floats(1, 300, 2)}])
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    traced = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == first


def test_an_output_that_repeats_a_constant_is_told(tmp_path: Path) -> None:
    nodes = [node("Identity", "c", "y"), node("Neg", "x", "z")]
    graph, ranges = scan(
        make_model(nodes, {"x": [3]}, "y z", {"c": scalar(1e-8)}), tmp_path, {"x": floats(1, 3, 2)}
    )
    batches = InMemoryCalibration([{"x": floats(1, 3, 2)}])
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    traced = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == "y"


def test_what_differs_by_design_is_left_out(tmp_path: Path) -> None:
    graph, batches = sample("conv_chain")
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    ignore = frozenset({"/conv4/Conv_output_0"})
    traced = trace(found, graph, collect_ranges(graph, batches), batches, open_candidate, TOLERANCE, ignore)
    assert traced.first_wrong is not None
    assert traced.first_wrong.tensor == "/relu4/Relu_output_0"
    assert "/conv4/Conv_output_0" not in {error.tensor for error in traced.trace}


def test_what_is_drawn_at_random_is_not_compared(tmp_path: Path) -> None:
    """It differs each time, in FP32 as well; here it counts for nothing."""
    nodes = [node("RandomNormalLike", "x", "noise"), node("Mul", "noise zero", "n"), node("Add", "x n", "y")]
    model = make_model(nodes, {"x": [3]}, "y", {"zero": scalar(0)})
    feeds = {"x": floats(1, 2, 3)}
    graph, ranges = scan(model, tmp_path, feeds)
    batches = InMemoryCalibration([feeds])
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    traced = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    assert [error.tensor for error in traced.trace] == ["n", "y"]
    assert traced.first_wrong is None


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


def test_where_a_node_cannot_be_run_what_depends_on_it_is_wrong_and_the_rest_is_compared(
    tmp_path: Path,
) -> None:
    """70000 - 69998 is inf - inf in FP16, and NaN no row of the table."""
    nodes = [
        node("Mul", "x big", "a"),
        node("Sub", "a most", "b"),
        node("Cast", "b", "row", to=TensorProto.INT64),
        node("Gather", "table row", "c"),
        node("Neg", "c", "d"),
        node("Abs", "x", "e"),
        node("Add", "d e", "y"),
        node("Identity", "e", "z"),
    ]
    constants = {"big": scalar(70000), "most": scalar(69998), "table": floats(5, 6, 7)}
    feeds = {"x": floats(1)}
    graph, ranges = scan(make_model(nodes, {"x": [1]}, "y z", constants), tmp_path, feeds)
    batches = InMemoryCalibration((feeds,))
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    assert not found.passed
    traced = trace(found, graph, ranges, batches, open_candidate, TOLERANCE)
    failures = {error.tensor: error.failure for error in traced.trace}
    assert {name for name, failure in failures.items() if failure is not None} == {"c", "d", "y"}
    assert "Gather_c" in str(failures["c"])
    assert failures["y"] == failures["c"]
    assert traced.first_wrong is not None
    assert (traced.first_wrong.tensor, traced.first_wrong.candidate_inf) == ("a", 1)
    assert {e.tensor for e in traced.trace if judge(e, TOLERANCE).passed} == {"e", "z"}


def test_what_a_body_makes_of_a_tensor_that_fails_is_not_run(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["t"], ["inner"])], "body", [], [info])
    nodes = [
        node("Mul", "x big", "a"),
        node("Cast", "a", "row", to=TensorProto.INT64),
        node("Sub", "row most", "place"),
        node("Gather", "table place", "t"),
        node("If", "yes", "y", then_branch=body, else_branch=body),
    ]
    constants = {"big": scalar(70000), "most": np.array(69999, np.int64), "table": floats(5, 6, 7)}
    feeds = {"x": floats(1), "yes": np.array(True)}
    model = make_model(nodes, {"x": [1], "yes": (TensorProto.BOOL, [])}, "y", constants)
    graph, ranges = scan(model, tmp_path, feeds)
    batches = InMemoryCalibration((feeds,))
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    opened: list[Sequence[str]] = []
    traced = trace(found, graph, ranges, batches, _counting(open_candidate, opened), TOLERANCE)
    assert [(error.tensor, error.failure is None) for error in traced.trace] == [
        ("a", True),
        ("t", False),
        ("y", False),
    ]
    assert ["t"] in opened
    assert ["y"] not in opened


def test_of_many_tensors_behind_a_failure_few_are_run(tmp_path: Path) -> None:
    chain = [node("Neg", f"t{i}", f"t{i + 1}") for i in range(100)]
    nodes = [
        node("Mul", "x big", "a"),
        node("Cast", "a", "row", to=TensorProto.INT64),
        node("Sub", "row most", "place"),
        node("Gather", "table place", "t0"),
        *chain,
    ]
    constants = {"big": scalar(70000), "most": np.array(69999, np.int64), "table": floats(5, 6, 7)}
    feeds = {"x": floats(1)}
    graph, ranges = scan(make_model(nodes, {"x": [1]}, "t100", constants), tmp_path, feeds)
    batches = InMemoryCalibration((feeds,))
    open_candidate = naive_artifact(graph, tmp_path)
    found = verify(open_reference(graph), open_candidate(()), batches, TOLERANCE)
    opened: list[Sequence[str]] = []
    traced = trace(found, graph, ranges, batches, _counting(open_candidate, opened), TOLERANCE)
    assert [error.failure is None for error in traced.trace] == [True, *[False] * 101]
    assert len(opened) < 12

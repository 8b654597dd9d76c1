"""With any choice of nodes in FP16, the switchboard gives what the simulated artifact of that choice gives, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, make_model, node, save, scalar
from onnx import ModelProto, NodeProto, TensorProto
from typed_models import plan_of

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.calibration import open_calibration
from overflow_fixer.errors import RunError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Batch, Tolerance
from overflow_fixer.repair import switchboard
from overflow_fixer.repair.switchboard import Case, Switchboard
from overflow_fixer.sessions.session import open_session
from overflow_fixer.verification.comparison import open_reference

CALIB_DATA = Path(__file__).resolve().parents[2] / "calib_data"
SAMPLES = ("needs_constraints", "conv_chain", "layernorm_transformer", "masked_attention")
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
BATCH = Batch("b", {"x": X})


@pytest.mark.parametrize("name", SAMPLES)
def test_it_gives_what_the_simulated_artifact_gives(name: str, tmp_path: Path) -> None:
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    batch = next(iter(open_calibration(CALIB_DATA / name / "data", graph.inputs)))
    everything = emit(graph, plan_of(graph), tmp_path / "all.onnx").fp16_nodes
    board = Switchboard(graph, everything, graph.outputs)
    assert set(board.nodes) == set(everything)
    rng = np.random.default_rng(0)
    for share in (0.0, 0.2, 0.5, 0.8):
        pinned = {label for label in everything if rng.random() < share}
        artifact = emit(graph, plan_of(graph, pinned), tmp_path / f"{share}.onnx")
        _assert_same(board.run(batch, artifact.fp16_nodes), open_runner(artifact).run(batch))
    _assert_same(board.run(batch), open_reference(graph).run(batch))


def _assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.tobytes() == found[name].tobytes(), name


def _load(folder: Path, nodes: list[NodeProto], outputs: str = "y", **constants: np.ndarray) -> Graph:
    return save(make_model(nodes, {"x": [4, 8]}, outputs, constants), folder)


def test_only_nodes_that_compute_floats_have_a_switch(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "e"),
        node("Cast", "e", "i", to=TensorProto.INT32),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Dropout", "f", "y"),
    ]
    graph = _load(tmp_path, nodes)
    assert Switchboard(graph, [one.label for one in graph.nodes], ["y"]).nodes == (
        "Exp_e",
        "Cast_i",
        "Cast_f",
    )
    assert Switchboard(graph, ["Exp_e"], ["y"]).nodes == ("Exp_e",)


def test_where_a_switch_is_off_only_its_node_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search runs it some hundred times, mostly with few nodes in FP16."""
    written: list[ModelProto] = []

    def keep(model: ModelProto, *arguments: Any, **options: Any) -> Any:
        written.append(model)
        return open_session(model, *arguments, **options)

    monkeypatch.setattr(switchboard, "open_session", keep)
    nodes = [node("MatMul", "x weights", "m"), node("Split", "m", "a b", axis=1), node("Mul", "a b", "y")]
    graph = _load(tmp_path, nodes, weights=np.eye(8, dtype=np.float32))
    labels = [one.label for one in graph.nodes]
    board = Switchboard(graph, labels, ["y"])
    (model,) = written
    assert [one.op_type for one in model.graph.node] == ["Gather", "If"] * len(board.nodes)
    off = [onnx.helper.get_node_attr_value(one, "else_branch").node for one in model.graph.node[1::2]]
    assert [[one.op_type for one in body] for body in off] == [["MatMul"], ["Split"], ["Mul"]]
    assert [list(body[0].input) for body in off] == [list(one.inputs) for one in graph.nodes]


@pytest.mark.parametrize(("most", "packs"), [(64, True), (63, False)])
def test_many_weights_are_read_where_they_lie(
    most: int, packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime would hold them twice."""
    asked: list[bool] = []

    def note(*arguments: Any, pack_weights: bool, **options: Any) -> Any:
        asked.append(pack_weights)
        return open_session(*arguments, pack_weights=pack_weights, **options)

    monkeypatch.setattr(switchboard, "open_session", note)
    monkeypatch.setattr(switchboard, "_MOST_PACKED", most)
    graph = _load(tmp_path, [node("MatMul", "x weights", "y")], weights=np.eye(8, dtype=np.float32))
    board = Switchboard(graph, ["MatMul_y"], ["y"])
    assert asked == [packs]
    _assert_same(board.run(BATCH), {"y": X})


def test_what_is_exact_and_parameters_are_not_rounded(tmp_path: Path) -> None:
    """65520 would be infinite; 8 times 2.9999 are 23 columns, and 24 of 3."""
    nodes = [node("Add", "x mask", "m"), node("Resize", "m - scales", "y", mode="nearest")]
    graph = _load(tmp_path, nodes, mask=scalar(65520), scales=floats(1, 2.9999))
    labels = ["Add_m", "Resize_y"]
    (rounded,) = Switchboard(graph, labels, ["y"]).run(BATCH, labels).values()
    assert rounded.shape == (4, 23)
    assert np.isinf(rounded).all()
    (whole,) = Switchboard(graph, labels, ["y"], exact={"mask", "m"}).run(BATCH, ["Add_m"]).values()
    assert np.isfinite(whole).all()


def test_a_node_that_is_not_in_fp16_reads_what_the_one_before_it_wrote_rounded(tmp_path: Path) -> None:
    graph = _load(tmp_path, [node("Mul", "x k", "m"), node("Mul", "m k", "y")], k=scalar(1.001))
    board = Switchboard(graph, ["Mul_m", "Mul_y"], ["y"])
    k = np.float32(1.001)

    def half(value: np.ndarray) -> np.ndarray:
        return value.astype(np.float16).astype(np.float32)

    rounded_k = half(np.asarray(k))
    expected = {
        ("Mul_m",): half(half(X) * rounded_k) * k,
        ("Mul_y",): half(half(X * k) * rounded_k),
        (): X * k * k,
    }
    for in_fp16, value in expected.items():
        _assert_same(board.run(BATCH, in_fp16), {"y": value})


def test_a_case_tells_the_errors_against_fp32(tmp_path: Path) -> None:
    graph = _load(tmp_path, [node("Mul", "x k", "m"), node("Exp", "m", "y")], outputs="y m", k=scalar(3))
    case = Case(Switchboard(graph, ["Mul_m", "Exp_y"], ["y", "m"]), BATCH, {}, (), Tolerance())
    assert [error.snr_db for error in case.compare(())] == [math.inf, math.inf]
    of_y, of_m = case.compare(["Mul_m"])
    assert (of_y.tensor, of_m.tensor) == ("y", "m")
    m = X * np.float32(3)
    wrong = (X.astype(np.float16).astype(np.float32) * np.float32(3)).astype(np.float16).astype(np.float64)
    expected = 10 * math.log10((m.astype(np.float64) ** 2).sum() / ((m - wrong) ** 2).sum())
    assert of_m.snr_db == pytest.approx(expected)
    assert of_m.worst_batch == "b"


def test_a_choice_that_was_compared_is_not_run_again(tmp_path: Path) -> None:
    graph = _load(tmp_path, [node("Mul", "x k", "m"), node("Exp", "m", "y")], k=scalar(3))
    board = Switchboard(graph, ["Mul_m", "Exp_y"], ["y"])
    ran: list[tuple[str, ...]] = []

    class Counted(Switchboard):
        def __init__(self) -> None:
            self.nodes = board.nodes

        def run(self, batch: Batch, in_fp16: Collection[str] = ()) -> dict[str, np.ndarray]:
            ran.append(tuple(sorted(in_fp16)))
            return board.run(batch, in_fp16)

    case = Case(Counted(), BATCH, {}, (), Tolerance())
    first = case.compare(["Exp_y", "Mul_m"])
    assert case.compare(("Mul_m", "Exp_y")) == first != case.compare(["Mul_m"])
    assert ran == [(), ("Exp_y", "Mul_m"), ("Mul_m",)]


def test_a_choice_that_cannot_be_run_fails_every_output(tmp_path: Path) -> None:
    """Row 2999.7 of a table of 3000 is row 3000 in FP16."""
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Mul", "s zero", "n"),
        node("Add", "n last", "a"),
        node("Cast", "a", "i", to=TensorProto.INT64),
        node("Gather", "table i", "y"),
    ]
    table = np.ones((3000, 2), np.float32)
    graph = _load(tmp_path, nodes, zero=scalar(0), last=scalar(2999.7), table=table)
    board = Switchboard(graph, ["ReduceSum_s", "Mul_n", "Add_a"], ["y"])
    with pytest.raises(RunError):
        board.run(BATCH, ["Add_a"])
    (error,) = Case(board, BATCH, {}, (), Tolerance()).compare(["Add_a"])
    assert error.failure is not None
    assert (error.mismatched, error.element_count) == (2, 2)


def test_names_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "m__loss_raw"),
        node("Add", "x m__loss_raw", "m"),
        node("Mul", "m k", "y__loss_switches"),
        node("Sub", "y__loss_switches m__loss_raw", "y"),
    ]
    graph = _load(tmp_path, nodes, k=scalar(3))
    labels = [one.label for one in graph.nodes]
    board = Switchboard(graph, labels, ["y"])
    _assert_same(board.run(BATCH), open_reference(graph).run(BATCH))
    assert np.isfinite(board.run(BATCH, labels)["y"]).all()


def test_an_input_that_nobody_reads_keeps_its_name(tmp_path: Path) -> None:
    inputs = {"x": [4, 8], "y__loss_switches": [1]}
    graph = save(make_model([node("Exp", "x", "y")], inputs, "y"), tmp_path)
    batch = Batch("b", {"x": X, "y__loss_switches": floats(1)})
    _assert_same(
        Switchboard(graph, ["Exp_y"], ["y"]).run(batch), {"y": open_reference(graph).run(batch)["y"]}
    )


def test_a_model_of_ir_version_3_has_its_weights_among_its_inputs(tmp_path: Path) -> None:
    """What a branch rounds of a constant is no input of it, which that version would not allow."""
    model = make_model([node("Mul", "x k", "y")], {"x": [4, 8], "k": []}, "y", {"k": scalar(1.001)}, opset=11)
    model.ir_version = 3
    graph = save(model, tmp_path)
    board = Switchboard(graph, ["Mul_y"], ["y"])
    artifact = emit(graph, plan_of(graph), tmp_path / "fp16.onnx")
    _assert_same(board.run(BATCH, ["Mul_y"]), open_runner(artifact).run(BATCH))
    _assert_same(board.run(BATCH), open_reference(graph).run(BATCH))


def test_integers_are_compared_too(tmp_path: Path) -> None:
    nodes = [node("Add", "x big", "s"), node("ArgMax", "s", "y", axis=1, keepdims=0)]
    types = {"y": TensorProto.INT64}
    graph = save(make_model(nodes, {"x": [4, 8]}, "y", {"big": scalar(4096)}, output_types=types), tmp_path)
    (error,) = Case(Switchboard(graph, ["Add_s"], ["y"]), BATCH, {}, (), Tolerance()).compare(["Add_s"])
    exact = np.argmax(X + np.float32(4096), axis=1)
    halves = np.argmax((X.astype(np.float16) + np.float16(4096)).astype(np.float16), axis=1)
    assert (error.is_float, error.mismatched) == (False, np.count_nonzero(exact != halves))
    assert error.mismatched


def test_a_quiet_batch_is_judged_beside_the_others_where_they_are_known(tmp_path: Path) -> None:
    graph = _load(tmp_path, [node("Mul", "x k", "y")], k=scalar(1e-3))
    board = Switchboard(graph, ["Mul_y"], ["y"])
    (alone,) = Case(board, BATCH, {}, (), Tolerance()).compare(["Mul_y"])
    (beside,) = Case(board, BATCH, {"y": 2.0}, (), Tolerance()).compare(["Mul_y"])
    assert alone.worst_batch_snr_db == pytest.approx(alone.snr_db) == beside.snr_db
    energy = np.mean((X * np.float32(1e-3)).astype(np.float64) ** 2)
    assert beside.worst_batch_snr_db - beside.snr_db == pytest.approx(10 * math.log10(0.01 * 100 / energy))

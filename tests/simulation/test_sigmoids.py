"""Sigmoids that are given out: which they are, and that all that judges FP16 computes them as FP32 holds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, save, scalar
from onnx import NodeProto, TensorProto, helper
from typed_models import assert_same, plan_of

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Batch, Tolerance
from overflow_fixer.repair.switchboard import Switchboard
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.simulation.sigmoids import find_given_sigmoids, write_out
from overflow_fixer.verification.comparison import open_reference, verify

SCORES = node("Sigmoid", "x", "s")
LOGITS = np.random.default_rng(0).uniform(-15.2, -13.2, (64, 4)).astype(np.float32)
"""Of scores up to 2e-6: what a wake word's network gives where nobody says it."""


def _load(folder: Path, nodes: list[NodeProto], **constants: np.ndarray) -> Graph:
    return save(make_model(nodes, {"x": [64, 4]}, "y", constants), folder)


def _branch(source: str, name: str) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Identity", [source], [name])],
        name,
        [],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
    )


IF_LOUD = node("If", "loud", "y", then_branch=_branch("s", "one"), else_branch=_branch("x", "other"))


@pytest.mark.parametrize(
    ("nodes", "is_given"),
    [
        ([node("Sigmoid", "x", "y")], True),
        ([SCORES, node("Transpose", "s", "y")], True),
        ([SCORES, node("Concat", "x s", "y", axis=1)], True),
        ([SCORES, node("Slice", "s starts ends", "t"), node("Identity", "t", "y")], True),
        ([SCORES, IF_LOUD], True),
        ([SCORES, node("Mul", "s x", "y")], False),
        ([SCORES, node("Greater", "s half", "chosen"), node("Where", "chosen half half", "y")], False),
        ([node("HardSigmoid", "x", "y")], False),
    ],
    ids=lambda given: " ".join(one.op_type for one in given) if isinstance(given, list) else "",
)
def test_which_are_given_out(nodes: list[NodeProto], is_given: bool, tmp_path: Path) -> None:
    graph = _load(tmp_path, nodes, starts=ints(0), ends=ints(3), half=scalar(0.5), loud=np.asarray(True))
    found = find_given_sigmoids(graph)
    assert found == ({nodes[0].name} if is_given else frozenset())


def _compute(values: np.ndarray, folder: Path) -> np.ndarray:
    graph = save(make_model(list(write_out(node("Sigmoid", "x", "y"), "own_")), {"x": [None]}, "y"), folder)
    session = open_session(graph.model, folder)
    return np.asarray(SessionRunner(session).run(Batch("b", {"x": values}))["y"])


def test_what_is_written_out_is_right_however_small(tmp_path: Path) -> None:
    logits = np.linspace(-87, 87, 100_001).astype(np.float32)
    right = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert np.abs(_compute(logits, tmp_path) / right - 1).max() < 2.0**-22


def test_at_the_ends(tmp_path: Path) -> None:
    ends = np.asarray([-np.inf, -1000, 1000, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(_compute(ends, tmp_path), floats(0, 0, 1, 1, np.nan))


def test_small_scores_are_not_judged_by_the_noise_of_a_kernel(tmp_path: Path) -> None:
    """ONNX Runtime's own Sigmoid has under 30 dB here, beside what FP32 holds."""
    graph = _load(tmp_path, [node("Sigmoid", "x", "y")])
    batch = Batch("b", {"x": LOGITS})
    right = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    own = SessionRunner(open_session(graph.model, tmp_path)).run(batch)["y"]
    assert _snr_db(right, own) < 30 < 100 < _snr_db(right, open_reference(graph).run(batch)["y"])
    artifact = emit(graph, plan_of(graph), tmp_path / "typed.onnx")
    assert artifact.fp16_nodes
    verified = verify(open_reference(graph), open_runner(artifact), [batch], Tolerance())
    assert verified.passed


def _snr_db(right: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10((right**2).sum() / ((right - found) ** 2).sum()))


@pytest.mark.parametrize("pinned", [(), ("Sigmoid_s",), ("Neg_a", "Sigmoid_s")])
def test_reference_simulation_and_switches_agree(pinned: tuple[str, ...], tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a"), node("Sigmoid", "a", "s"), node("Reshape", "s shape", "y")]
    graph = _load(tmp_path, nodes, shape=ints(-1))
    batch = Batch("b", {"x": -LOGITS})
    everything = emit(graph, plan_of(graph), tmp_path / "all.onnx").fp16_nodes
    board = Switchboard(graph, everything, graph.outputs)
    artifact = emit(graph, plan_of(graph, pinned), tmp_path / "typed.onnx")
    assert_same(board.run(batch, artifact.fp16_nodes)["y"], open_runner(artifact).run(batch)["y"])
    assert_same(board.run(batch)["y"], open_reference(graph).run(batch)["y"])


def test_names_that_are_taken(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "s__turned"),
        node("Relu", "s__turned", "sigmoid_of_s__one"),
        node("Sigmoid", "sigmoid_of_s__one", "s"),
        node("Concat", "s s__turned", "y", axis=0),
    ]
    graph = _load(tmp_path, nodes)
    batch = Batch("b", {"x": -LOGITS})
    artifact = emit(graph, plan_of(graph), tmp_path / "typed.onnx")
    board = Switchboard(graph, artifact.fp16_nodes, graph.outputs)
    assert_same(board.run(batch)["y"], open_reference(graph).run(batch)["y"])
    assert_same(board.run(batch, artifact.fp16_nodes)["y"], open_runner(artifact).run(batch)["y"])


def test_a_sigmoid_of_the_models_own_fp16_stays(tmp_path: Path) -> None:
    half = int(TensorProto.FLOAT16)
    nodes = [
        node("Cast", "x", "h", to=half),
        node("Sigmoid", "h", "s"),
        node("Cast", "s", "y", to=int(TensorProto.FLOAT)),
    ]
    graph = _load(tmp_path, nodes)
    assert find_given_sigmoids(graph) == frozenset()
    assert graph.dtypes["s"] == onnx.TensorProto.FLOAT16
    assert np.isfinite(open_reference(graph).run(Batch("b", {"x": LOGITS}))["y"]).all()

"""A difference of which a Relu lets less through than FP16 leaves of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.rectified import name_what_is_left, rectifies
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

DIFFERENCE = node("Sub", "s t", "d")
CONSTANTS = {
    "zero": scalar(0),
    "zeros": np.zeros(50, np.float32),
    "one": scalar(1),
    "below": scalar(-1),
    "none": np.zeros((4, 0), np.float32),
    "last": ints(-1),
    "w": np.random.default_rng(2).normal(size=(50, 8)).astype(np.float32),
}


def _scan(folder: Path, nodes: list[onnx.NodeProto], *batches: dict[str, Any]) -> tuple[Graph, RangeTable]:
    used = {name for each in nodes for name in each.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    model = make_model(nodes, {"s": [None, 50], "t": [None, 1]}, "y", constants, 13)
    return scan(model, folder, *batches)


def _draw(steps: float, seed: int = 1) -> dict[str, np.ndarray]:
    """Scores, and thresholds of so many of FP16's steps, of 1/4, below the largest score of a row."""
    scores = np.random.default_rng(seed).uniform(260, 400, (4, 50)).astype(np.float32)
    scores[:, 0] = 400
    return {"s": scores, "t": np.full((4, 1), 400 - steps / 4, np.float32)}


@pytest.mark.parametrize(
    ("op", "inputs", "is_one"),
    [
        ("Relu", "d", True),
        ("Clip", "d zero", True),
        ("Clip", "d zero one", True),
        ("Max", "d zero", True),
        ("Max", "zeros d", True),
        ("Clip", "d", False),
        ("Clip", "d below", False),
        ("Clip", "d one", False),
        ("Max", "d one", False),
        ("Max", "d", False),
        ("Max", "d t", False),
        ("Max", "d zero zeros", False),
        ("Min", "d zero", False),
        ("Abs", "d", False),
        ("LeakyRelu", "d", False),
    ],
)
def test_what_rectifies(op: str, inputs: str, is_one: bool, tmp_path: Path) -> None:
    graph, _ = _scan(tmp_path, [DIFFERENCE, node(op, inputs, "y")], _draw(8))
    assert rectifies(graph, graph.nodes[1], inputs.split().index("d")) == is_one
    assert name_what_is_left(graph, graph.nodes[0]) == ("y" if is_one else "d")


@pytest.mark.parametrize(("least", "is_one"), [(0.0, True), (-1.0, False), (None, False)])
def test_a_clip_by_attributes(least: float | None, is_one: bool, tmp_path: Path) -> None:
    attributes = {} if least is None else {"min": least}
    nodes = [DIFFERENCE, node("Clip", "d", "y", **attributes)]
    model = make_model(nodes, {"s": [4, 50], "t": [4, 1]}, "y", {}, 10)
    graph, _ = scan(model, tmp_path, _draw(8))
    assert rectifies(graph, graph.nodes[1], 0) == is_one


def test_a_maximum_with_nothing_is_none(tmp_path: Path) -> None:
    nodes = [node("Max", "e none", "y")]
    graph, _ = scan(
        make_model(nodes, {"e": [4, 0]}, "y", {"none": CONSTANTS["none"]}),
        tmp_path,
        {"e": CONSTANTS["none"]},
    )
    assert not rectifies(graph, graph.nodes[0], 0)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "d", "r"), node("Abs", "d", "a"), node("Sub", "r a", "y")],
        [node("Relu", "d", "r"), node("Neg", "r", "y"), node("Identity", "d", "z")],
    ],
)
def test_what_others_read_too_is_left_whole(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [DIFFERENCE, *nodes], _draw(8))
    assert name_what_is_left(graph, graph.nodes[0]) == "d"
    assert not ask(find_lost_differences, graph, ranges)


def test_what_is_given_out_itself_is_left_whole(tmp_path: Path) -> None:
    model = make_model([DIFFERENCE, node("Relu", "d", "y")], {"s": [4, 50], "t": [4, 1]}, "d", {})
    graph, _ = scan(model, tmp_path, _draw(8))
    assert name_what_is_left(graph, graph.nodes[0]) == "d"


FORMS = {
    "a margin": [node("Relu", "d", "y")],
    "scaled": [node("Relu", "d", "r"), node("Mul", "r below", "y")],
    "clipped": [node("Clip", "d zero", "y")],
    "the larger of it and zero": [node("Max", "zero d", "y")],
    "in a layer": [node("Relu", "d", "r"), node("MatMul", "r w", "y")],
    "a mean of margins": [node("Relu", "d", "r"), node("ReduceSum", "r last", "y")],
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_let_through_is_right_with_the_pins(form: str, tmp_path: Path) -> None:
    """Scores of 260 to 400, of which those over a threshold of 398.75 count."""
    scores = _draw(5)
    nodes = [node("Neg", "s", "n"), node("Neg", "n", "m"), node("Sub", "m t", "d"), *FORMS[form]]
    graph, ranges = _scan(tmp_path, nodes, scores)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert pinned == ["Neg_n", "Neg_m", "Sub_d"]
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    path = tmp_path / "model.onnx"
    assert measure_snr_db(path, scores, set()) < 30
    assert measure_snr_db(path, scores, fp32) > 50


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [DIFFERENCE, node("Relu", "d", "y")], _draw(8))
    (found,) = ask(find_lost_differences, graph, ranges)
    assert (found.node, found.tensor, found.value, found.limit) == ("Sub_d", "y", 2, 4)
    assert found.reason == (
        "y is 2 at most in that batch, and the terms of d, up to 400, lose much: FP16's steps are 0.25 there, "
        "and the output y tells it"
    )


@pytest.mark.parametrize(("steps", "is_lost"), [(15.9, True), (16, False), (40, False), (0, False)])
def test_less_than_16_steps_are_lost(steps: float, is_lost: bool, tmp_path: Path) -> None:
    """Of scores that are spread evenly 30.5 dB are left at 16; where nothing is let through nothing is lost."""
    graph, ranges = _scan(tmp_path, [DIFFERENCE, node("Relu", "d", "y")], _draw(steps))
    assert bool(ask(find_lost_differences, graph, ranges)) == is_lost


@pytest.mark.parametrize(("steps", "is_lost"), [(31.9, True), (32, False)])
def test_what_is_small_before_a_relu_counts_up_to_32_steps(
    steps: float, is_lost: bool, tmp_path: Path
) -> None:
    """A variance that is bounded by zero: as good as all of it is let through."""
    scores = _draw(steps)
    scores["s"] = np.maximum(scores["s"], scores["t"] - 1)
    graph, ranges = _scan(tmp_path, [DIFFERENCE, node("Relu", "d", "y")], scores)
    found = ask(find_lost_differences, graph, ranges)
    assert [(one.tensor, one.limit) for one in found] == ([("d", 8)] if is_lost else [])


def test_a_batch_that_lets_more_through_makes_up_for_the_others(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [DIFFERENCE, node("Relu", "d", "y")], _draw(8), _draw(40, 2))
    assert not ask(find_lost_differences, graph, ranges)


@pytest.mark.parametrize("other", [math.nan, math.inf, -math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(other: float, tmp_path: Path) -> None:
    scores = _draw(8)
    scores["s"][1, 1] = other
    graph, ranges = _scan(tmp_path, [DIFFERENCE, node("Relu", "d", "y")], scores)
    assert not ask(find_lost_differences, graph, ranges)


def test_a_batch_without_elements_is_none(tmp_path: Path) -> None:
    empty = {name: value[:0] for name, value in _draw(8).items()}
    nodes = [DIFFERENCE, node("Relu", "d", "y")]
    (tmp_path / "empty").mkdir()
    assert not ask(find_lost_differences, *_scan(tmp_path / "empty", nodes, empty))
    assert len(ask(find_lost_differences, *_scan(tmp_path, nodes, _draw(8), empty))) == 1

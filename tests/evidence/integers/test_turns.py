"""What is left of an angle when whole turns are taken out of it."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.integers.turns import unwrap
from overflow_fixer.graph.model import Graph
from overflow_fixer.rules.lost_phase import find_lost_phases

TAU = 2 * math.pi
CONSTANTS = {
    "tau": scalar(TAU),
    "four": scalar(4),
    "one": scalar(1),
    "zero": scalar(0),
    "pair": floats(1, 2),
    "first": ints(0),
}
SINE = [node("Mul", "f tau", "a"), node("Sin", "a", "y")]

WRAPPED = {
    "mod": ([node("Mod", "x one", "f", fmod=1), *SINE], TAU),
    "less its floor": ([node("Floor", "x", "n"), node("Sub", "x n", "f"), *SINE], TAU),
    "less its nearest": ([node("Round", "x", "n"), node("Sub", "x n", "f"), *SINE], TAU),
    "as PyTorch writes a remainder": (
        [node("Div", "x four", "q"), node("Floor", "q", "n"), node("Mul", "n four", "w"), node("Sub", "x w", "f"), *SINE],
        TAU,
    ),
    "moved, shifted, divided and turned about": (
        [
            node("Mod", "x one", "m", fmod=1),
            node("Unsqueeze", "m first", "u"),
            node("Sub", "one u", "s"),
            node("Neg", "s", "v"),
            node("Div", "v four", "d"),
            node("Add", "d pair", "a"),
            node("Cos", "a", "y"),
        ],
        0.25,
    ),
    "an angle": ([node("Mod", "x tau", "a", fmod=1), node("Sin", "a", "y")], 1.0),
}  # fmt: skip
AS_IT_IS = {
    "of another factor": [node("Floor", "x", "n"), node("Mul", "n four", "w"), node("Sub", "x w", "f"), *SINE],
    "less the floor of something else": [
        node("Exp", "x", "e"), node("Floor", "e", "n"), node("Sub", "x n", "f"), *SINE
    ],
    "divided by zero": [node("Div", "x zero", "q"), node("Floor", "q", "n"), node("Sub", "x n", "f"), *SINE],
    "factors that differ": [node("Mod", "x one", "f", fmod=1), node("Mul", "f pair", "a"), node("Sin", "a", "y")],
    "divided by it": [node("Mod", "x one", "f", fmod=1), node("Div", "tau f", "a"), node("Sin", "a", "y")],
    "less something else": [node("Sub", "x x", "f"), *SINE],
    "nothing before": [node("Sin", "x", "y")],
}  # fmt: skip


def _graph(nodes: list[onnx.NodeProto], folder: Path) -> Graph:
    return scan(make_model(nodes, {"x": [2]}, "y", CONSTANTS), folder, {"x": floats(1, 2)})[0]


@pytest.mark.parametrize("form", WRAPPED)
def test_whole_turns_are_seen(form: str, tmp_path: Path) -> None:
    nodes, radians = WRAPPED[form]
    angle = unwrap(graph := _graph(nodes, tmp_path), graph.nodes[-1])
    assert (angle.tensor, angle.radians) == ("x", pytest.approx(radians, rel=1e-6))
    assert {one.label for one in angle.way} == {one.label for one in graph.nodes[:-1]}


@pytest.mark.parametrize("form", AS_IT_IS)
def test_what_is_no_whole_turn_is_the_angle_itself(form: str, tmp_path: Path) -> None:
    graph = _graph(AS_IT_IS[form], tmp_path)
    assert unwrap(graph, graph.nodes[-1]) == (graph.nodes[-1].inputs[0], 1.0, ())


@pytest.mark.parametrize(("most", "is_found"), [(20.25, False), (20.5, True)])
def test_the_limit_is_128_radians_in_turns(most: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Mul", "x pair", "p"), node("Floor", "p", "n"), node("Sub", "p n", "f"), *SINE]
    model = make_model(nodes, {"x": [2]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(0.123, most / 2)})
    found = ask(find_lost_phases, graph, ranges)
    assert [one.node for one in found] == ["Mul_p", "Floor_n", "Sub_f", "Mul_a", "Sin_y"] * is_found
    for one in found:
        assert (one.tensor, one.value, one.limit) == ("p", 20.5, pytest.approx(128 / TAU, rel=1e-6))
        assert "angles of up to 128.805 radians from p (6.28319 to each 1 of it);" in one.reason


def test_what_is_left_of_integers_is_an_angle_by_itself(tmp_path: Path) -> None:
    """(p % 1000) * 0.75: FP16 holds p, and not 700.25 radians."""
    nodes = [
        node("Cast", "p", "f", to=TensorProto.FLOAT),
        node("Mod", "f thousand", "m", fmod=1),
        node("Mul", "m rate", "a"),
        node("Sin", "a", "y"),
    ]
    kinds = {"p": (TensorProto.INT64, [2])}
    model = make_model(nodes, kinds, "y", {"thousand": scalar(1000), "rate": scalar(0.75)})
    graph, ranges = scan(model, tmp_path, {"p": ints(7, 1999)})
    found = ask(find_lost_phases, graph, ranges)
    assert {(one.tensor, one.value) for one in found} == {("a", 749.25)}
    assert {"Mul_a", "Sin_y"} <= {one.node for one in found}

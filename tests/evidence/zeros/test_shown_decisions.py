"""Where it shows how a value near zero is compared."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from in_memory_calibration import floats, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.zeros.shown_decisions import is_shown
from overflow_fixer.graph.comparisons import find_tiny_comparisons

CAST = [node("Cast", "c", "m", to=TensorProto.FLOAT)]
SHOWN = {
    "a mask": [*CAST, node("Relu", "m", "y")],
    "a choice of 1": [node("Where", "c one x", "y")],
    "the other one": [node("Not", "c", "n"), node("Where", "n x one", "y")],
    "a quotient": [node("Div", "one x", "d"), node("Where", "c d zero", "y")],
    "a product of others": [*CAST, node("Mul", "m one", "y")],
    "one of two that read it": [
        node("Not", "c", "n"),
        node("Where", "n zero x", "w"),
        *CAST,
        node("Add", "m w", "y"),
    ],
    "a choice behind truths": [
        node("Not", "c", "n"),
        node("And", "n n", "a"),
        node("Identity", "a", "i"),
        node("Where", "i one x", "y"),
    ],
    "a logarithm": [node("Log", "x", "l"), node("Where", "c l zero", "y")],
}
HIDDEN = {
    "a slope": [node("Mul", "x tenth", "s"), node("Where", "c x s", "y")],
    "a choice behind truths": [
        node("Not", "c", "n"),
        node("And", "n n", "a"),
        node("Identity", "a", "i"),
        node("Where", "i zero x", "y"),
    ],
    "what is made of it": [node("Tanh", "x", "t"), *CAST, node("Mul", "m t", "y")],
    "zero beside it": [node("Where", "c x zero", "y")],
    "p log p": [node("Log", "x", "l"), node("Mul", "l x", "s"), node("Where", "c s zero", "y")],
    "p times what is chosen": [
        node("Log", "x", "l"),
        node("Where", "c l zero", "w"),
        node("Mul", "x w", "y"),
    ],
    "a mask of it": [*CAST, node("Neg", "m", "n"), node("Mul", "n x", "y")],
    "what it is made of": [*CAST, node("Sqrt", "given", "r"), node("Mul", "r m", "y")],
}


SCALED = node("Mul", "given tenth", "x")


def _is_shown(
    folder: Path, nodes: list[onnx.NodeProto], number: float = 0.0, writer: onnx.NodeProto = SCALED
) -> bool:
    nodes = [writer, node("Greater", "x number", "c"), *nodes]
    constants = {name: scalar(value) for name, value in (("one", 1), ("zero", 0), ("tenth", 0.1))}
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in constants.items() if name in used}
    model = make_model(nodes, {"given": [2]}, "y", {**constants, "number": scalar(number)})
    graph, ranges = scan(model, folder, {"given": floats(1e-12, 1)})
    (comparison,) = find_tiny_comparisons(graph)
    return is_shown(graph, ranges, comparison)


@pytest.mark.parametrize("name", SHOWN)
def test_shown(name: str, tmp_path: Path) -> None:
    assert _is_shown(tmp_path, SHOWN[name])


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden(name: str, tmp_path: Path) -> None:
    assert not _is_shown(tmp_path, HIDDEN[name])


def test_beside_another_number_a_product_hides_no_choice(tmp_path: Path) -> None:
    assert _is_shown(tmp_path, HIDDEN["p times what is chosen"], 1e-10)


@pytest.mark.parametrize(("writer", "is_shown"), [("given one", False), ("one given", True)])
def test_what_a_constant_is_divided_by_is_large_where_the_quotient_is_near_zero(
    writer: str, is_shown: bool, tmp_path: Path
) -> None:
    nodes = [node("Where", "c given zero", "y")]
    assert _is_shown(tmp_path, nodes, writer=node("Div", writer, "x")) == is_shown

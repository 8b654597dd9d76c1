"""What a tensor's probe takes follows from what is wanted of it and what is sure of its shape."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper
from scan_cases import save_model, value_info

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.probes import DETAILED
from overflow_fixer.ranges.probing import Probing, find_rows


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.DOUBLE),
    ]
    inputs, outputs = [value_info("x", dims=[2, 3])], [value_info("z", TensorProto.DOUBLE)]
    return save_model(tmp_path / "m.onnx", nodes, inputs, outputs)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Probing(), ("max", "min", "sum", "size")),
        (Probing(shapes={"x": (2, 3)}), ("max", "min", "sum")),
        (Probing(shapes={"x": ("n", 3)}), ("max", "min", "sum", "size")),
        (Probing(small={"x"}, shapes={"x": (2, 3)}), ("max", "min", "sum", "min_nonzero_abs")),
        (Probing(unguarded={"x"}, shapes={"x": (2, 3)}), ("max", "min")),
        (Probing(small={"x"}, words={"x": {"sum"}}, shapes={"x": (2, 3)}), ("sum",)),
        (Probing(detailed={"x"}), DETAILED[:-1]),
    ],
)
def test_a_probe_takes_what_is_wanted(graph: Graph, how: Probing, words: tuple[str, ...]) -> None:
    assert how.make_probe(graph, "x", "p_", "p").words == words


@pytest.mark.parametrize(
    ("dims", "is_empty"), [((0, 4), True), ((2, 3), False), ((), False), (("n", 0), False)]
)
def test_what_is_empty_for_sure_is_not_reduced(dims: Any, is_empty: bool, graph: Graph) -> None:
    """CUDA cannot."""
    probe = Probing(shapes={"x": dims}).make_probe(graph, "x", "p_", "p")
    assert ("x" not in {name for node in probe.nodes() for name in node.input}) == is_empty


def test_a_number_of_elements_that_is_not_sure_is_nan() -> None:
    how = Probing(shapes={"x": (2, 3), "s": ("n", 3), "0": ()})
    assert (how.count("x"), how.count("0")) == (6, 1)
    assert math.isnan(how.count("s"))
    assert math.isnan(how.count("none"))


def test_native_probes_are_detailed_ones_of_what_is_no_double(graph: Graph) -> None:
    how = Probing(detailed={"x", "z"}, is_native=True)
    assert [how.make_probe(graph, name, "p_", "p").is_native for name in "xyz"] == [True, False, False]


@pytest.mark.parametrize(
    ("dims", "rows"),
    [
        (None, 1),
        ((), 1),
        ((3, 4), 1),
        ((512, 512), 64),
        ((1, 1000, 300), 60),
        ((None, 12, "s", "s"), 12),
        (("n", None), 1),
        (("n", 0), 1),
        ((7, 1009, 13, 3), 39),
        ((1, 262147), 1),
    ],
)
def test_rows_always_divide_the_number_of_elements(dims: Any, rows: int) -> None:
    assert find_rows(dims) == rows

"""Steps back from a tensor to what it is made from."""

from __future__ import annotations

import onnx.parser
import pytest

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.patterns.tracing import (
    collect,
    constant_operand,
    is_constant,
    origin,
    read_number,
    sole_reader,
)

_NETWORK = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[2] x, float[2] other) => (float[2] y, float[2] also)
<float two = {2}, float[1] one = {1}, float[2] pair = {1, 2}, bool yes = {1}, bool no = {0}>
{
  wide = Cast <to = 11> (two)
  sum = Add (wide, wide)
  noise = RandomNormal <shape = [2]> ()
  like = RandomNormalLike (pair)
  coin = Bernoulli (pair)
  dropped = Dropout (pair, two, yes)
  kept = Dropout (pair, two, no)
  custom = com.microsoft.Gelu (pair)
  live = Add (x, two)
  long1 = Neg (two)
  long2 = Neg (long1)
  long3 = Neg (long2)
  long4 = Neg (long3)
  long5 = Neg (long4)

  same = Identity (live)
  narrow = Cast <to = 10> (same)
  double = Cast <to = 11> (same)
  back = Cast <to = 1> (double)
  a = Mul (back, pair)
  b = Add (a, one)
  c = Add (b, other)
  y = Neg (b)
  also = Neg (c)
}
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("tracing") / "m.onnx"
    onnx.save(onnx.parser.parse_model(_NETWORK), path)
    return load_graph(path)


@pytest.mark.parametrize("tensor", ["two", "pair", "wide", "sum", "kept", "long1", "long4"])
def test_what_a_few_nodes_make_of_constants_is_constant(tensor: str, graph: Graph) -> None:
    assert is_constant(graph, tensor)


@pytest.mark.parametrize(
    "tensor", ["x", "live", "noise", "like", "coin", "dropped", "custom", "long5", "nowhere"]
)
def test_inputs_chance_custom_operators_and_long_ways_are_not(tensor: str, graph: Graph) -> None:
    assert not is_constant(graph, tensor)


def test_an_origin_is_behind_casts_between_floats_and_no_others(graph: Graph) -> None:
    assert origin(graph, "back") == "live"
    assert origin(graph, "double") == "live"
    assert origin(graph, "narrow") == "narrow"
    assert origin(graph, "dropped") == "dropped"
    assert origin(graph, "x") == "x"


def test_the_constant_operand_of_two(graph: Graph) -> None:
    assert constant_operand(graph, graph.producers["a"]) == ("back", "pair")
    assert constant_operand(graph, graph.producers["c"]) is None
    assert constant_operand(graph, graph.producers["sum"]) is None
    assert constant_operand(graph, graph.producers["y"]) is None


def test_a_number_is_a_constant_of_one_element(graph: Graph) -> None:
    assert read_number(graph, "two") == read_number(graph, "wide") == 2
    assert read_number(graph, "one") == 1
    assert read_number(graph, "pair") is None
    assert read_number(graph, "x") is None


def test_a_sole_reader_is_found_past_casts(graph: Graph) -> None:
    assert sole_reader(graph, "double") is graph.producers["a"]
    assert sole_reader(graph, "a") is graph.producers["b"]
    assert sole_reader(graph, "b") is None
    assert sole_reader(graph, "y") is None


def test_the_nodes_between_two_tensors(graph: Graph) -> None:
    between = collect(graph, "live", "b")
    assert between is not None
    assert [node.outputs[0] for node in between] == ["same", "double", "back", "a", "b"]
    assert collect(graph, "live", "c") is None

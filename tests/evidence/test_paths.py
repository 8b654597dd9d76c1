"""Ways from a tensor to nodes."""

from pathlib import Path

from in_memory_calibration import ints, make_model, node, save
from onnx import TensorProto

from overflow_fixer.evidence.paths import find_given, find_leading, find_ways
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node


def _ways(graph: Graph, tensor: str) -> list[str]:
    def is_log(at: Node, slot: int) -> bool:
        return at.op_type == "Log"

    def is_neg(at: Node, slot: int) -> bool:
        return at.op_type == "Neg"

    return [at.label for at in find_ways(graph, tensor, is_neg, is_log)]


def test_every_way_and_nothing_beside(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "a"),
        node("Neg", "a", "b"),
        node("Neg", "a", "c"),
        node("Abs", "b", "d"),
        node("Log", "d", "e"),
        node("Log", "c", "f"),
        node("Log", "a", "g"),
        node("Sum", "e f g", "y"),
    ]
    graph = save(make_model(nodes, {"x": [2]}, "y"), tmp_path)
    assert _ways(graph, "x") == ["Neg_a", "Neg_c", "Log_f", "Log_g"]
    assert _ways(graph, "b") == []


def test_the_places_of_what_is_chosen_are_no_values(tmp_path: Path) -> None:
    nodes = [
        node("TopK", "x k", "v places"),
        node("Cast", "places", "p", to=TensorProto.FLOAT),
        node("Log", "v", "a"),
        node("Log", "p", "b"),
        node("Add", "a b", "y"),
    ]
    graph = save(make_model(nodes, {"x": [4]}, "y", {"k": ints(2)}), tmp_path)
    found = find_ways(graph, "x", lambda at, slot: at.op_type != "Add", lambda at, slot: at.op_type == "Log")
    assert [at.label for at in found] == ["TopK_v", "Log_a"]
    assert find_given(graph, "x", lambda at, slot: at.op_type in ("TopK", "Cast")) is None


def test_every_tensor_with_a_way_in_one_pass(tmp_path: Path) -> None:
    """Each node is asked no more than twice a slot, however long a chain is."""
    nodes = [node("Neg", f"t{i}", f"t{i + 1}") for i in range(200)]
    nodes += [
        node("Log", "t200", "y"),
        node("Abs", "t100", "a"),
        node("Log", "a", "z"),
        node("Neg", "x", "w"),
    ]
    graph = save(make_model(nodes, {"t0": [2], "x": [2]}, "y z w"), tmp_path)
    asked = list[str]()

    def is_(op_type: str, at: Node) -> bool:
        asked.append(at.label)
        return at.op_type == op_type

    found = find_leading(graph, lambda at, slot: is_("Neg", at), lambda at, slot: is_("Log", at))
    assert found == {"a", *(f"t{i}" for i in range(201))}
    assert len(asked) <= 2 * len(nodes)


def test_a_long_way_without_recursion(tmp_path: Path) -> None:
    nodes = [node("Neg", f"t{i}", f"t{i + 1}") for i in range(2000)]
    graph = save(make_model([*nodes, node("Log", "t2000", "y")], {"t0": [2]}, "y"), tmp_path)
    assert len(_ways(graph, "t0")) == 2001


def test_a_node_that_stops_a_way_at_one_slot_may_let_another_through(tmp_path: Path) -> None:
    """Whichever comes first."""
    for order in ("a b", "b a"):
        nodes = [node("Neg", "x", "a"), node("Abs", "x", "b"), node("Add", order, "c"), node("Log", "c", "y")]
        graph = save(make_model(nodes, {"x": [2]}, "y"), tmp_path)

        def goes_on(at: Node, slot: int) -> bool:
            return at.op_type != "Add" or at.inputs[slot] == "a"

        found = find_ways(graph, "x", goes_on, lambda at, slot: at.op_type == "Log")
        assert {at.label for at in found} >= {"Neg_a", "Add_c", "Log_y"}


def test_the_output_that_a_way_leads_to(tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a"), node("Neg", "a", "y"), node("Abs", "x", "b"), node("Neg", "b", "z")]
    graph = save(make_model(nodes, {"x": [2]}, "y z"), tmp_path)

    def is_neg(at: Node, slot: int) -> bool:
        return at.op_type == "Neg"

    found = [find_given(graph, name, is_neg) for name in ("x", "a", "y", "b")]
    assert found == ["y", "y", "y", "z"]
    assert find_given(graph, "x", lambda at, slot: at.op_type == "Abs") is None


def test_outputs_that_are_not_entered(tmp_path: Path) -> None:
    nodes = [
        node("Split", "x", "a b", axis=0),
        node("Log", "a", "c"),
        node("Log", "b", "d"),
        node("Concat", "c d", "y", axis=0),
    ]
    graph = save(make_model(nodes, {"x": [2]}, "y"), tmp_path)
    found = find_ways(
        graph,
        "x",
        lambda at, slot: at.op_type == "Split",
        lambda at, slot: at.op_type == "Log",
        lambda at, output: output != "a",
    )
    assert [at.label for at in found] == ["Split_a", "Log_d"]

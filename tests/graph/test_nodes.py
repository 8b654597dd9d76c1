"""The order in which nodes stand: topological, and what is computed from constants alone where it is first read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from overflow_fixer.graph.nodes import Node, delay_fixed

INPUTS, CONSTANTS = ("x", "y"), ("c", "d")


@st.composite
def _nodes(draw: st.DrawFn) -> list[Node]:
    """Nodes in topological order, each of which reads up to three of the tensors before it and writes one or two."""
    known = [*INPUTS, *CONSTANTS]
    found = []
    for index in range(draw(st.integers(0, 12))):
        read = draw(st.lists(st.sampled_from([*known, ""]), max_size=3))
        written = [f"t{index}_{i}" for i in range(draw(st.integers(1, 2)))]
        found.append(Node.of(index, f"n{index}", helper.make_node("Any", read, written, domain="d")))
        known += written
    return found


def _find_constants(nodes: list[Node], are_in_nodes: bool) -> set[str]:
    """With what nodes write that read nothing, where those hold constants too."""
    held = (name for node in nodes if are_in_nodes and not node.reads for name in node.writes)
    return {*CONSTANTS, *held}


def _find_fixed(nodes: list[Node], constants: set[str]) -> set[int]:
    """The nodes that read something, and nothing but constants and what such nodes write."""
    fixed, found = set(constants), set()
    for node in nodes:
        if node.reads and fixed.issuperset(node.reads):
            fixed.update(node.writes)
            found.add(node.index)
    return found


def _find_needed(nodes: list[Node], reader: Node) -> set[int]:
    """The nodes behind what it reads."""
    writers = {name: node for node in nodes for name in node.writes}
    direct = {writers[name].index for name in reader.reads if name in writers}
    return direct.union(*(_find_needed(nodes, nodes[index]) for index in direct))


@pytest.mark.parametrize("are_in_nodes", [False, True])
@given(nodes=_nodes())
def test_a_delayed_node_stands_right_before_what_first_needs_it(
    nodes: list[Node], are_in_nodes: bool
) -> None:
    """One that no other needs stands where what it reads does."""
    constants = _find_constants(nodes, are_in_nodes)
    delayed = delay_fixed(nodes, constants)
    order = [node.index for node in delayed]
    assert sorted(order) == list(range(len(nodes)))
    known = {*INPUTS, *CONSTANTS}
    for node in delayed:
        assert known.issuperset(node.reads)
        known.update(node.writes)
    fixed = _find_fixed(nodes, constants)
    others = [node for node in nodes if node.index not in fixed]
    assert [index for index in order if index not in fixed] == [node.index for node in others]
    needed = {node.index: _find_needed(nodes, node) for node in nodes}
    for index in fixed:
        place = order.index(index)
        follows = [other.index for other in others if order.index(other.index) > place]
        readers = [other.index for other in others if index in needed[other.index]]
        sources = [order.index(source) for source in needed[index]]
        if readers:
            assert follows[0] == min(readers)
        elif fixed & needed[index]:
            assert not {other.index for other in others} & set(order[max(sources) + 1 : place])


def test_what_is_read_early_and_late_stands_before_the_first_reader() -> None:
    """Late through another that is computed from constants."""
    read = ["c", "x t0", "t0", "x t2"]
    nodes = [
        Node.of(i, str(i), helper.make_node("Any", names.split(), [f"t{i}"])) for i, names in enumerate(read)
    ]
    assert [node.index for node in delay_fixed(nodes, CONSTANTS)] == [0, 1, 2, 3]


def test_what_two_others_need_of_one_node_stands_before_the_first_of_them() -> None:
    """c is split in two, of which the one is read before the other."""
    read = [("c", "a"), ("a", "early late"), ("x", "p"), ("p early", "q"), ("q late", "r")]
    nodes = [
        Node.of(i, str(i), helper.make_node("Any", names.split(), written.split()))
        for i, (names, written) in enumerate(read)
    ]
    assert [node.index for node in delay_fixed(nodes, CONSTANTS)] == [2, 0, 1, 3, 4]


def test_what_no_other_needs_stands_behind_every_constant_that_it_reads() -> None:
    """Its first source is an initializer's, its second one a node of its own behind that."""
    read = [("c", "t"), ("", "k"), ("t k", "u"), ("u", "v")]
    nodes = [
        Node.of(i, str(i), helper.make_node("Any", names.split(), [written]))
        for i, (names, written) in enumerate(read)
    ]
    assert [node.index for node in delay_fixed(nodes, (*CONSTANTS, "k"))] == [0, 1, 2, 3]


def test_nothing_moves_where_nothing_is_computed_from_constants() -> None:
    nodes = [Node.of(i, str(i), helper.make_node("Add", [f"t{i}", "c"], [f"t{i + 1}"])) for i in range(3)]
    assert list(delay_fixed(nodes, CONSTANTS)) == nodes


def test_a_long_chain_of_constants_is_no_deep_recursion() -> None:
    names = ["c", *(f"t{i}" for i in range(5000))]
    nodes = [Node.of(i, str(i), helper.make_node("Neg", [names[i]], [names[i + 1]])) for i in range(5000)]
    assert list(delay_fixed(nodes, CONSTANTS)) == nodes


@pytest.mark.parametrize(
    ("slot", "others"), [(0, ("", "a")), (1, ("a", "a")), (2, ("a", "")), (3, ("a", "", "a"))]
)
def test_what_is_beside_a_slot(slot: int, others: tuple[str, ...]) -> None:
    node = Node.of(0, "n", helper.make_node("Clip", ["a", "", "a"], ["y"]))
    assert node.beside(slot) == others

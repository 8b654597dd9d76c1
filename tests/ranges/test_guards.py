"""Which tensors' NaN shows elsewhere, and that it is found there."""

from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from scan_cases import run_marked, save_model, value_info
from ways_to_observe import use_probes

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.guards import find_covers
from overflow_fixer.ranges.observers import ReductionObserver
from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.wanted import Wanted
from overflow_fixer.records import Batch

node = helper.make_node
LIVE = ["x", "z", "a", "r", "y"]
COUNTS = {"x": 6, "z": 2, "a": 6, "r": 6, "y": 6}


def graph_of(path: Path, *nodes: NodeProto) -> Graph:
    inputs = [value_info("x", dims=[3, 2]), value_info("z", dims=[2])]
    return save_model(path, nodes, inputs, [value_info("y")])


def covers_of(graph: Graph, counts: dict[str, int] = COUNTS) -> dict[str, str]:
    sources = find_sources(graph, [name for name in LIVE if name in graph.tensors])
    return find_covers(graph, sources, list(dict.fromkeys(sources.values())), counts)


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div"])
def test_what_arithmetic_reads_shows_in_what_it_writes(tmp_path: Path, operator: str) -> None:
    graph = graph_of(tmp_path / "m.onnx", node("Sin", ["x"], ["a"]), node(operator, ["a", "z"], ["y"]))
    assert covers_of(graph) == {"z": "y", "a": "y"}
    poisons = {"x": np.ones((3, 2)), "z": np.ones(2)}
    for name, value in poisons.items():
        for place in np.ndindex(value.shape):
            feeds = {key: one.astype(np.float32) for key, one in poisons.items()}
            feeds[name][place] = np.nan
            assert np.isnan(run_marked(graph.path, ["y"], feeds)["y"]).any()


def test_a_reshaped_tensor_is_covered_as_itself(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path / "m.onnx",
        node("Sin", ["x"], ["a"]),
        node("Transpose", ["a"], ["r"], perm=[0, 1]),
        node("Mul", ["r", "z"], ["y"]),
    )
    assert covers_of(graph) == {"z": "y", "a": "y"}


@pytest.mark.parametrize("operator", ["Max", "MatMul", "Pow"])
def test_other_operators_may_hide_it(tmp_path: Path, operator: str) -> None:
    graph = graph_of(tmp_path / "m.onnx", node("Sin", ["x"], ["a"]), node(operator, ["a", "z"], ["y"]))
    assert covers_of(graph) == {}


@pytest.mark.parametrize("counts", [{}, {**COUNTS, "y": 0}, {**COUNTS, "a": 0, "z": 0}, {"a": 6, "z": 2}])
def test_an_empty_or_unknown_tensor_covers_none(tmp_path: Path, counts: dict[str, int]) -> None:
    graph = graph_of(tmp_path / "m.onnx", node("Sin", ["x"], ["a"]), node("Add", ["a", "z"], ["y"]))
    assert covers_of(graph, counts) == {}


def test_the_tensors_are_not_searched_one_by_one_for_each(tmp_path: Path) -> None:
    class Unsearched(list[str]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError(f"{name} is searched for in all of them")

    graph = graph_of(tmp_path / "m.onnx", node("Sin", ["x"], ["a"]), node("Add", ["a", "z"], ["y"]))
    sources = find_sources(graph, ["x", "z", "a", "y"])
    assert find_covers(graph, sources, Unsearched(sources), COUNTS) == {"z": "y", "a": "y"}


def test_a_nan_behind_a_chain_of_covers_is_counted_where_it_is(tmp_path: Path) -> None:
    """c and d have no guard; a NaN in c shows in e alone. Native probes have no need of any of this."""
    nodes = [
        node("Sin", ["x"], ["c"]),
        node("Mul", ["c", "w"], ["d"]),
        node("Sub", ["d", "w"], ["e"]),
        node("Relu", ["e"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.float32([1, 0, 2]), "w")
    graph = save_model(
        tmp_path / "m.onnx",
        nodes,
        [value_info("x", dims=[2, 3])],
        [value_info("y", TensorProto.FLOAT)],
        [weight],
    )
    tensors = ["x", "c", "d", "e", "y"]
    with use_probes("operators"):
        observer = ReductionObserver(graph, Wanted(tensors))
        assert observer._covers == [(2, 3), (1, 2)]
        _assert_all_is_counted(observer)


def _assert_all_is_counted(observer: ReductionObserver) -> None:
    values = np.float32([[1, 2, 3], [4, 5, 6]])
    assert observer.observe(Batch("b", {"x": values})).summaries["nan_count"].tolist() == [0] * 5
    values[1, 1] = np.nan
    found = observer.observe(Batch("b", {"x": values})).summaries
    assert found["nan_count"].tolist() == [1] * 5
    assert found["element_count"].tolist() == [6] * 5
    values[1, 1] = 7e4
    found = observer.observe(Batch("b", {"x": values})).summaries
    assert found["over_fp16_count"].tolist() == [1, 0, 0, 0, 0]

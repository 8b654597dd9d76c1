"""Small tensors come into groups, each once, and share a probe that stands behind the last of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from scan_cases import MemoryBatches, save_model, value_info
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.native import LIBRARY
from overflow_fixer.ranges import observers
from overflow_fixer.ranges.sharing import find_small, group_small

COUNT = 150


def save_chain(path: Path, noted: Sequence[object] = (), count: int = COUNT) -> Graph:
    """x, t0, t1, ..., of whose shapes the model notes the first."""
    names = ["x", *(f"t{i}" for i in range(count))]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    save_model(path, nodes, [value_info("x", dims=["n", 2])], [value_info(names[-1])])
    model = onnx.load(path)
    infos = (value_info(f"t{i}", dims=dims) for i, dims in enumerate(noted))
    model.graph.value_info.extend(infos)
    onnx.save(model, path)
    return load_graph(path)


@pytest.mark.parametrize(
    ("dims", "count"),
    [
        ([], 1),
        ([0], None),
        ([-1, 2], None),
        ([0, 5000], None),
        ([4096], 4096),
        ([64, 64], 4096),
        ([4097], None),
        (["n"], None),
        ([None], None),
        (None, None),
    ],
)
def test_small_is_what_is_noted_to_have_at_most_4096_elements(
    dims: object, count: int | None, tmp_path: Path
) -> None:
    graph = save_chain(tmp_path / "m.onnx", [dims, [3, 2]])
    assert find_small(graph, {"x", "t0", "t1"}) == {**({} if count is None else {"t0": count}), "t1": 6}
    assert find_small(graph, {"t2"}) == find_small(graph, ()) == {}


def test_as_many_as_are_held_at_most_are_one_group(tmp_path: Path) -> None:
    graph = save_chain(tmp_path / "m.onnx")
    sixteen = {f"t{i}": 4096 for i in range(16)}
    assert [len(group) for group in group_small(graph, sixteen)] == [16]
    assert [len(group) for group in group_small(graph, {**sixteen, "t16": 1})] == [16, 1]


def test_an_input_is_small_where_its_dimensions_are_fixed(tmp_path: Path) -> None:
    node = helper.make_node("Sin", ["x"], ["y"])
    graph = save_model(tmp_path / "m.onnx", [node], [value_info("x", dims=[2, 3])], [value_info("y")])
    assert find_small(graph, {"x", "y"}) == {"x": 6}


@given(st.dictionaries(st.integers(0, COUNT - 1), st.integers(0, 4096)))
def test_each_is_in_one_group_none_of_which_is_large(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[int, int]
) -> None:
    graph = _chain(tmp_path_factory)
    counts = {f"t{i}": size for i, size in sizes.items()}
    groups = list(group_small(graph, counts))
    assert [name for group in groups for name in group] == [
        f"t{i}" for i in sorted(sizes)
    ]  # as they are written
    held = [sum(counts[name] for name in group) for group in groups]
    assert all(0 < len(group) <= 64 for group in groups)
    assert all(size <= 1 << 16 for size in held)
    for (group, following), size in zip(pairwise(groups), held, strict=False):
        assert len(group) == 64 or size + counts[following[0]] > 1 << 16


_CHAINS: list[Graph] = []


def _chain(factory: pytest.TempPathFactory) -> Graph:
    if not _CHAINS:
        _CHAINS.append(save_chain(factory.mktemp("chain") / "m.onnx"))
    return _CHAINS[0]


def test_what_is_computed_from_constants_stands_where_a_run_writes_it(tmp_path: Path) -> None:
    """That is late, before its first reader: a group is in that order."""
    nodes = [
        helper.make_node("Sin", ["w"], ["late"]),
        helper.make_node("Sin", ["x"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Add", ["b", "late"], ["y"]),
    ]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [1], [1])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x")], [value_info("y")], weights)
    assert list(group_small(graph, dict.fromkeys(["late", "a", "b", "y", "x"], 1))) == [
        ("x", "a", "b", "late", "y")
    ]


def _spy_on_sessions(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that are opened from now on."""
    opened: list[onnx.ModelProto] = []
    open_session = observers.open_session

    def spy(model: onnx.ModelProto, *rest: object, **options: object) -> object:
        opened.append(model)
        return open_session(model, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(observers, "open_session", spy)
    return opened


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_of_notes_that_are_untrue_ranges_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted to be small, they have 12,000 elements in one batch, none in another; and one is not noted."""
    graph = save_chain(tmp_path / "m.onnx", [[3, 2]] * (COUNT - 1))
    opened = _spy_on_sessions(monkeypatch)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((n, 2)).astype(np.float32)} for n in (3, 6000, 0)]
    feeds[1]["x"][5000] = [np.nan, np.inf]
    found = scan_each_way(graph, MemoryBatches(feeds))
    assert [found.by_tensor[name].nan_count for name in ("x", "t0", "t148", "t149")] == [1, 2, 2, 2]
    kinds = [[node.op_type for node in model.graph.node] for model in opened]
    shared = [found.count("SharedProbe") for found in kinds]
    assert shared[:3] == [0, 3, 3]  # outputs, native probes, those with all noted
    assert not any(shared[3:])  # operators
    assert kinds[1].count("SmallProbe") + kinds[1].count("Probe") == 2  # the input, and the last


def _open_noted(
    path: Path, nodes: Sequence[onnx.NodeProto], monkeypatch: pytest.MonkeyPatch
) -> list[onnx.NodeProto]:
    """What a scan runs of a model that notes all its tensors to be [2, 8]; the ranges are right."""
    names = [name for node in nodes for name in node.output]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [8, 8], np.resize([30.0, -30.0], 64))]
    save_model(path, nodes, [value_info("x", dims=[2, 8])], [value_info(names[-1])], weights)
    model = onnx.load(path)
    model.graph.value_info.extend(value_info(name, dims=[2, 8]) for name in names)
    onnx.save(model, path)
    opened = _spy_on_sessions(monkeypatch)
    table = scan_each_way(load_graph(path), MemoryBatches([{"x": np.full((2, 8), 1.5, np.float32)}] * 2))
    assert all(one.seen.nan_count == 0 for one in table.inner)
    return list(opened[1].graph.node)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_a_watch_looks_at_small_factors_itself_and_tells_of_what_it_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is another's values times 1000, of which no scale is told then."""
    nodes = [
        helper.make_node("Sin", ["x"], ["s"]),
        helper.make_node("Constant", [], ["k"], value_float=1000.0),
        helper.make_node("Mul", ["s", "k"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    found = _open_noted(tmp_path / "m.onnx", nodes, monkeypatch)
    (watch,) = [node for node in found if node.op_type == "Watch"]
    assert list(watch.input) == ["y", "", "t"]
    shared = [name for node in found if node.op_type == "SharedProbe" for name in node.input]
    assert "s" in shared
    assert "y" not in shared


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_what_constants_alone_decide_is_looked_at_once_and_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        helper.make_node("Sin", ["w"], ["v"]),
        helper.make_node("Sin", ["x"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    found = _open_noted(tmp_path / "m.onnx", nodes, monkeypatch)
    probes = {node.op_type: list(node.input) for node in found if node.op_type.endswith("Probe")}
    assert probes == {"LastingProbe": ["v"], "SharedProbe": ["x", "s"]}


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_small_tensors_share_a_probe_where_values_inside_nodes_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes are those of the model, which nodes are put into for those."""
    nodes = [
        helper.make_node("LogSoftmax", ["x"], ["a"]),
        helper.make_node("Sin", ["a"], ["b"]),
        helper.make_node("Cos", ["b"], ["y"]),
    ]
    found = _open_noted(tmp_path / "m.onnx", nodes, monkeypatch)
    shared = [list(node.input) for node in found if node.op_type == "SharedProbe"]
    assert len(shared) == 1
    assert {"a", "b", "y"} <= set(shared[0])

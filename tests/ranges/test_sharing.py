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

from overflow_fixer.graph import Graph, load_graph
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
        ([0], 0),
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


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_of_notes_that_are_untrue_ranges_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted to be small, they have 12,000 elements in one batch, none in another; and one is not noted."""
    graph = save_chain(tmp_path / "m.onnx", [[3, 2]] * (COUNT - 1))
    opened: list[onnx.ModelProto] = []
    open_session = observers.open_session

    def spy(model: onnx.ModelProto, *rest: object, **options: object) -> object:
        opened.append(model)
        return open_session(model, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(observers, "open_session", spy)
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

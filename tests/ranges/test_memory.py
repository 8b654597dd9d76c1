"""What native nodes tell in memory stands there as vectors joined would, and the run gives no more than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from scan_cases import MemoryBatches, save_model, value_info

from overflow_fixer.native import DOMAIN, LIBRARY
from overflow_fixer.ranges import collect_ranges, observers
from overflow_fixer.ranges.memory import Memory


def test_each_node_has_a_place_and_those_that_are_read_stay_outputs() -> None:
    memory = Memory()
    for name, count in (("a", 8), ("b", 24), ("c", 8)):
        assert list(memory.add(name, (1,) * count)) == []
    assert memory.finish() == ([], [])
    nodes = [
        helper.make_node("Probe", ["x"], ["c"], domain=DOMAIN),
        helper.make_node("Windows", ["x", "form"], ["s", "m", "b"], domain=DOMAIN),
        helper.make_node("Probe", ["y"], ["a"], domain=DOMAIN),
        helper.make_node("Probe", ["y"], ["another"], domain=DOMAIN),
    ]
    numbers = memory.tell_here(nodes, {"a", "s"})
    assert numbers.tolist() == [0] * 40
    first = numbers.ctypes.data
    assert [[list(one.ints) for one in node.attribute] for node in nodes] == [
        [[first + 8 * 32, 0]],
        [[first + 8 * 8, 0]],
        [[first, 1]],
        [],
    ]
    assert [list(node.output) for node in nodes] == [[""], ["s", "m", ""], ["a"], ["another"]]


def test_nothing_takes_no_room() -> None:
    assert Memory().tell_here([], set()).shape == (0,)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
@pytest.mark.parametrize("observe", ["reductions", "optimized"])
def test_a_run_gives_one_probes_output_and_no_tensor_of_the_model(
    observe: observers.Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the optimiser wrote the model, all vectors leave as before."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Softmax", ["c"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["i"]),
    ]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2, 3, 1, 1], range(6))]
    outputs = [value_info("y"), value_info("i", TensorProto.INT64)]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=["n", 3, 4, 4])], outputs, weights)
    asked: list[list[str]] = []
    run_session = observers.run_session

    def run(session: object, names: tuple[str, ...], *rest: object) -> object:
        asked.append(list(names))
        return run_session(session, names, *rest)

    monkeypatch.setattr(observers, "run_session", run)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((n, 3, 4, 4)).astype(np.float32)} for n in (1, 2, 1)]
    table = collect_ranges(graph, MemoryBatches(feeds), observe=observe)
    assert table.by_tensor["x"].max == max(float(feed["x"].max()) for feed in feeds)
    (names,) = {tuple(found) for found in asked}
    is_all = names[0].startswith("range_probe_all_")
    assert len(names) == 1
    assert is_all == (observe == "optimized")

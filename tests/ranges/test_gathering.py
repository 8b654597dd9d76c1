"""Gathering joins vectors in order, into few outputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from scan_cases import value_info

from overflow_fixer.ranges.gathering import Gathering
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import open_session, run_session


@pytest.mark.parametrize(("count", "output_count"), [(0, 0), (1, 1), (64, 1), (65, 1), (64 * 64 + 1, 2)])
def test_everything_is_there_in_order(tmp_path: Path, count: int, output_count: int) -> None:
    gathering = Gathering("all_")
    nodes = [node for i in range(count) for node in gathering.add(f"x{i % 3}", [1 + i % 3])]
    rest, outputs = gathering.finish()
    assert gathering.lengths == [1 + i % 3 for i in range(count)]
    assert len(outputs) == output_count
    assert all(len(node.input) <= 64 for node in (*nodes, *rest))
    if count:
        graph = helper.make_graph(
            [*nodes, *rest],
            "g",
            [value_info(f"x{i}", dims=[1 + i]) for i in range(3)],
            map(value_info, outputs),
        )
        session = open_session(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path
        )
        feeds = {f"x{i}": np.full(1 + i, i, np.float32) for i in range(3)}
        found = np.concatenate(run_session(session, outputs, Batch("b", feeds)))
        assert found.tolist() == [i % 3 for i in range(count) for _ in range(1 + i % 3)]


def test_names_start_with_the_prefix() -> None:
    gathering = Gathering("mine_")
    nodes = [node for i in range(200) for node in gathering.add(str(i), [1])]
    names = [name for node in (*nodes, *gathering.finish()[0]) for name in node.output]
    assert len(set(names)) == len(names)
    assert all(name.startswith("mine_") for name in names)
    assert isinstance(nodes[0], onnx.NodeProto)

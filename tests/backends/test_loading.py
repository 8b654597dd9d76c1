"""A model loads in pieces where it loads whole, and does not where it does not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.backends.mixed_onnx.loading import cut, find_refusal
from overflow_fixer.graph import load_graph

SAMPLES = Path(__file__).parents[2] / "calib_data"


@pytest.mark.parametrize("name", ["conv_chain", "masked_attention"])
def test_pieces_hold_every_node_once_and_load(name: str) -> None:
    path = SAMPLES / name / "model.onnx"
    graph = load_graph(path)
    pieces = list(cut(graph, 7))
    assert [node.output[0] for piece in pieces for node in piece.graph.node] == [
        n.outputs[0] for n in graph.nodes
    ]
    assert max(len(piece.graph.node) for piece in pieces) == 7
    assert find_refusal(path, 7) is None
    assert find_refusal(path) is None


@pytest.mark.parametrize("piece_nodes", [2, 100])
def test_types_that_do_not_meet_are_refused_in_a_piece_as_in_the_whole(
    tmp_path: Path, piece_nodes: int
) -> None:
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(5)]
    nodes.append(helper.make_node("Add", ["t5", "half"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.float16([1, 2]), "half")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert find_refusal(tmp_path / "m.onnx", piece_nodes) is not None

"""A model loads in pieces where it loads whole, and does not where it does not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typed_models import write_model

from overflow_fixer.backends.mixed_onnx import loading
from overflow_fixer.backends.mixed_onnx.loading import cut, find_fault, find_refusal
from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.sessions.session import open_session

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


@pytest.mark.parametrize("piece_nodes", [1, 2, 3])
def test_pieces_run_one_after_the_other_give_what_the_model_gives(tmp_path: Path, piece_nodes: int) -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) a = Exp(x) b = Neg(y) z = Add(a, b) }"
    graph = load_graph(write_model(tmp_path, text))
    known = {"x": np.float32([-2, 3])}
    expected = open_session(graph.path, tmp_path).run(["y", "z"], known)
    for piece in cut(graph, piece_nodes):
        names, reads = ([info.name for info in infos] for infos in (piece.graph.output, piece.graph.input))
        found = open_session(piece, tmp_path).run(names, {name: known[name] for name in reads})
        known |= dict(zip(names, found, strict=True))
    np.testing.assert_array_equal([known["y"], known["z"]], expected)


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


def test_a_model_with_sequences_is_loaded_whole(tmp_path: Path) -> None:
    """Their types cannot be declared between pieces."""
    text = """g (float[2] x) => (float[2] y) <int64 zero = {0}> {
        a = Relu(x) b = Neg(a) items = SequenceConstruct(a, b) at = SequenceAt(items, zero) y = Add(at, a)
    }"""
    assert find_refusal(write_model(tmp_path, text), 1) is None


def test_a_model_that_loads_only_when_it_is_optimised_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_unless(wanted: bool) -> Any:
        def open_session(model: Any, folder: Path, *, optimize: bool) -> None:
            if optimize is not wanted:
                raise ModelError("no")

        return open_session

    path = write_model(tmp_path, "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for wanted in (False, True):
        monkeypatch.setattr(loading, "open_session", refuse_unless(wanted))
        assert find_refusal(path) is None


@pytest.mark.parametrize(("said", "is_fault"), [("9 : NOT_IMPLEMENTED : no kernel", False), ("no", True)])
def test_a_node_without_a_kernel_is_no_fault(
    said: str, is_fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: Any, folder: Path, *, optimize: bool) -> None:
        raise ModelError(said)

    path = write_model(tmp_path, "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    monkeypatch.setattr(loading, "open_session", refuse)
    assert (find_fault(path) is not None) == is_fault


@pytest.mark.parametrize("piece_nodes", [1, 2, 100])
def test_pieces_load_whatever_the_model_records_of_shapes(tmp_path: Path, piece_nodes: int) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4,12] x) => (float[4,12] y) <float[48] a> { a = Neg(x) b = Exp(a) y = Add(b, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert find_refusal(tmp_path / "m.onnx", piece_nodes) is None

"""Which opset a model has, where it names one, and where it uses none of ONNX's own operators."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph

FLOAT = TensorProto.FLOAT


def _info(name: str, dims: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, dims)


def _save_scaler(folder: Path, *opsets: tuple[str, int], body: onnx.GraphProto | None = None) -> Path:
    """A model of one node of ai.onnx.ml, as converters of trees and the like write them."""
    node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    if body is not None:
        node.attribute.append(helper.make_attribute("body", body))
    graph = helper.make_graph([node], "g", [_info("x", ["n", 4])], [_info("y")])
    imports = [helper.make_opsetid(*opset) for opset in (("ai.onnx.ml", 1), *opsets)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=4)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("named", "opset"),
    [((), 17), ((("", 1),), 17), ((("ai.onnx", 8),), 17), ((("", 9),), 9), ((("", 15),), 15)],
)
def test_a_model_that_uses_no_operator_of_onnx_needs_no_opset(
    tmp_path: Path, named: tuple[tuple[str, int], ...], opset: int
) -> None:
    graph = load_graph(_save_scaler(tmp_path, *named))
    imported = {entry.domain: entry.version for entry in graph.model.opset_import}
    assert (graph.opset, imported) == (opset, {"": opset, "ai.onnx.ml": 1})
    assert graph.dtypes["y"] == FLOAT


def test_an_operator_in_a_body_needs_an_opset(tmp_path: Path) -> None:
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "body", [], [_info("b")])
    with pytest.raises(ModelError, match="names no opset of the ONNX operators that it uses") as caught:
        load_graph(_save_scaler(tmp_path, body=body))
    assert "onnxmltools: target_opset" in str(caught.value)

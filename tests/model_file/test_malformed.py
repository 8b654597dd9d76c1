"""Nodes that are malformed are a fault of the model, told with the checker's words; whatever else fails stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from overflow_fixer import collect_ranges, load_graph, open_calibration
from overflow_fixer.errors import ModelError, PlanError
from overflow_fixer.model_file.malformed import find_refusal, refuse_malformed

SHAPE = (2, 3, 8, 8)
MALFORMED: dict[str, Callable[[], list[NodeProto]]] = {
    "Add of one": lambda: [helper.make_node("Add", ["x"], ["y"], name="n")],
    "Conv without weights": lambda: [helper.make_node("Conv", ["x"], ["y"], name="n")],
    "Flatten of nothing": lambda: [helper.make_node("Flatten", [], ["y"], name="n")],
    "Identity of nothing": lambda: [helper.make_node("Identity", [], ["y"], name="n")],
    "Abs into nothing": lambda: [
        helper.make_node("Abs", ["x"], [], name="n"),
        helper.make_node("Relu", ["x"], ["y"]),
    ],
    "axis as text": lambda: [helper.make_node("LayerNormalization", ["x", "x"], ["y"], "n", axis="a")],
    "axis as fraction": lambda: [helper.make_node("LogSoftmax", ["x"], ["y"], name="n", axis=3.5)],
    "kernel as number": lambda: [helper.make_node("AveragePool", ["x"], ["y"], "n", kernel_shape=3.5)],
}


def _make(nodes: list[NodeProto], **more: object) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    taken = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, taken)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)], **more)


def _scan(folder: Path) -> None:
    graph = load_graph(folder / "m.onnx")
    collect_ranges(graph, open_calibration(folder / "a.npz", graph.inputs))


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_scan_tells_which_node_is_malformed(kind: str, tmp_path: Path) -> None:
    onnx.save(_make(MALFORMED[kind]()), tmp_path / "m.onnx")
    np.savez(tmp_path / "a.npz", x=np.ones(SHAPE, np.float32))
    with pytest.raises(ModelError, match=r"m\.onnx: node 'n' \(\w+\) is malformed: .*Expected nodes") as told:
        _scan(tmp_path)
    assert told.value.__cause__ is not None


def test_nodes_of_bodies_and_functions_are_told_too() -> None:
    broken = helper.make_node("Add", ["x"], ["z"], name="inner")
    body = helper.make_graph([broken], "b", [], [helper.make_tensor_value_info("z", 1, None)])
    branch = helper.make_node("If", ["c"], ["y"], name="outer", then_branch=body, else_branch=body)
    assert (find_refusal(_make([branch])) or "").startswith("node 'inner' (Add) is malformed: ")
    imports = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "f", ["x"], ["z"], [broken], imports)
    model = _make([helper.make_node("f", ["x"], ["y"], domain="own")], functions=[function])
    assert (find_refusal(model) or "").startswith("node 'inner' (Add) is malformed: ")


def test_a_node_without_a_name_goes_by_what_it_writes() -> None:
    told = find_refusal(_make([helper.make_node("Add", ["x"], ["y"])]))
    assert told is not None
    assert told.startswith("node 'y' (Add)")


def test_what_runs_is_not_refused() -> None:
    """Bodies that read what is outside them, tensors whose data lie elsewhere, and operators that ONNX does not know."""
    held = numpy_helper.from_array(np.ones(3, np.float32), "t")
    held.ClearField("raw_data")
    held.data_location = TensorProto.EXTERNAL
    held.external_data.add(key="location", value="nowhere.bin")
    body = helper.make_graph([helper.make_node("Abs", ["x"], ["z"])], "b", [], [])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=held),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Own", ["x"], ["w"], domain="own", axis="any"),
    ]
    assert find_refusal(_make(nodes)) is None


@pytest.mark.parametrize(
    "error", [IndexError("own fault"), PlanError("told"), MemoryError(), KeyboardInterrupt()]
)
def test_other_errors_stay(error: BaseException, tmp_path: Path) -> None:
    """Those over a whole model, and over any where they are no sign of a malformed node."""
    is_whole = isinstance(error, IndexError)
    nodes = [helper.make_node("Abs", ["x"], ["y"])] if is_whole else MALFORMED["Add of one"]()
    onnx.save(_make(nodes), tmp_path / "m.onnx")
    with pytest.raises(type(error)) as told, refuse_malformed(tmp_path / "m.onnx"):
        raise error
    assert told.value is error

"""A tensor and what was chosen of it are compared in one precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ints, make_model, node, save, scalar, scan
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.compared_choice import find_compared_choice
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import PlanPolicy

CONSTANTS = {
    "one": ints(1),
    "zero": ints(0),
    "two": ints(2),
    "k": ints(2),
    "axes": ints(1),
    "half": scalar(0.5),
}
WRITER = node("Mul", "x half", "h")
END = [node("Cast", "c", "m", to=1), node("Mul", "m h", "y")]


def _save(folder: Path, nodes: list[onnx.NodeProto], opset: int = 13) -> Graph:
    return save(make_model(nodes, {"x": [1, 3, 8, 8]}, "y", CONSTANTS, opset), folder)


FORMS: dict[str, tuple[list[onnx.NodeProto], list[str], str, list[str]]] = {
    "the largest": (
        [node("ReduceMax", "h", "b", axes=[1]), node("Equal", "h b", "c")],
        ["ReduceMax_b"],
        "h",
        ["Mul_h"],
    ),
    "peaks": (
        [node("MaxPool", "h", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Equal", "b h", "c")],
        ["MaxPool_b"],
        "h",
        ["Mul_h"],
    ),
    "the largest two": (
        [node("TopK", "h k", "v i", axis=1), node("Slice", "v one two axes", "b"), node("GreaterOrEqual", "h b", "c")],
        ["TopK_v", "Slice_b"],
        "h",
        ["Mul_h"],
    ),
    "both sides are chosen": (
        [node("ReduceMax", "h", "b", axes=[1]), node("Gather", "h one", "a", axis=1), node("Equal", "a b", "c")],
        ["ReduceMax_b", "Gather_a"],
        "h",
        [],
    ),
    "the largest of several": (
        [
            node("Gather", "h zero", "r", axis=1),
            node("Gather", "h one", "g", axis=1),
            node("Max", "r g", "b"),
            node("Equal", "g b", "c"),
        ],
        ["Max_b"],
        "g",
        ["Gather_g"],
    ),
    "of what is fed": (
        [node("ReduceMax", "x", "b", axes=[1]), node("Less", "x b", "c")],
        ["ReduceMax_b"],
        "x",
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tmp_path: Path) -> None:
    nodes, labels, source, lead = FORMS[form]
    (region,) = find_compared_choice(_save(tmp_path, [WRITER, *nodes, *END]))
    assert (list(region.nodes), region.source, list(region.lead), region.output) == (
        labels,
        source,
        lead,
        "c",
    )


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ReduceMean", "h", "b", axes=[1]), node("Less", "h b", "c")],
        [node("ReduceMax", "h", "b", axes=[1]), node("Less", "half b", "c")],
        [node("Equal", "h h", "c")],
        [node("ArgMax", "h", "i", axis=1), node("Shape", "h", "s"), node("Gather", "s one", "t"), node("Less", "i t", "c")],
        [node("Sub", "h half", "b"), node("ReduceMax", "b", "a", axes=[1]), node("Less", "h a", "c")],
    ],
    ids=["a mean", "a constant", "itself", "integers", "another tensor's"],
)  # fmt: skip
def test_others_are_none(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert list(find_compared_choice(_save(tmp_path, [WRITER, *nodes, *END]))) == []


def test_long_chains_are_left(tmp_path: Path) -> None:
    moves = [node("Identity", f"b{step}", f"b{step + 1}") for step in range(40)]
    nodes = [WRITER, node("ReduceMax", "h", "b0", axes=[1]), *moves, node("Equal", "h b40", "c"), *END]
    assert list(find_compared_choice(_save(tmp_path, nodes))) == []


def test_peaks_of_what_is_pinned_are_found(tmp_path: Path) -> None:
    """FP16 would have found none: what a MaxPool rounds is no element of a heat map in FP32."""
    nodes, *_ = FORMS["peaks"]
    model = make_model([WRITER, *nodes, *END], {"x": [1, 3, 8, 8]}, "y", CONSTANTS, 13)
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": x})
    assert plan_precision(graph, ranges, PlanPolicy()).pins == ()
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Mul_h",)))
    assert {pin.node: [f.rule for f in pin.findings] for pin in plan.pins} == {
        "Mul_h": ["user"],
        "MaxPool_b": ["region"],
    }
    (reason,) = (f.reason for f in plan.pins[1].findings)
    assert reason.startswith("in one choice that is compared with Mul_h, which the rule user pins")
    path = tmp_path / "model.onnx"
    right = run_fp32(path, {"x": x})["c"]
    assert (run_fp16(path, {"x": x}, {"h", "b", "c"})["c"] == right).all()
    assert not run_fp16(path, {"x": x}, {"h", "c"})["c"].any()
    assert right.any()


def test_a_pin_of_what_was_chosen_leaves_the_writer_in_fp16(tmp_path: Path) -> None:
    nodes, *_ = FORMS["peaks"]
    model = make_model([WRITER, *nodes, *END], {"x": [1, 3, 8, 8]}, "y", CONSTANTS, 13)
    graph, ranges = scan(model, tmp_path, {"x": np.ones((1, 3, 8, 8), np.float32)})
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("MaxPool_b",)))
    assert [pin.node for pin in plan.pins] == ["MaxPool_b"]


def test_doubles_are_none(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "h", to=TensorProto.DOUBLE), node("ReduceMax", "h", "b", axes=[1]), node("Equal", "h b", "c")]  # fmt: skip
    graph = _save(tmp_path, [*nodes, node("Cast", "c", "y", to=1)])
    assert list(find_compared_choice(graph)) == []

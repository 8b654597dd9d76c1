"""Scores with an offset by group, of which a TopK chooses, and of which FP16 leaves a few steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.offset_choices import find_offset_choices
from overflow_fixer.rules.lost_difference import find_lost_differences

SCORES = np.random.default_rng(4).random((200, 4)).astype(np.float32)
CHOOSES = [node("TopK", "f k", "v i", axis=0), node("Cast", "i", "y", to=onnx.TensorProto.FLOAT)]
FORMS = {
    "a class times 1000": [node("Add", "x classes", "s"), node("Reshape", "s all", "f")],
    "less an offset": [node("Sub", "x classes", "s"), node("Reshape", "s all", "f")],
    "turned about": [
        node("Add", "classes x", "s"),
        node("Transpose", "s", "z"),
        node("Reshape", "z all", "f"),
    ],
    "under a mask": [
        node("Add", "x classes", "s"),
        node("Where", "mask s least", "z"),
        node("Reshape", "z all", "f"),
    ],
}
OTHERWISE = {
    "no sum": [node("Reshape", "x all", "f")],
    "a product": [node("Mul", "x classes", "s"), node("Reshape", "s all", "f")],
    "what an activation makes of it": [
        node("Add", "x classes", "s"),
        node("Tanh", "s", "e"),
        node("Reshape", "e all", "f"),
    ],
}


def _scan(folder: Path, form: list[onnx.NodeProto], last: float = 3000.0, x: np.ndarray = SCORES) -> Any:
    constants = {
        "classes": np.linspace(0, 1, 4, dtype=np.float32) * last,
        "all": ints(-1),
        "k": ints(20),
        "mask": np.arange(200)[:, None] % 3 > 0,
        "least": scalar(-1),
    }
    model = make_model([*form, *CHOOSES], {"x": [200, 4]}, "y", constants, opset=13)
    return scan(model, folder, {"x": x})


@pytest.mark.parametrize("form", FORMS)
def test_the_places_are_right_with_the_pins(form: str, tmp_path: Path) -> None:
    sign = -1 if form == "less an offset" else 1
    graph, ranges = _scan(tmp_path, FORMS[form], sign * 3000.0)
    (found,) = find_offset_choices(graph, ranges)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert found.nodes[0].writes == ("s",)
    assert {graph.producers["s"].label, graph.producers["f"].label, "TopK_v"} <= set(pinned)
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _share_not_chosen(tmp_path, set()) > 0.5
    assert _share_not_chosen(tmp_path, fp32) == 0


def _share_not_chosen(folder: Path, fp32_nodes: set[str]) -> float:
    right = run_fp32(folder / "model.onnx", {"x": SCORES})["i"]
    found = run_fp16(folder / "model.onnx", {"x": SCORES}, fp32_nodes)["i"]
    return len({*right.tolist()} - {*found.tolist()}) / len(right)


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["a class times 1000"])
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Add_s")
    assert (found.tensor, found.value, found.limit) == ("s", SCORES.max(), 64 * 2)
    assert found.reason.startswith("TopK TopK_v tells the places of what is 3000.")


@pytest.mark.parametrize("form", OTHERWISE)
def test_other_choices_tell_nothing(form: str, tmp_path: Path) -> None:
    assert list(find_offset_choices(*_scan(tmp_path, OTHERWISE[form]))) == []


def test_where_no_place_is_read_nothing_is_told(tmp_path: Path) -> None:
    nodes = [node("Add", "x offset", "s"), node("TopK", "s k", "y places", axis=0)]
    model = make_model(nodes, {"x": [200, 4]}, "y", {"offset": np.float32([3000.0]), "k": ints(20)}, opset=13)
    assert list(find_offset_choices(*scan(model, tmp_path, {"x": SCORES}))) == []


@pytest.mark.parametrize(("largest", "count"), [(2.0, 0), (1.99, 1)])
def test_as_many_steps_tell_nothing(largest: float, count: int, tmp_path: Path) -> None:
    """At 48 FP16's steps are 1/32."""
    x = (SCORES * np.float32(1.9)).astype(np.float32)
    x[0, 3] = largest
    assert len(list(find_offset_choices(*_scan(tmp_path, FORMS["a class times 1000"], 48.0, x)))) == count


def test_rows_that_a_mask_reaches_beside_others_tell_nothing(tmp_path: Path) -> None:
    """Those that are chosen last are masked; the order of the others is right."""
    x = SCORES.copy()
    nodes = [node("Add", "x mask", "s"), node("Reshape", "s all", "f"), *CHOOSES]
    mask = np.where(np.arange(800).reshape(200, 4) < 10, 0, -10000).astype(np.float32)
    model = make_model(nodes, {"x": [200, 4]}, "y", {"mask": mask, "all": ints(-1), "k": ints(20)}, opset=13)
    assert list(find_offset_choices(*scan(model, tmp_path, {"x": x}))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    x = SCORES.copy()
    x[0, 0] = value
    assert list(find_offset_choices(*_scan(tmp_path, FORMS["a class times 1000"], x=x))) == []

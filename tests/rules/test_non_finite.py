"""NaN and infinity that FP32 itself gives pin what writes and what reads them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.rules.non_finite import find_non_finite


def _log_model() -> object:
    return make_model([node("Log", "x", "l"), node("Exp", "l", "e"), node("Neg", "e", "y")], {"x": [4]}, "y")


def test_pins_producer_and_consumers(tmp_path: Path) -> None:
    graph, ranges = scan(_log_model(), tmp_path, {"x": floats(1, 1, 1, 1)}, {"x": floats(1, 0, 2, 3)})
    assert pinned_by(find_non_finite, graph, ranges) == ["Log_l", "Exp_e"]
    found = ask(find_non_finite, graph, ranges)[0]
    assert (found.tensor, found.value, found.limit, found.batch) == ("l", math.inf, 65504, "batch_1")
    assert "0 NaN and 1 infinite" in found.reason


@pytest.mark.parametrize("position", range(4))
def test_nan_is_found_wherever_it_stands(position: int, tmp_path: Path) -> None:
    x = floats(1, 2, 3, 4)
    x[position] = -1
    graph, ranges = scan(_log_model(), tmp_path, {"x": x})
    assert pinned_by(find_non_finite, graph, ranges) == ["Log_l", "Exp_e", "Neg_y"]
    found = ask(find_non_finite, graph, ranges)[0]
    assert "1 NaN and 0 infinite" in found.reason
    assert found.batch is None


def test_nothing_but_nan(tmp_path: Path) -> None:
    graph, ranges = scan(_log_model(), tmp_path, {"x": floats(-1, -1, -1, -1)})
    assert all(math.isnan(found.value) for found in ask(find_non_finite, graph, ranges))
    assert pinned_by(find_non_finite, graph, ranges) == ["Log_l", "Exp_e", "Neg_y"]


def test_finite_values_are_no_reason_however_large(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(3.4e38, -3.4e38)})
    assert ask(find_non_finite, graph, ranges) == []


def test_an_infinite_constant_pins_its_readers(tmp_path: Path) -> None:
    model = make_model([node("Add", "x c", "y")], {"x": [2]}, "y", {"c": floats(0, -np.inf)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)})
    found = [f for f in ask(find_non_finite, graph, ranges) if f.tensor == "c"]
    assert [(f.node, f.value, f.batch) for f in found] == [("Add_y", math.inf, None)]


@pytest.mark.parametrize(("op", "bound"), [("Max", -math.inf), ("Min", math.inf)])
def test_an_infinite_bound_is_no_reason(op: str, bound: float, tmp_path: Path) -> None:
    model = make_model([node(op, "x c", "y")], {"x": [2]}, "y", {"c": scalar(bound)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)})
    assert ask(find_non_finite, graph, ranges) == []


@pytest.mark.parametrize(
    ("elem_type", "where"), [(TensorProto.FLOAT, "in FP32"), (TensorProto.FLOAT16, "as the model stands")]
)
def test_what_computed_it_is_said(elem_type: int, where: str, tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "narrow", to=elem_type),
        node("Log", "narrow", "l"),
        node("Cast", "l", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y"), tmp_path, {"x": floats(1, 0)})
    found = ask(find_non_finite, graph, ranges)
    assert {f.reason.partition("infinite values ")[2].partition(";")[0] for f in found} == {where}


def test_of_a_constant_its_own_elements_are_told_however_many_batches(tmp_path: Path) -> None:
    constants = {"c": floats(math.inf, math.nan, 1, -math.inf)}
    model = make_model([node("Add", "x c", "y")], {"x": [4]}, "y", constants)
    graph, ranges = scan(model, tmp_path, *[{"x": floats(1, 2, 3, 4)}] * 3)
    told = {one.tensor: one.reason for one in ask(find_non_finite, graph, ranges)}
    assert told["c"].startswith("reads c, which holds 1 NaN and 2 infinite values")
    assert told["y"].startswith("writes y, which holds 3 NaN and 6 infinite values")

"""Layers whose bias takes away nearly all of what their weights make."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scan

from overflow_fixer.evidence.features.cancelled_biases import find_cancelled_biases
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

RNG = np.random.default_rng(0)
MEANS, SCALES = floats(1013, 300, 640, 85), floats(1.2, 0.8, 2, 1)
FEATURES = (MEANS + SCALES * RNG.normal(size=(16, 4))).astype(np.float32)
_FOLDED = RNG.normal(size=(4, 8)) / SCALES[:, None]
ML = "ai.onnx.ml"
CONSTANTS = {
    "w": _FOLDED.astype(np.float32),
    "b": (-MEANS @ _FOLDED).astype(np.float32),
    "half": (-MEANS @ _FOLDED / 2).astype(np.float32),
    "kernel": _FOLDED.T[..., None].astype(np.float32),
    "turned": _FOLDED[..., None].astype(np.float32),
    "far": floats(1013.1),
    "axis": ints(2),
}


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray, **constants: np.ndarray
) -> tuple[Graph, RangeTable]:
    dims: list[Any] = [None, *batches[0].shape[1:]]
    model = make_model(nodes, {"x": dims}, "y", CONSTANTS | constants)
    return scan(model, folder, *({"x": x} for x in batches))


def test_a_folded_scaler_is_pinned_and_right_with_the_pin(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Gemm", "x w b", "h"), node("Relu", "h", "y")], FEATURES)
    assert pinned_by(find_lost_differences, graph, ranges) == ["Gemm_h"]
    assert measure_snr_db(tmp_path / "model.onnx", {"x": FEATURES}, set()) < 20
    assert measure_snr_db(tmp_path / "model.onnx", {"x": FEATURES}, {"h"}) > 60


def test_the_numbers_are_those_of_the_layer(tmp_path: Path) -> None:
    batches = FEATURES, FEATURES * np.float32(1.001)
    graph, ranges = _scan(tmp_path, [node("Gemm", "x w b", "y")], *batches)
    (found,) = ask(find_lost_differences, graph, ranges)
    y = [x.astype(np.float64) @ CONSTANTS["w"] + CONSTANTS["b"] for x in batches]
    assert (found.tensor, found.batch) == ("y", "batch_1")
    assert found.value == pytest.approx(np.abs(y[1]).max(), rel=1e-4)
    bias = np.abs(CONSTANTS["b"]).max()
    assert 1024 < bias < 2048
    assert found.limit == 32
    assert found.reason == (
        f"y is {found.value:.6g} at most, and is what Gemm Gemm_y leaves of products and a bias of up to {bias:.6g}, which lose "
        "much: FP16's steps are 1 there"
    )


@pytest.mark.parametrize(("left", "is_found"), [(31.99, True), (32.0, False), (1e-3, False)])
def test_less_than_32_steps_are_lost_and_none_that_fp32_rounds_too(
    left: float, is_found: bool, tmp_path: Path
) -> None:
    """A bias of -1024 - 1/8, where the steps are 1; FP32 rounds sums of 1024 by 1e-4."""
    x, bias = floats(1024.125 + left)[None], floats(-1024.125)
    graph, ranges = _scan(tmp_path, [node("Gemm", "x one bias", "y")], x, one=floats(1)[None], bias=bias)
    assert bool(list(find_cancelled_biases(graph, ranges))) == is_found


_UNFOLD = node("Unsqueeze", "x axis", "u", name="u")


@pytest.mark.parametrize(
    ("nodes", "pins"),
    [
        ([_UNFOLD, node("Conv", "u kernel b", "y")], ["u", "Conv_y"]),
        ([_UNFOLD, node("ConvTranspose", "u turned b", "y")], ["u", "ConvTranspose_y"]),
        ([node("Gemm", "x w half", "y", beta=2.0)], ["Gemm_y"]),
        ([node("Gemm", "x w half", "y")], []),
        ([node("Gemm", "x w", "y")], []),
        ([node("Neg", "b", "c"), node("Neg", "c", "d"), node("Gemm", "x w d", "y")], []),  # computed
        ([node("Round", "x", "i"), node("Gemm", "i w b", "y")], []),  # held
        (
            [node("Sub", "x far", "s"), node("Add", "s far", "a"), node("Gemm", "a w b", "y")],
            ["Sub_s", "Add_a", "Gemm_y"],
        ),
    ],
)
def test_layers_and_what_they_read(nodes: list[onnx.NodeProto], pins: list[str], tmp_path: Path) -> None:
    """What writes x is rounded as x is, and so is what that is of, as far as it is as large."""
    graph, ranges = _scan(tmp_path, nodes, FEATURES)
    found = [one.label for lost in find_cancelled_biases(graph, ranges) for one in lost.nodes]
    assert sorted(found) == sorted(pins)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_none_of_what_is_not_finite_or_empty(broken: float, tmp_path: Path) -> None:
    x = FEATURES.copy()
    x[0, 0] = broken
    layer = [node("Gemm", "x w b", "y")]
    for batch, constants in (
        (x, {}),
        (FEATURES[:0], {}),
        (FEATURES, {"b": CONSTANTS["b"] * np.float32(broken)}),
        (FEATURES * 100, {"b": CONSTANTS["b"] * 100}),  # over FP16's largest
    ):
        graph, ranges = _scan(tmp_path, layer, batch, **constants)
        assert list(find_cancelled_biases(graph, ranges)) == []


@pytest.mark.parametrize(
    ("front", "pinned"), [("Concat", ["Concat_c"]), ("Identity", ["Identity_c"]), ("", [])]
)
def test_what_joins_the_columns_of_a_linear_regressor(front: str, pinned: list[str], tmp_path: Path) -> None:
    weights = _FOLDED[:, 0].tolist()
    regressor = node(
        "LinearRegressor",
        "c" if front else "x",
        "y",
        coefficients=weights,
        intercepts=[float(CONSTANTS["b"][0])],
        domain=ML,
    )
    attributes = {"axis": 1} if front == "Concat" else {}
    nodes = [*([node(front, "x", "c", **attributes)] if front else []), regressor]
    model = make_model(nodes, {"x": [None, 4]}, "y")
    model.opset_import.append(onnx.helper.make_opsetid(ML, 3))
    graph, ranges = scan(model, tmp_path, {"x": FEATURES})
    assert pinned_by(find_lost_differences, graph, ranges) == pinned


def test_columns_that_an_imputer_hands_on_to_a_linear_regressor(tmp_path: Path) -> None:
    nodes = [
        node("Concat", "x", "c", axis=1),
        node("Imputer", "c", "i", imputed_value_floats=[0.0], replaced_value_float=math.nan, domain=ML),
        node(
            "LinearRegressor",
            "i",
            "y",
            coefficients=_FOLDED[:, 0].tolist(),
            intercepts=[float(CONSTANTS["b"][0])],
            domain=ML,
        ),
    ]
    model = make_model(nodes, {"x": [None, 4]}, "y")
    model.opset_import.append(onnx.helper.make_opsetid(ML, 3))
    graph, ranges = scan(model, tmp_path, {"x": FEATURES})
    assert pinned_by(find_lost_differences, graph, ranges) == ["Concat_c"]

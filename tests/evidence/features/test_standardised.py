"""Features that constants of the model standardise, and of which FP16 loses much before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.rules.lost_difference import find_lost_differences

MEAN, DEVIATION = floats(1013.25, 3), floats(1.25, 2)
FEATURES = floats([1012.1, 4.7], [1014.6, 1.1])
CONSTANTS = {
    "mean": MEAN,
    "minus": -MEAN,
    "s": DEVIATION,
    "k": 1 / DEVIATION,
    "shift": -MEAN / DEVIATION,
    "one": floats(1, 1),
    "zero": floats(0, 0),
    "v": DEVIATION**2,
    "two": scalar(2),
    "first": ints(0),
}
FORMS = {
    "divided": ([node("Sub", "x mean", "d"), node("Div", "d s", "z")], ["Sub_d"]),
    "multiplied": ([node("Sub", "x mean", "d"), node("Mul", "k d", "z")], ["Sub_d"]),
    "added": ([node("Add", "minus x", "d"), node("Div", "d s", "z")], ["Add_d"]),
    "normalised": ([node("BatchNormalization", "x one zero mean v", "z")], ["BatchNormalization_z"]),
    "scaled first": ([node("Mul", "x k", "a"), node("Add", "a shift", "z")], ["Mul_a", "Add_z"]),
    "beside another input": ([node("Concat", "x w", "b", axis=0), node("Sub", "b mean", "d"), node("Div", "d s", "z")],
        ["Concat_b", "Sub_d"]),
    "less it": ([node("Sub", "mean x", "d"), node("Div", "d s", "z")], ["Sub_d"]),
}  # fmt: skip


def _scan(folder: Path, nodes: list[onnx.NodeProto], x: Any, **constants: Any) -> tuple[Any, Any]:
    fed = {"x": np.asarray(x, np.float32), "w": FEATURES}
    inputs: dict[str, Any] = {name: [2, 2] for name in fed if name not in constants}
    model = make_model([*nodes, node("Sigmoid", "z", "y")], inputs, "y", CONSTANTS | constants)
    return scan(model, folder, {name: fed[name] for name in inputs})


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tmp_path: Path) -> None:
    nodes, pinned = FORMS[form]
    graph, ranges = _scan(tmp_path, nodes, FEATURES)
    assert pinned_by(find_lost_differences, graph, ranges) == pinned


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["divided"][0], FEATURES)
    (found,) = ask(find_lost_differences, graph, ranges)
    assert (found.tensor, found.batch) == ("z", "batch_0")
    assert found.value == pytest.approx((1014.6 - 1013.25) / 1.25, rel=1e-4)
    assert found.limit == pytest.approx(64 * 0.5 / 1.25)
    assert "z is 1.07998 at most" in found.reason
    assert (
        "is what x has beside 1013.25, times 0.8, in a feature of it: FP16's steps are 0.5 there, and 0.4 behind"
        in found.reason
    )


ANOTHER = np.float32([[1012.1, 104.7], [1014.6, -101.1]])
"""Of the second feature far more is left, so that the difference shows nothing of the first."""
PROJECTIONS = {
    "by a matrix": [node("MatMul", "d w", "z")],
    "and scaled": [node("Gemm", "d turned far", "p", transB=1), node("Mul", "p k", "z")],
    "scaled before": [node("Div", "d spans", "e"), node("Identity", "e", "i"), node("MatMul", "i full", "z")],
    "by two": [node("MatMul", "d large", "p"), node("Add", "p far", "q"), node("MatMul", "q small", "z")],
}
_W = np.float32([[0.8, 0], [0.002, 0.01]])
MATRICES = {
    "w": _W,
    "turned": (_W * DEVIATION).T.copy(),
    "far": floats(0.5, 0),
    "spans": floats(1.25, 100),
    "full": np.float32([[1, 0.5], [-0.5, 1]]),
    "large": np.float32([[1, 0], [0, 1]]),
    "small": _W,
}


@pytest.mark.parametrize("form", PROJECTIONS)
def test_what_constant_matrices_make_of_features_less_their_mean(form: str, tmp_path: Path) -> None:
    nodes = [node("Sub", "x mean", "d"), *PROJECTIONS[form]]
    graph, ranges = _scan(tmp_path, nodes, ANOTHER, **MATRICES)
    assert pinned_by(find_lost_differences, graph, ranges) == ["Sub_d"]


def test_a_matrix_that_reads_little_of_the_feature(tmp_path: Path) -> None:
    nodes = [node("Sub", "x mean", "d"), node("MatMul", "d w", "z")]
    graph, ranges = _scan(tmp_path, nodes, ANOTHER, w=_W[::-1].copy())
    assert ask(find_lost_differences, graph, ranges) == []


@pytest.mark.parametrize(("largest", "is_found"), [(25.59, True), (25.61, False)])
def test_the_limit_is_64_steps(largest: float, is_found: bool, tmp_path: Path) -> None:
    x = floats([1013.25, 3 + 2 * largest], [1012.1, 1.1])
    graph, ranges = _scan(tmp_path, FORMS["divided"][0], x)
    assert bool(ask(find_lost_differences, graph, ranges)) == is_found


@pytest.mark.parametrize(
    ("x", "constants"),
    [
        ([[1012, 4], [1014, 1]], {}),  # FP16 holds it
        ([[math.nan, 4.7], [1014.6, 1.1]], {}),
        ([[math.inf, 4.7], [1014.6, 1.1]], {}),
        (FEATURES, {"mean": floats(1e30, 3)}),  # over the threshold by itself
        (FEATURES, {"s": floats(math.inf, 2)}),
        (MEAN + np.zeros((2, 2)), {}),  # nothing but zeros
        (FEATURES, {"mean": floats(0, 0)}),
    ],
)
def test_nothing_is_concluded(x: Any, constants: dict[str, Any], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["divided"][0], x, **constants)
    assert ask(find_lost_differences, graph, ranges) == []


@pytest.mark.parametrize("first", ["x b", "b x"])
def test_what_a_layer_gives_out_is_no_feature(first: str, tmp_path: Path) -> None:
    """Nor is what it is put beside."""
    nodes = [
        node("Add", "x w", "b"),
        node("Sub", "b mean", "d"),
        node("Div", "d s", "e"),
        node("BatchNormalization", "b one zero mean v", "n"),
        node("Concat", first, "c", axis=0),
        node("Sub", "c mean", "f"),
        node("Concat", "e n f", "z", axis=0),
    ]
    graph, ranges = _scan(tmp_path, nodes, FEATURES)
    assert ask(find_lost_differences, graph, ranges) == []


def test_features_that_never_varied_are_left_out_of_a_norm(tmp_path: Path) -> None:
    """Of a variance of zero it makes a factor of 316."""
    x = np.concatenate([300 * np.ones((2, 1)) + 0.1, np.float32([[40.1], [3.3]])], axis=1)
    graph, ranges = _scan(tmp_path, FORMS["normalised"][0], x, mean=floats(300.1, 20), v=floats(0, 400))
    assert ask(find_lost_differences, graph, ranges) == []


def test_a_norm_that_trains_reads_no_mean(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x one zero mean v", "z m n", training_mode=1)]
    graph, ranges = _scan(tmp_path, nodes, FEATURES)
    assert ask(find_lost_differences, graph, ranges) == []


@pytest.mark.parametrize("nodes", [
    [node("Sub", "x mean", "d"), node("Div", "s d", "z")],
    [node("Sub", "x mean", "d"), node("Mul", "d x", "z")],
    [node("Sub", "x mean", "d"), node("Pow", "d two", "z")],
])  # fmt: skip
def test_other_readers_are_no_factor(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    """The difference is fed, and told of by itself."""
    graph, ranges = _scan(tmp_path, nodes, FEATURES)
    assert {found.tensor for found in ask(find_lost_differences, graph, ranges)} == {"d"}


def test_a_table_of_many_columns_is_fed(tmp_path: Path) -> None:
    names = [f"c{index}" for index in range(40)]
    nodes = [
        node("Concat", " ".join(names), "b", axis=1),
        node("Sub", "b mean", "d"),
        node("Div", "d s", "y"),
    ]
    constants = {"mean": np.float32([1013.25] * 40), "s": np.float32([1.25] * 40)}
    model = make_model(nodes, {name: [2, 1] for name in names}, "y", constants)
    graph, ranges = scan(model, tmp_path, {name: floats([1012.1], [1014.6]) for name in names})
    assert pinned_by(find_lost_differences, graph, ranges) == ["Concat_b", "Sub_d"]


ML = {"domain": "ai.onnx.ml"}
SCALER = node("Scaler", "b", "z", offset=MEAN.tolist(), scale=(1 / DEVIATION).tolist(), **ML)
COLUMNS = {"p": floats([1012.1], [1014.6]), "w": floats([4.7], [1.1])}
PIPELINES = {
    "scaled": ([node("Concat", "p w", "b", axis=1)], ["Concat_b"]),
    "imputed": (
        [
            node("Concat", "p w", "a", axis=1),
            node("Imputer", "a", "b", imputed_value_floats=[1013.0, 3.0], **ML),
        ],
        ["Concat_a"],
    ),
    "chosen": (
        [node("Concat", "w p", "a", axis=1), node("ArrayFeatureExtractor", "a turned", "b", **ML)],
        ["Concat_a"],
    ),
    "joined as FP32": ([node("FeatureVectorizer", "p w", "b", inputdimensions=[1, 1], **ML)], []),
    "what a layer gives out": ([node("Concat", "p w", "a", axis=1), node("Gemm", "a k", "b")], []),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_columns_that_a_scaler_of_ai_onnx_ml_reads(name: str, tmp_path: Path) -> None:
    nodes, pinned = PIPELINES[name]
    used = {read for one in nodes for read in one.input}
    constants = {"turned": ints(1, 0), "k": np.eye(2, dtype=np.float32)}
    model = make_model(
        [*nodes, SCALER, node("Sigmoid", "z", "y")],
        {column: [2, 1] for column in COLUMNS},
        "y",
        {read: constants[read] for read in used & constants.keys()},
    )
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    graph, ranges = scan(model, tmp_path, COLUMNS)
    assert pinned_by(find_lost_differences, graph, ranges) == pinned


def test_a_matrix_without_columns(tmp_path: Path) -> None:
    """As a head of no classes, or padding of none, has it."""
    nodes = [node("Sub", "x mean", "d"), node("MatMul", "d w", "z")]
    graph, ranges = _scan(tmp_path, nodes, ANOTHER, w=np.zeros((2, 0), np.float32))
    assert ask(find_lost_differences, graph, ranges) == []

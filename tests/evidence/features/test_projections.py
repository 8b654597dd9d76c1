"""What constant matrices, factors and shifts make of a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, make_model, node, save

from overflow_fixer.evidence.features import projections
from overflow_fixer.evidence.features.projections import list_projections, list_scaled
from overflow_fixer.graph.model import Graph

RNG = np.random.default_rng(0)
W, V = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32)
CONSTANTS = {
    "w": W,
    "v": V,
    "turned": W.T.copy(),
    "three": floats(1, 2, 4),
    "four": floats(2, 4, 8, 16),
    "two": floats(2),
    "column": np.ones((5, 1), np.float32),
}
ML = "ai.onnx.ml"
REGRESSOR = node(
    "LinearRegressor", "x", "y", coefficients=[1.0, 2, 3, 4, 5, 6], intercepts=[7.0, 8], targets=2, domain=ML
)


def _save(folder: Path, nodes: list[onnx.NodeProto]) -> Graph:
    used = {read for one in nodes for read in one.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    model = make_model(nodes, {"x": [5, 3]}, nodes[-1].output[0], constants)
    model.opset_import.append(onnx.helper.make_opsetid(ML, 3))
    return save(model, folder)


@pytest.mark.parametrize(
    ("nodes", "made"),
    [
        ([node("MatMul", "x w", "y")], {"y": W}),
        ([node("Gemm", "x turned four", "y", transB=1, alpha=0.5)], {"y": W / 2}),
        ([node("Mul", "three x", "a"), node("MatMul", "a w", "y")], {"y": CONSTANTS["three"][:, None] * W}),
        ([node("MatMul", "x w", "p"), node("Div", "p four", "y")], {"p": W, "y": W / CONSTANTS["four"]}),
        (
            [node("MatMul", "x w", "p"), node("Sub", "four p", "q"), node("MatMul", "q v", "y")],
            {"p": W, "q": W, "y": W @ V},
        ),
        ([node("Mul", "w two", "u"), node("MatMul", "x u", "y")], {"y": 2 * W}),
        ([REGRESSOR], {"y": [[1, 4], [2, 5], [3, 6]]}),
        ([node("MatMul", "x w", "p"), node("Relu", "p", "y")], {"p": W}),
        ([node("Div", "three x", "a"), node("MatMul", "a w", "y")], {}),
        ([node("Mul", "x x", "a"), node("MatMul", "a w", "y")], {}),
        ([node("Transpose", "x", "a"), node("Gemm", "a w", "y", transA=1)], {}),
        ([node("MatMul", "turned x", "y")], {}),
        ([node("Gemm", "x w", "y", transA=1)], {}),
        ([node("Mul", "x column", "a"), node("MatMul", "a w", "y")], {}),
    ],
)
def test_what_is_made_and_how(nodes: list[onnx.NodeProto], made: dict[str, Any], tmp_path: Path) -> None:
    graph = _save(tmp_path, nodes)
    found = dict(list_projections(graph, "x"))
    assert found.keys() == made.keys()
    for name, matrix in found.items():
        assert matrix == pytest.approx(np.asarray(made[name]), rel=1e-6)


def test_larger_matrices_are_not_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _save(tmp_path, [node("MatMul", "x w", "p"), node("MatMul", "p v", "y")])
    monkeypatch.setattr(projections, "_MOST_ELEMENTS", 11)
    assert list(list_projections(graph, "x")) == []


def test_factors_in_a_row(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x three", "a"),
        node("Add", "a two", "b"),
        node("Div", "b two", "c"),
        node("Exp", "c", "y"),
    ]
    found = {name: factor.tolist() for name, factor in list_scaled(_save(tmp_path, nodes), "x")}
    assert found == {"x": [1], "a": [1, 2, 4], "b": [1, 2, 4], "c": [0.5, 1, 2]}


def test_six_in_a_row_are_followed(tmp_path: Path) -> None:
    row = [node("MatMul", "x w", "p0"), *(node("Mul", f"p{i} two", f"p{i + 1}") for i in range(7))]
    graph = _save(tmp_path, row)
    assert [name for name, _ in list_projections(graph, "x")] == [f"p{i}" for i in range(6)]
    assert [name for name, _ in list_scaled(graph, "p0")] == [f"p{i}" for i in range(7)]

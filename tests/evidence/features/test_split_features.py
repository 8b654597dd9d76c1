"""Features that trees split between thresholds that FP16 hardly tells apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scan

from overflow_fixer.rules.lost_difference import find_lost_differences

ML = {"domain": "ai.onnx.ml"}
COLUMNS = {"p": floats([1010.3], [1014.6]), "w": floats([4.7], [1.1])}
JOINED = node("Concat", "p w", "x", axis=1)
NEAR = (1009.25, 1010.2, 1011.3, 1012.1, 1013.2, 1014.3, 1015.6, 1017.375)


def make_tree(thresholds: Any, feature: int = 0, mode: str = "BRANCH_LEQ") -> onnx.NodeProto:
    """One tree, whose nodes compare the feature with one threshold after another."""
    count = len(thresholds)
    ids = list(range(2 * count + 1))
    return node(
        "TreeEnsembleRegressor",
        "x",
        "y",
        n_targets=1,
        nodes_treeids=[0] * len(ids),
        nodes_nodeids=ids,
        nodes_featureids=[feature] * count + [0] * (count + 1),
        nodes_values=[*map(float, thresholds), *[0.0] * (count + 1)],
        nodes_modes=[mode] * count + ["LEAF"] * (count + 1),
        nodes_truenodeids=[count + index for index in range(count)] + [0] * (count + 1),
        nodes_falsenodeids=[*range(1, count), 2 * count] + [0] * (count + 1),
        target_treeids=[0] * (count + 1),
        target_nodeids=ids[count:],
        target_ids=[0] * (count + 1),
        target_weights=[float(index) for index in range(count + 1)],
        **ML,
    )


def _scan(folder: Path, tree: onnx.NodeProto, columns: Any = COLUMNS, front: Any = (JOINED,)) -> Any:
    used = {read for one in front for read in one.input}
    constants = {"k": np.eye(2, dtype=np.float32)} if "k" in used else {}
    model = make_model([*front, tree], {name: [2, 1] for name in columns}, "y", constants)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    return scan(model, folder, columns)


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])
def test_what_joins_the_features_is_pinned_and_not_the_tree(mode: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, make_tree(NEAR, mode=mode))
    assert pinned_by(find_lost_differences, graph, ranges) == ["Concat_x"]


def test_the_evidence(tmp_path: Path) -> None:
    (found,) = ask(find_lost_differences, *_scan(tmp_path, make_tree(NEAR)))
    assert (found.tensor, found.limit, found.batch) == ("x", 256 * 0.5, None)
    assert found.value == 8.125
    assert found.reason == (
        "TreeEnsembleRegressor TreeEnsembleRegressor_y splits feature 0 of x at numbers of up to 1017.38 that are at most 8.125 "
        "apart: FP16's steps are 0.5 there"
    )


@pytest.mark.parametrize(("least", "is_found"), [(889.5, True), (889.3, False)])
def test_the_limit_is_256_steps(least: float, is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, make_tree(np.linspace(least, 1017.4, 8)))
    assert bool(ask(find_lost_differences, graph, ranges)) == is_found


@pytest.mark.parametrize("thresholds", [
    (1013.2,),  # one tells of no distance
    NEAR[1:],  # few are near one another by chance
    np.arange(1009.5, 1018),  # between integers
    np.linspace(1e30, 2e30, 8),  # no value of FP16 is there
])  # fmt: skip
def test_thresholds_that_tell_nothing(thresholds: Any, tmp_path: Path) -> None:
    assert ask(find_lost_differences, *_scan(tmp_path, make_tree(thresholds))) == []


def test_thresholds_between_integers_that_fp16_does_not_hold(tmp_path: Path) -> None:
    columns = COLUMNS | {"p": floats([2100.7], [2200.1])}
    graph, ranges = _scan(tmp_path, make_tree(np.arange(2101.5, 2204)), columns)
    assert pinned_by(find_lost_differences, graph, ranges) == ["Concat_x"]


@pytest.mark.parametrize("p", [floats([1010], [1014]), floats([math.nan], [1014.6])])
def test_features_of_which_nothing_is_concluded(p: Any, tmp_path: Path) -> None:
    """FP16 holds them, or does not have them."""
    columns = {"p": p, "w": floats([4], [1])}
    assert ask(find_lost_differences, *_scan(tmp_path, make_tree(NEAR), columns)) == []


def test_an_equality_is_no_split(tmp_path: Path) -> None:
    assert ask(find_lost_differences, *_scan(tmp_path, make_tree(NEAR, mode="BRANCH_EQ"))) == []


def test_what_a_layer_gives_out_is_not_looked_at(tmp_path: Path) -> None:
    front = [node("Concat", "p w", "a", axis=1), node("Gemm", "a k", "x")]
    assert ask(find_lost_differences, *_scan(tmp_path, make_tree(NEAR), front=front)) == []

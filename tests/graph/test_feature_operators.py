"""Scalers tell their means and factors, and operators that hand features on are known."""

from __future__ import annotations

from typing import Any

import pytest
from in_memory_calibration import node

from overflow_fixer.graph.feature_operators import (
    hands_features_on,
    read_intercept,
    read_scaler,
    read_splits,
)
from overflow_fixer.graph.nodes import Node

ML = {"domain": "ai.onnx.ml"}


def test_a_scaler_without_attributes_changes_nothing() -> None:
    told = read_scaler(Node.of(0, "s", node("Scaler", "x", "y", **ML)))
    assert told is not None
    assert [one.tolist() for one in told] == [[0.0], [1.0]]


def test_a_scaler_tells_a_number_a_feature() -> None:
    told = read_scaler(Node.of(0, "s", node("Scaler", "x", "y", offset=[3.0, 4.0], scale=[0.5], **ML)))
    assert told is not None
    assert [one.tolist() for one in told] == [[3.0, 4.0], [0.5]]


@pytest.mark.parametrize(("op", "domain"), [("Scaler", "my.own"), ("Normalizer", "ai.onnx.ml")])
def test_others_are_no_scaler(op: str, domain: str) -> None:
    assert read_scaler(Node.of(0, "s", node(op, "x", "y", domain=domain))) is None


@pytest.mark.parametrize(
    ("op", "domain", "expected"),
    [("Imputer", "ai.onnx.ml", True), ("Imputer", "my.own", False), ("Scaler", "ai.onnx.ml", False)],
)
def test_what_hands_features_on(op: str, domain: str, expected: bool) -> None:
    assert hands_features_on(Node.of(0, "s", node(op, "x", "y", domain=domain))) == expected


def test_the_thresholds_of_each_feature_are_sorted_and_told_once() -> None:
    lists = {
        "nodes_featureids": [1, 0, 1, 1, 0],
        "nodes_values": [5.0, 2.0, 3.0, 5.0, 7.0],
        "nodes_modes": ["BRANCH_LT", "BRANCH_LEQ", "BRANCH_GTE", "BRANCH_GT", "LEAF"],
    }
    told = read_splits(Node.of(0, "t", node("TreeEnsembleClassifier", "x", "y", **lists, **ML)))
    assert {feature: values.tolist() for feature, values in told.items()} == {0: [2.0], 1: [3.0, 5.0]}
    lists["nodes_values"] = [5.0]
    assert read_splits(Node.of(0, "t", node("TreeEnsembleClassifier", "x", "y", **lists, **ML))) == {}
    assert read_splits(Node.of(0, "t", node("TreeEnsembleClassifier", "x", "y", **lists))) == {}
    assert read_splits(Node.of(0, "t", node("TreeEnsembleRegressor", "x", "y", **ML))) == {}


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("LinearRegressor", {"intercepts": [2.0, -3.0]}, 3.0),
        ("LinearRegressor", {}, 0.0),
        ("LinearRegressor", {"intercepts": [2.0], "post_transform": "PROBIT"}, None),
        ("LinearClassifier", {"intercepts": [2.0]}, None),
    ],
)
def test_an_intercept(op: str, attributes: dict[str, Any], expected: float | None) -> None:
    assert read_intercept(Node.of(0, "r", node(op, "x", "y", **attributes, **ML))) == expected

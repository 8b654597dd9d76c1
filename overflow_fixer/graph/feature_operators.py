"""Operators of ai.onnx.ml that hand on features, standardise them or split them: what scikit-learn's pipelines are exported as."""

from __future__ import annotations

import numpy as np

from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array

_DOMAIN = "ai.onnx.ml"
_TREES = frozenset("TreeEnsembleRegressor TreeEnsembleClassifier".split())
_COMPARES = (b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT")
_HANDS_ON = frozenset("Imputer FeatureVectorizer ArrayFeatureExtractor".split())


def hands_features_on(node: Node) -> bool:
    """Whether the floats that it reads go out as they are: beside others, chosen, or with numbers in the place of missing ones."""
    return node.domain == _DOMAIN and node.op_type in _HANDS_ON


def read_scaler(node: Node) -> tuple[Array, Array] | None:
    """The means and factors of a Scaler, (x − mean) × factor, float64, of one number or one a feature; None of other nodes."""
    if node.domain != _DOMAIN or node.op_type != "Scaler":
        return None
    mean, factor = node.value_of("offset", [0.0]), node.value_of("scale", [1.0])
    return np.asarray(mean, np.float64), np.asarray(factor, np.float64)


def read_intercept(node: Node) -> float | None:
    """The largest magnitude of what a LinearRegressor adds, 0 where that is nothing; None of other nodes, and of a probit."""
    is_linear = node.domain == _DOMAIN and node.op_type == "LinearRegressor"
    if not is_linear or node.value_of("post_transform", b"NONE") != b"NONE":
        return None
    return float(np.abs(node.value_of("intercepts", [])).max(initial=0.0))


def read_coefficients(node: Node) -> Array | None:
    """What a LinearRegressor multiplies features by, float64, [features, targets]; None of other nodes, and of a probit."""
    if read_intercept(node) is None:
        return None
    values = np.asarray(node.value_of("coefficients", []), np.float64)
    return np.asarray(values.reshape(int(node.value_of("targets", 1)), -1).T)


def read_splits(node: Node) -> dict[int, Array]:
    """The thresholds with which trees compare a feature, float64, sorted, each once, by its index; none of other nodes.

    Nor of trees whose thresholds are FP64, which read no FP32 as a rule, and of TreeEnsemble, which has them in tensors.
    """
    if node.domain != _DOMAIN or node.op_type not in _TREES:
        return {}
    names = ("nodes_featureids", "nodes_values", "nodes_modes")
    features, values, modes = (np.asarray(node.value_of(name, [])) for name in names)
    if not features.size == values.size == modes.size:
        return {}
    compares = np.isin(modes, _COMPARES)
    features, values = features[compares], values[compares].astype(np.float64)
    order = np.lexsort((values, features))
    found, starts = np.unique(features[order], return_index=True)
    parts = np.split(values[order], starts[1:])
    return {int(feature): np.unique(part) for feature, part in zip(found, parts, strict=False)}

"""Operators of ai.onnx.ml that hand on features, or standardise them: what scikit-learn's pipelines are exported as."""

from __future__ import annotations

import numpy as np

from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array

_DOMAIN = "ai.onnx.ml"
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

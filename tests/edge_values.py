"""Floats where what is told of a tensor changes: zeros, subnormals, FP16's limit, what is not finite."""

import numpy as np

EDGES = [
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    6e-8,
    1.0,
    -2.5,
    65504.0,
    65519.996,
    65520.0,
    -65520.0,
    3e38,
    -3e38,
    np.inf,
    -np.inf,
    np.nan,
]

"""What a model of the benchmarks is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

Feeds = dict[str, Any]


@dataclass(frozen=True)
class BenchmarkModel:
    """`build` makes the model, always the same; `draw` makes one batch of inputs for it."""

    build: Callable[[], onnx.ModelProto]
    draw: Callable[[np.random.Generator], Feeds]

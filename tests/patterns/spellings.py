"""The patterns as exporters spell them, each with what it computes, in float64 by numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns import Region
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import SessionRunner, open_session

SIZE = 16
SHAPE = (3, 5, SIZE)
EPSILON = 1e-3
"""Large enough to show."""
GAMMA = np.linspace(0.5, 2, SIZE, dtype=np.float32)
BETA = np.linspace(-1, 1, SIZE, dtype=np.float32)
CONSTANTS: Mapping[str, np.ndarray] = {
    "two": scalar(2),
    "one": scalar(1),
    "half": scalar(0.5),
    "minus_half": scalar(-0.5),
    "zero": scalar(0),
    "eps": scalar(EPSILON),
    "tiny": scalar(1e-12),
    "share": scalar(1 / SIZE),
    "count": scalar(SIZE),
    "low": scalar(-np.inf),
    "high": scalar(1e6),
    "gamma": GAMMA,
    "beta": BETA,
    "shape": ints(*SHAPE),
    "kept": ints(*SHAPE[:-1], 1),
    "last": ints(-1),
}
FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Spelling:
    """Nodes between "x" and "y", all of which belong to the pattern, and the function that they compute."""

    nodes: tuple[onnx.NodeProto, ...]
    function: Callable[[np.ndarray], np.ndarray]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)


def spell(text: str, function: Callable[[np.ndarray], np.ndarray]) -> Spelling:
    """One node a line: operator, inputs, -> and its output; "Cast" is to FLOAT.

    Reductions go over the last axis. One with "~" in front drops it.
    """
    return Spelling(tuple(_nodes(text)), function)


def place(spelling: Spelling, folder: Path) -> Graph:
    """The spelling in a model, behind a node and before another that are no part of it."""
    nodes = [node("Sigmoid", "raw", "x"), *spelling.nodes, node("Neg", "y", "out")]
    return save(make_model(nodes, {"raw": list(SHAPE)}, "out", CONSTANTS, opset=13), folder)


def compute_region(graph: Graph, region: Region, x: np.ndarray) -> np.ndarray:
    """What the region's nodes make of `x`, fed as its source, without any other node of the model."""
    nodes = [graph.by_label[label].proto for label in region.nodes]
    constants = {name: graph.read_constant(name) for name in graph.constants}
    model = make_model(nodes, {region.source: list(x.shape)}, region.output, constants, graph.opset)
    runner = SessionRunner(open_session(model, graph.folder))
    return runner.run(Batch("b", {region.source: x}))[region.output]


def draw(seed: int = 0) -> np.ndarray:
    """Positive values: one pattern takes magnitudes."""
    return (np.random.default_rng(seed).normal(size=SHAPE) ** 2).astype(np.float32)


def check_computes(graph: Graph, region: Region, function: Callable[[np.ndarray], np.ndarray]) -> None:
    x = draw()
    expected = function(x.astype(np.float64))
    np.testing.assert_allclose(compute_region(graph, region, x), expected, rtol=1e-4, atol=1e-5)


def layer_norm(x: np.ndarray) -> np.ndarray:
    return normalize(x) * GAMMA + BETA


def normalize(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)


def rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * GAMMA


def l2_normalize(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def _nodes(text: str) -> Iterator[onnx.NodeProto]:
    for line in text.strip().splitlines():
        op, *inputs = line.split("->")[0].split()
        output = line.split("->")[1].strip()
        attributes: dict[str, Any] = {"to": FLOAT} if op == "Cast" else {}
        if op.startswith("~"):
            op, attributes["keepdims"] = op[1:], 0
        if op == "ReduceSum":
            inputs.append("last")
        elif op.startswith("Reduce"):
            attributes["axes"] = [-1]
        yield node(op, " ".join(inputs), output, **attributes)

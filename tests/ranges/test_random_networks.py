"""Small networks that nobody wrote, of odd shapes: every way to observe them gives the same, which is what numpy gives.

But of sums of products, which native probes do not measure where a bound tells that they are under the limit, and of sums that
cancel, which are as far apart as their terms are rounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, make_model, node, save
from ways_to_observe import scan_each_way

from overflow_fixer.errors import ModelError
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

_SIZES = st.sampled_from([0, 1, 1, 2, 3, 5])
_SHAPES = st.lists(_SIZES, max_size=4)
_ALIKE = "Relu Abs Neg Exp Sigmoid Tanh Softplus LeakyRelu Reciprocal Floor Identity".split()
_OF_TWO = "Add Sub Mul Div Max Min".split()
_REDUCTIONS = "ReduceSum ReduceMean ReduceMax ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split()


@dataclass
class _Sketch:
    """A chain of nodes in the making; its constants are drawn by a generator that hypothesis seeds."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    rng: np.random.Generator
    shape: list[int]
    constants: dict[str, Array] = field(default_factory=dict)

    def constant(self, shape: list[int]) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.values(shape)
        return name

    def values(self, shape: list[int]) -> Array:
        scale = 10.0 ** self.draw(st.sampled_from([-20, -4, 0, 2, 4]))
        return np.asarray(scale * self.rng.standard_normal(shape), np.float32)

    def add(self, read: str, written: str) -> onnx.NodeProto:
        make = self.draw(
            st.sampled_from(
                [self._alike, self._of_two, self._reduced, self._product, self._convolved, self._normalized]
            )
        )
        made: onnx.NodeProto = make(read, written)
        return made

    def _alike(self, read: str, written: str) -> onnx.NodeProto:
        return node(self.draw(st.sampled_from(_ALIKE)), read, written)

    def _of_two(self, read: str, written: str) -> onnx.NodeProto:
        other = self.constant(self.draw(st.lists(_SIZES, max_size=2)))
        reads = self.draw(st.permutations([read, other]))
        return node(self.draw(st.sampled_from(_OF_TWO)), " ".join(reads), written)

    def _reduced(self, read: str, written: str) -> onnx.NodeProto:
        op = self.draw(st.sampled_from(_REDUCTIONS))
        if self.draw(st.booleans()):
            return node(op, read, written)
        axes = f"axes{len(self.constants)}"
        self.constants[axes] = np.array([self.draw(st.integers(-2, 2))])
        return node(op, f"{read} {axes}", written)

    def _product(self, read: str, written: str) -> onnx.NodeProto:
        reads = self.draw(
            st.permutations([read, self.constant(self.draw(st.lists(_SIZES, min_size=1, max_size=3)))])
        )
        return node("MatMul", " ".join(reads), written)

    def _convolved(self, read: str, written: str) -> onnx.NodeProto:
        channels = [self.draw(_SIZES), self.shape[1] if len(self.shape) > 2 else 1]
        kernel = self.draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
        if self.draw(st.booleans()):
            return node("Conv", f"{read} {self.constant([*channels, *kernel])}", written)
        return node("ConvTranspose", f"{read} {self.constant([*channels[::-1], *kernel])}", written)

    def _normalized(self, read: str, written: str) -> onnx.NodeProto:
        if self.draw(st.booleans()):
            return node(self.draw(st.sampled_from(["Softmax", "LogSoftmax"])), read, written)
        return node("LayerNormalization", f"{read} {self.constant([self.draw(_SIZES)])}", written)


@st.composite
def _networks(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """A chain of up to four nodes, and two batches for it."""
    shape = draw(_SHAPES)
    sketch = _Sketch(draw, np.random.default_rng(draw(st.integers(0, 2**32))), shape)
    count = draw(st.integers(1, 4))
    nodes = [
        sketch.add("x" if i == 0 else f"t{i - 1}", f"t{i}" if i < count - 1 else "y") for i in range(count)
    ]
    dims = [f"d{i}" for i in range(len(shape))] if draw(st.booleans()) else shape
    feeds = [{"x": sketch.values(shape)} for _ in range(2)]
    return make_model(nodes, {"x": dims}, "y", sketch.constants, opset=18), feeds


@settings(max_examples=150, derandomize=True, deadline=None)
@given(_networks())
def test_every_way_to_observe_gives_what_numpy_gives(
    network: tuple[onnx.ModelProto, list[dict[str, Array]]],
) -> None:
    model, feeds = network
    with tempfile.TemporaryDirectory() as folder:
        try:
            session = open_session(model, Path(folder))
            outputs = [run_session(session, None, Batch("b", dict(feed)))[0] for feed in feeds]
        except ModelError:
            assume(False)
        assume(all(np.isfinite(output).all() for output in outputs))
        data = InMemoryCalibration(feeds)
        found = scan_each_way(save(model, Path(folder)), data, but=["products", "sum"]).by_tensor["y"]
    values = np.concatenate([np.ravel(output) for output in outputs])
    assert found.element_count == values.size
    if values.size:
        assert (found.min, found.max, found.max_abs) == (values.min(), values.max(), np.abs(values).max())

"""A model drawn node by node, with names and Constant nodes as exporters write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 16


class Sketch:
    """Collects nodes and weights. The same seed and calls give the same model, on one numpy version."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._uses: Counter[str] = Counter()

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output and return the output's name."""
        name = self._name(op_type)
        output = f"{name}_output_0"
        self._nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cut a tensor into parts of these sizes and return their names."""
        lengths = self.constant(list(sizes), np.int64)
        name = self._name("Split")
        parts = [f"{name}_output_{index}" for index in range(len(sizes))]
        self._nodes.append(helper.make_node("Split", [x, lengths], parts, name=name, axis=axis))
        return parts

    def constant(self, value: Any, dtype: npt.DTypeLike = np.float32) -> str:
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def weight(self, *shape: int, std: float, mean: float = 0.0) -> str:
        """A float32 initializer, normal with this mean and standard deviation."""
        values = self._rng.standard_normal(shape, np.float32) * np.float32(std) + np.float32(mean)
        tensor = numpy_helper.from_array(values, self._name("weight"))
        self._weights.append(tensor)
        return tensor.name

    def to_model(
        self,
        inputs: Mapping[str, tuple[int, Sequence[int]]],
        output: tuple[str, Sequence[int]],
    ) -> onnx.ModelProto:
        """The model: inputs by name as (element type, shape), and its float output, the last node's."""
        name, shape = output
        self._nodes[-1].output[0] = name
        graph = helper.make_graph(
            self._nodes,
            "benchmark",
            [helper.make_tensor_value_info(key, *spec) for key, spec in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
            self._weights,
        )
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", OPSET)])

    def _name(self, kind: str) -> str:
        self._uses[kind] += 1
        return f"/{kind}_{self._uses[kind]}"


def add_conv(
    sketch: Sketch,
    x: str,
    channels: tuple[int, int],
    kernel: int,
    stride: int = 1,
    gain: float = 1.0,
    group: int = 1,
) -> str:
    """A convolution from channels[0] to channels[1] with bias, its weights He-scaled times `gain`."""
    per_group = channels[0] // group
    deviation = gain * (2.0 / (per_group * kernel * kernel)) ** 0.5
    weight = sketch.weight(channels[1], per_group, kernel, kernel, std=deviation)
    return sketch.add(
        "Conv",
        x,
        weight,
        sketch.weight(channels[1], std=0.01),
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        group=group,
    )


def add_silu(sketch: Sketch, x: str) -> str:
    return sketch.add("Mul", x, sketch.add("Sigmoid", x))


def add_silu_conv(
    sketch: Sketch, x: str, channels: tuple[int, int], kernel: int = 1, stride: int = 1, group: int = 1
) -> str:
    """A convolution and SiLU."""
    return add_silu(sketch, add_conv(sketch, x, channels, kernel, stride, group=group))

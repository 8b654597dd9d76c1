"""What the make.py scripts share: an exporter's names, exact random numbers, and saving.

Random numbers come from numpy's RandomState, whose stream is frozen (NEP 19), and reach the files
through +, -, *, / and sqrt alone, so every version of numpy makes the same values, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Floats = npt.NDArray[np.float32]
Feeds = dict[str, Any]
Dims = Sequence[int | str]


class ExportedGraph:
    """Collects nodes and weights under the names that PyTorch's exporter gives them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self._uses: dict[str, int] = {}

    def add(self, scope: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output: '/ln_1', 'Pow' gives '/ln_1/Pow_output_0'."""
        name = self._free_name(f"{scope}/{op_type}")
        output = f"{name}_output_0"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, scope: str, value: npt.NDArray[Any]) -> str:
        """Add a Constant node, which is where exporters put the numbers of the source code."""
        return self.add(scope, "Constant", value=numpy_helper.from_array(value))

    def weight(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add an initializer, which is where exporters put the parameters."""
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def rename_output(self, tensor: str, name: str) -> None:
        """Call `tensor`, which the last node wrote, by the graph output's name."""
        assert list(self.nodes[-1].output) == [tensor]
        self.nodes[-1].output[0] = name

    def to_model(
        self, name: str, opset: int, inputs: dict[str, tuple[int, Dims]], outputs: dict[str, Dims]
    ) -> onnx.ModelProto:
        """The model: inputs by name as (element type, dimensions), float outputs by name."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [
                helper.make_tensor_value_info(key, elem_type, dims)
                for key, (elem_type, dims) in inputs.items()
            ],
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, dims) for key, dims in outputs.items()],
            self.weights,
        )
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name="calib_data")

    def _free_name(self, name: str) -> str:
        count = self._uses.get(name, 0)
        self._uses[name] = count + 1
        return f"{name}_{count}" if count else name


def draw_uniform(rng: np.random.RandomState, bound: float, *shape: int) -> Floats:
    """Numbers in [-bound, bound), float32, as PyTorch's default initialisation draws weights."""
    return ((rng.random_sample(shape) * 2 - 1) * bound).astype(np.float32)


def draw_normal(rng: np.random.RandomState, scale: float, *shape: int) -> Floats:
    """Nearly normal numbers of standard deviation `scale`: twelve uniform ones added (no logarithm)."""
    total: npt.NDArray[np.float64] = rng.random_sample((12, *shape)).sum(axis=0)
    return ((total - 6) * scale).astype(np.float32)


def save_sample(model: onnx.ModelProto, batches: Iterable[Feeds], script: str) -> None:
    """Write model.onnx and data/*.npz to the folder given on the command line, else beside the script."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(script).resolve().parent
    (folder / "data").mkdir(parents=True, exist_ok=True)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "model.onnx")
    for index, feeds in enumerate(batches):
        np.savez(folder / "data" / f"batch_{index}.npz", **feeds)

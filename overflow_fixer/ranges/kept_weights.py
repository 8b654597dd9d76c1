"""Weights that the optimiser would only copy: the products of matrices read them as they are.

While a model is optimised they are inputs, so that they are neither loaded nor written with it; afterwards they are
read from the model's own files again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.model_file.external_data import external_tensors

_READ_AS_THEY_ARE = frozenset({"MatMul", "Gemm"})


def set_aside(model: onnx.ModelProto, graph: Graph) -> list[TensorProto]:
    """Make inputs of the weights in files that nothing but products of matrices reads, in place, and return them.

    `model` holds the nodes of `graph`.
    """
    others = [name for node in graph.nodes for name in node.captured]
    others += [
        name for node in graph.nodes if node.standard_op not in _READ_AS_THEY_ARE for name in node.inputs
    ]
    taken = {*others, *(info.name for info in (*model.graph.input, *model.graph.output))}
    weights: list[TensorProto] = []
    kept: list[TensorProto] = []
    for tensor in model.graph.initializer:
        is_kept = tensor.data_location != TensorProto.EXTERNAL or tensor.name in taken
        (kept if is_kept else weights).append(tensor)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in weights
    )
    return weights


def put_back(model: onnx.ModelProto, weights: Sequence[TensorProto], folder: Path, work: Path) -> Path:
    """Undo it in a model whose own weights lie in `work`, those set aside in `folder`, in place.

    Returns the folder from which all of them are found then.
    """
    root = Path(os.path.commonpath([folder.resolve(), work.resolve()]))
    _tell_from(external_tensors(model), work.resolve(), root)
    names = {tensor.name for tensor in weights}
    inputs = [info for info in model.graph.input if info.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    _tell_from(weights, folder.resolve(), root)
    model.graph.initializer.extend(weights)
    return root


def _tell_from(tensors: Iterable[TensorProto], folder: Path, root: Path) -> None:
    """Tell the places of their data, which are told from `folder`, from `root`, in place."""
    way = os.path.relpath(folder, root)
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = entry.value if way == os.curdir else os.path.join(way, entry.value)

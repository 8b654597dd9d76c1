"""Which tensors of a model come out, and of which types they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.subgraphs import captured_by
from overflow_fixer.sessions.providers import (
    PLUGIN_DOMAIN,
    find_lack,
    has_plugins,
)
from overflow_fixer.sessions.session import open_session

_ELEM_TYPES = {
    "float": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "double": onnx.TensorProto.DOUBLE,
    "bool": onnx.TensorProto.BOOL,
    "string": onnx.TensorProto.STRING,
    **{
        f"{sign}int{bits}": getattr(onnx.TensorProto, f"{sign.upper()}INT{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def mark_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Make inner tensors outputs of the model, in place; ONNX Runtime tells their types itself."""
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in present)


def infer_types(model: onnx.ModelProto, folder: Path, tensors: Sequence[str]) -> dict[str, int]:
    """ONNX Runtime's own word on the element types of `tensors`; what is not a tensor is left out.

    Serves where ONNX shape inference knows nothing (other domains' operators); plug-ins of TensorRT, which it alone
    knows, need it here. Raises ModelError when ONNX Runtime refuses the model.
    """
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    mark_outputs(marked, tensors)
    are_plugins = has_plugins(model.graph)
    lack = find_lack("tensorrt") if are_plugins else None
    if lack is not None:
        raise ModelError(
            f"The model has plug-ins of TensorRT (domain {PLUGIN_DOMAIN}), whose types ONNX Runtime's TensorRT provider alone "
            f"knows, and {lack}. Expected that provider. Install it (docs/scan-gpu.md; fix-fp16 doctor tells what is there), or "
            "have the exporter write standard operators in their place."
        )
    session = open_session(marked, folder, provider="tensorrt" if are_plugins else "cpu")
    types = {output.name: output.type for output in session.get_outputs()}
    return {name: _ELEM_TYPES[kind] for name in tensors if (kind := types[name][7:-1]) in _ELEM_TYPES}


def keep_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> None:
    """Make these of the model's outputs, in place, its only ones, with the nodes that they need."""
    needed, nodes = set(tensors), list[onnx.NodeProto]()
    kept = [output for output in model.graph.output if output.name in needed]
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(filter(None, node.input), captured_by(node))
            nodes.append(node)
    found = onnx.GraphProto(node=reversed(nodes), output=kept)
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(found.node)
    model.graph.output.extend(found.output)

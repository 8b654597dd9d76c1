"""What ONNX's checker says of a model over which a stage failed: a node that is malformed is a fault of the model.

No model is checked before: that takes time, and some that the checker refuses run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.reading import read_model
from overflow_fixer.model_file.subgraphs import STANDARD_DOMAINS, all_nodes

_BY_MALFORMED_NODES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)

_ANY_VERSION = 1
"""Of operators that nobody imports: the checker knows them as little then."""


@contextmanager
def refuse_malformed(path: Path) -> Iterator[None]:
    """Where the block fails as code does that takes a node for whole, raise ModelError if the checker refuses one of the model's."""
    try:
        yield
    except _BY_MALFORMED_NODES as error:
        refusal = find_refusal(read_model(path))
        if refusal is None:
            raise
        raise ModelError(
            f"{path}: {refusal}. Expected nodes with the inputs, outputs and attributes that ONNX defines for their operators. "
            "Export the model again, or correct what wrote this node; onnx.checker.check_node tells the same."
        ) from error


def find_refusal(model: onnx.ModelProto) -> str | None:
    """The first node, of bodies and functions too, that ONNX's checker refuses, and why; None where it takes them all."""
    functions = (_refuse_all(model, one.node, one.opset_import) for one in model.functions)
    refusals = chain(_refuse_all(model, all_nodes(model.graph), model.opset_import), *functions)
    return next(refusals, None)


def _refuse_all(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], imports: Iterable[onnx.OperatorSetIdProto]
) -> Iterator[str]:
    imported = {_name_domain(entry.domain): entry.version for entry in imports}
    for node in map(_without_content, nodes):
        context = onnx.checker.C.CheckerContext()
        context.ir_version = model.ir_version
        context.opset_imports = {node.domain: _ANY_VERSION, **imported}
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            name = node.name or ", ".join(node.output)
            yield f"node {name!r} ({node.op_type}) is malformed: {str(error).splitlines()[0].rstrip('.')}"


def _name_domain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def _without_content(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with empty bodies, which read what they do not hold, and with tensors of no elements, whose data may lie elsewhere."""
    emptied = onnx.NodeProto()
    emptied.CopyFrom(node)
    emptied.domain = _name_domain(node.domain)
    for attribute in emptied.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            attribute.g.CopyFrom(onnx.GraphProto(name=attribute.g.name))
        elif attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(onnx.TensorProto(data_type=attribute.t.data_type, dims=[0]))
    return emptied

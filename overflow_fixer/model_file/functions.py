"""A model's local functions, put in the place of their calls."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.inliner

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.opsets import imported_opset
from overflow_fixer.model_file.subgraphs import STANDARD_DOMAINS, all_nodes


def inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions: itself where it has none. Raises ModelError where they cannot be inlined as they are meant."""
    if not model.functions:
        return model
    for function in model.functions:
        _raise_opset(path, model, function)
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises bare RuntimeErrors
        raise ModelError(
            f"{path}: the model's functions cannot be inlined: {error}. Expected functions that call one another "
            "without a cycle. Export the model without local functions."
        ) from error
    if inlined.functions:  # it leaves those that import other versions of custom domains
        raise ModelError(
            f"{path}: the function {inlined.functions[0].name} cannot be put in the place of its calls: it imports other versions of "
            "operator sets than the model. Expected one version of each. Export the model without local functions."
        )
    return inlined


def _raise_opset(path: Path, model: onnx.ModelProto, function: onnx.FunctionProto) -> None:
    """Have the function import the model's opset, in place. Raises ModelError where that would make others of its operators."""
    of_function, of_model = imported_opset(function), imported_opset(model)
    if of_function == of_model:
        return
    nodes = (node for node in all_nodes(function) if node.domain in STANDARD_DOMAINS)
    other = next((node for node in nodes if _has_changed(node.op_type, of_function, of_model)), None)
    if other is not None:
        raise ModelError(
            f"{path}: the function {function.name} imports opset {of_function}, and the model opset {of_model}, in which {other.op_type} is "
            "another operator. Expected one opset throughout: functions are put in the place of their calls. Export the model "
            "without local functions, or with those of its own opset."
        )
    for entry in function.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = of_model


def _has_changed(op_type: str, before: int, after: int) -> bool:
    """Whether the operator of one opset is defined anew by another, or in one of them not at all."""
    try:
        schemas = [onnx.defs.get_schema(op_type, opset) for opset in (before, after)]
    except onnx.defs.SchemaError:
        return True
    return schemas[0].since_version != schemas[1].since_version

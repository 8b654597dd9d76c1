"""The opset of ONNX's own operators that a model imports: one that probes can be written in, and this machine knows."""

from __future__ import annotations

from pathlib import Path

import onnx

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.subgraphs import STANDARD_DOMAINS, all_nodes

MIN_OPSET = 9
_UNUSED_OPSET = 17


def check_opset(path: Path, model: onnx.ModelProto) -> int:
    """The opset that the model imports. Raises ModelError for one that is too old or too new, and where it names none."""
    opset = imported_opset(model)
    newest = onnx.defs.onnx_opset_version()
    if MIN_OPSET <= opset <= newest:
        return opset
    raise ModelError(
        f"{path} {f'uses ONNX opset {opset}' if opset else 'names no opset of the ONNX operators that it uses'}. "
        f"Expected {MIN_OPSET} to {newest}: older ones have no Where and no IsNaN, by which values are looked at, and this machine's onnx "
        f"{onnx.__version__} knows no newer one. {_opset_advice(opset)}"
    )


def imported_opset(model: onnx.ModelProto | onnx.FunctionProto) -> int:
    """The opset of ONNX's own operators; 0 where none is named."""
    return max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=0)


def _opset_advice(opset: int) -> str:
    if opset >= MIN_OPSET:
        return "Install a newer onnx and ONNX Runtime, or export it again with an older opset."
    return (
        "Export it again with a newer one (torch.onnx.export: opset_version, tf2onnx: --opset, skl2onnx and onnxmltools: "
        "target_opset), or try onnx.version_converter, which does not know every operator."
    )


def import_unused(model: onnx.ModelProto) -> None:
    """Import the functions' opset, or else any, in place, where the graph itself uses none of ONNX's own operators.

    Models of ai.onnx.ml alone often import none, or one that is too old; Casts and probes need one.
    """
    uses_any = any(node.domain in STANDARD_DOMAINS for node in all_nodes(model.graph))
    if uses_any or imported_opset(model) >= MIN_OPSET:
        return
    opset = max(map(imported_opset, model.functions), default=0) or _UNUSED_OPSET
    kept = [entry for entry in model.opset_import if entry.domain not in STANDARD_DOMAINS]
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", opset), *kept])

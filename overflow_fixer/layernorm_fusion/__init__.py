"""LayerNorms that an exporter wrote out, fused into LayerNormalization again, in a model that is proved equal.

TensorRT's weak typing computes a LayerNormalization in FP32 inside by itself; written out, each of its nodes is one that
may overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from overflow_fixer.backends.mixed_onnx.rewrite import TypedModel
from overflow_fixer.backends.mixed_onnx.weights import write_model
from overflow_fixer.errors import ModelError, OutputError
from overflow_fixer.files import find_replaced, list_missing, name_data, remove_where_empty, replace_files
from overflow_fixer.graph.copies import copy_model
from overflow_fixer.graph.model import Graph
from overflow_fixer.layernorm_fusion.candidates import choose_fusions
from overflow_fixer.layernorm_fusion.proof import prove_equal
from overflow_fixer.layernorm_fusion.rewriting import raise_opset, write_fusions
from overflow_fixer.records import Batch, FusedModel


def fuse_layernorms(graph: Graph, path: Path, batches: Iterable[Batch]) -> FusedModel:
    """Write the model to `path` with each LayerNorm that is written out as one LayerNormalization node.

    Fused is what is a LayerNorm to the letter: FP32, over the last axes, an epsilon added to a variance that is the mean of
    (x - mean)^2, a constant scale and bias at most (handed on by Identity or not), nothing inside read from outside. The opset is
    raised to 17 where it is lower. What was written is run against the original in FP32, optimisation off, on every batch: each
    output has NaN and infinities in the same places and differs elsewhere by at most 1e-5 of its largest magnitude; one that is
    no float is equal. Only then does it appear at `path`, its weights in `<name>.data` where the original's lie outside or are
    too large. Raises ModelError when nothing can be fused, the opset cannot be raised or an output differs, CalibrationError when
    there is no batch, OutputError when it cannot be written or is the model itself.
    """
    _check_target(graph, path)
    with remove_where_empty(list_missing(path.parent)):
        return _write_fused(graph, path, batches)


def _write_fused(graph: Graph, path: Path, batches: Iterable[Batch]) -> FusedModel:
    fusions, left = choose_fusions(graph)
    if not fusions:
        raise ModelError(_nothing_to_fuse(graph, left))
    model = raise_opset(copy_model(graph), graph)
    write_fusions(model, graph, fusions)
    with replace_files(path) as staged:
        files = write_model(graph, TypedModel(model, {}, 0), {}, staged)
        error = prove_equal(graph, staged, batches)
    outputs = tuple(fusion.norm.region.output for fusion in fusions)
    written = tuple(path.with_name(file.name) for file in files)
    return FusedModel(graph.path, graph.sha256, written, outputs, left, error)


def _check_target(graph: Graph, path: Path) -> None:
    own = find_replaced(graph.files, (path, name_data(path)))
    if own is not None:
        raise OutputError(
            f"{own.resolve()} belongs to the model that is to be fused. Expected another file, since the original is "
            "what the fused model is held against. Name another one."
        )


def _nothing_to_fuse(graph: Graph, left: Mapping[str, str]) -> str:
    found = "no LayerNorm that is written out as several nodes"
    if left:
        output, reason = next(iter(left.items()))
        found = f"LayerNorms that are written out ({len(left)}), but none that can be fused: of {output!r}, {reason}"
    return f"{graph.path} has {found}. Expected at least one to fuse into LayerNormalization. Leave --refuse-layernorm out."

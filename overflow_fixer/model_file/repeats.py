"""Initializers of one name: of those ONNX Runtime takes the last that it meets, and who else reads the file perhaps another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx

from overflow_fixer.errors import ModelError


def refuse_repeats(path: Path, graph: onnx.GraphProto) -> None:
    """Raise ModelError where two of the graph's initializers, dense or sparse, have one name; those without one are never read.

    Bodies are not looked into: ONNX Runtime refuses them there.
    """
    names = [tensor.name for tensor in graph.initializer]
    names += [sparse.values.name for sparse in graph.sparse_initializer]
    if len(set(names)) == len(names):
        return
    repeated = [name for name, count in Counter(filter(None, names)).items() if count > 1]
    if repeated:
        raise ModelError(
            f"{path} has {names.count(repeated[0])} initializers of the name {repeated[0]!r}. Expected each name once, as ONNX demands: "
            "programs differ in which of them they compute with. Take out all but the one that is meant, or export the model again."
        )

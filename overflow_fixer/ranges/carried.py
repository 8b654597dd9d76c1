"""Values that leave a run beside its summaries, for what is computed from them outside of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Batch

Values = Mapping[str, Any]
"""By name, as ONNX Runtime gives and takes them: arrays, lists of arrays (sequences), None (empty optionals)."""


class Carried:
    """The values of `tensors`: constants, what a batch gives, and those `computed`, which a run must fetch."""

    def __init__(self, graph: Graph, tensors: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(tensors))
        self._constants = {name: graph.read_constant(name) for name in wanted if name in graph.constants}
        self._given = [name for name in wanted if name not in graph.producers]
        self.computed = tuple(
            name for name in wanted if name in graph.producers and name not in graph.constants
        )

    def complete(self, batch: Batch, computed: Values) -> dict[str, Any]:
        """All of them, of which a run fetched those `computed`."""
        fed = {name: batch.feeds[name] for name in self._given if name in batch.feeds}
        return {**self._constants, **fed, **{name: computed[name] for name in self.computed}}


def restore_fetched(graph: Graph, tensors: Sequence[str], fetched: Sequence[Any]) -> dict[str, Any]:
    """What was fetched of `tensors`, by name; BF16, which leaves a run as float, as BF16 again."""
    bf16 = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    is_bf16 = [graph.dtypes.get(name) == TensorProto.BFLOAT16 for name in tensors]
    restored = (
        value.astype(bf16) if narrow else value for value, narrow in zip(fetched, is_bf16, strict=True)
    )
    return dict(zip(tensors, restored, strict=True))

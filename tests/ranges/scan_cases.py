"""What the tests of the scan share: data in memory, models, and an independent reckoning of ranges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, Batch, Range


class MemoryBatches:
    """A CalibrationSet in memory; each walk gives copies, since a run may write into its feeds."""

    source = "memory"
    synthetic = False
    allow_nonfinite = True

    def __init__(self, feeds: Sequence[dict[str, Array]], fingerprint: str = "data") -> None:
        self._feeds = feeds
        self.fingerprint = fingerprint

    def __iter__(self) -> Iterator[Batch]:
        for i, feeds in enumerate(self._feeds):
            copies = {
                name: value.copy() if hasattr(value, "copy") else value for name, value in feeds.items()
            }
            yield Batch(f"batch{i}", copies)

    def __len__(self) -> int:
        return len(self._feeds)


class StoppingBatches(MemoryBatches):
    """Data whose reading raises `error` before the batch of index `stop`."""

    stop = 99
    error: type[BaseException] = KeyboardInterrupt

    def __iter__(self) -> Iterator[Batch]:
        for i, batch in enumerate(super().__iter__()):
            if i == self.stop:
                raise self.error
            yield batch


def stop_before(batch: int, graph: Graph, data: StoppingBatches, store: Path, **options: Any) -> None:
    """A scan that ends by data.error after `batch` batches."""
    data.stop = batch
    with pytest.raises(data.error):
        collect_ranges(graph, data, store=store, **options)
    data.stop = 99


def value_info(name: str, elem_type: int = TensorProto.FLOAT, dims: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def save_model(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
) -> Graph:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir_version), path)
    return load_graph(path)


def run_marked(path: Path, names: Sequence[str], feeds: dict[str, Array]) -> dict[str, Array]:
    """The tensors named, from the model file with each marked as an output and optimisation off."""
    model = onnx.load(path)
    taken = Counter(node.name for node in model.graph.node)
    for node in model.graph.node:
        if taken[node.name] > 1:
            node.name = ""  # ONNX Runtime refuses names that are there twice
    present = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))


def reckon(tensor: str, arrays: Sequence[Array]) -> Range:
    """The range of a tensor from its array in each batch, one Python number after the other."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = [np.asarray(array, np.float64).ravel().tolist() for array in arrays]
    present = [[x for x in batch if not math.isnan(x)] for batch in values]
    everything = [x for batch in present for x in batch]
    magnitudes = [abs(x) for x in everything]
    max_abs = max(magnitudes, default=math.nan)
    return Range(
        tensor=tensor,
        max_abs=max_abs,
        min=min(everything, default=math.nan) + 0.0,
        max=max(everything, default=math.nan) + 0.0,
        min_nonzero_abs=min((m for m in magnitudes if m > 0), default=math.nan),
        element_count=sum(map(len, values)),
        nan_count=sum(map(len, values)) - len(everything),
        inf_count=sum(map(math.isinf, everything)),
        over_fp16_count=sum(m >= 65520 for m in magnitudes),
        worst_batch=next((i for i, batch in enumerate(present) if max_abs in map(abs, batch)), -1),
    )


def assert_same(first: Iterable[Range], second: Iterable[Range]) -> None:
    """Bit for bit: repr tells every double apart, and -0 from 0; NaN is like NaN."""
    assert [repr(found) for found in first] == [repr(found) for found in second]

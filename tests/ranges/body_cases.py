"""What the tests of control flow share: bodies in ONNX's text form, and runs of a body by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from scan_cases import MemoryBatches, assert_same, reckon
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.model_file.subgraphs import all_nodes
from overflow_fixer.ranges import instrument
from overflow_fixer.records import Array, RangeTable

Run = dict[str, Any]
"""The values of all tensors of a body in one of its runs."""


def parse(folder: Path, text: str, *, opset: int = 17, functions: str = "") -> Graph:
    """The model of a graph in ONNX's text form, saved and loaded."""
    imports = f'"" : {opset}' + (', "local" : 1' if functions else "")
    header = f"<ir_version: 8, opset_import: [{imports}]>"
    model = onnx.parser.parse_model(f"{header}\n{text}\n{functions}")
    path = folder / "model.onnx"
    onnx.save(model, path)
    return load_graph(path)


def keep_built(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models with probes that are built from now on."""
    built: list[onnx.ModelProto] = []
    build = instrument.Probed.build_model

    def keep(probed: instrument.Probed) -> onnx.ModelProto:
        built.append(build(probed))
        return built[-1]

    monkeypatch.setattr(instrument.Probed, "build_model", keep)
    return built


def find_looked_at_once(graph: onnx.GraphProto) -> list[str]:
    """The tensors that have a probe for those that stay the same, at any depth."""
    return [node.input[0] for node in all_nodes(graph) if node.op_type == "LastingProbe"]


def find_body(graph: Graph, label: str, attribute: str) -> onnx.GraphProto:
    found = graph.by_label[label].attribute(attribute)
    assert found is not None
    return found.g


def run_body(body: onnx.GraphProto, feeds: Run, opset: int = 17) -> Run:
    """The body alone, what it captures fed too, with every tensor marked as an output and optimisation off."""
    names = list(dict.fromkeys(name for node in body.node for name in node.output if name))
    graph = onnx.helper.make_graph(
        body.node, "alone", [_describe(*feed) for feed in feeds.items()], [], body.initializer
    )
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {**feeds, **dict(zip(names, session.run(names, feeds), strict=True))}


def _describe(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return onnx.helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, None)
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)


def scan_runs(graph: Graph, feeds: Sequence[Run]) -> RangeTable:
    """In each way, small values of all tensors taken."""
    return scan_each_way(graph, MemoryBatches(feeds), small_values="all")


def assert_body(
    table: RangeTable, prefix: str, runs: Sequence[Sequence[Run]], names: str, constant: str = ""
) -> None:
    """The ranges of the body's tensors are those of its runs [batch][run]; no others but `constant` have one."""
    found = [seen.tensor for seen in table.ranges if seen.tensor.startswith(prefix)]
    wanted = [prefix + name for name in names.split()]
    own = [name for name in found if "/" not in name[len(prefix) :] and name != prefix + constant]
    assert own == wanted
    assert_same(
        (table.by_tensor[name] for name in wanted),
        [reckon(name, [_join(batch, name[len(prefix) :]) for batch in runs]) for name in wanted],
    )


def _join(runs: Sequence[Run], name: str) -> Array:
    """All values of a tensor in a batch."""
    values = [np.ravel(run[name]).astype(np.float64) for run in runs]
    return np.concatenate([np.zeros(0), *values])


def floats(*values: float) -> Array:
    return np.asarray(values, np.float32)

"""Small models and calibration data that live in memory, for tests that need real ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, Finding, PlanPolicy, RangeTable
from overflow_fixer.rules import Rule

FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class InMemoryCalibration:
    """Batches held in memory, named batch_0, batch_1, ..."""

    feeds: tuple[Mapping[str, Any], ...]
    source: str = "memory"
    synthetic: bool = False
    fingerprint: str = "in memory"
    allow_nonfinite: bool = True

    def __iter__(self) -> Iterator[Batch]:
        for index, feeds in enumerate(self.feeds):
            yield Batch(f"batch_{index}", {name: np.asarray(value) for name, value in feeds.items()})

    def __len__(self) -> int:
        return len(self.feeds)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node named after its first output; tensor names are separated by blanks, "-" is one left out."""
    domain = attributes.pop("domain", "")
    names = [[("" if name == "-" else name) for name in text.split()] for text in (inputs, outputs)]
    name = attributes.pop("name", f"{op_type}_{names[1][0]}")
    return helper.make_node(op_type, *names, name=name, domain=domain, **attributes)


def floats(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def scalar(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: str,
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    output_types: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model. `inputs`: dimensions, or (element type, dimensions), by name. Outputs are floats."""
    typed = {k: v if isinstance(v, tuple) else (FLOAT, v) for k, v in inputs.items()}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, *kind) for name, kind in typed.items()],
        [
            helper.make_tensor_value_info(name, (output_types or {}).get(name, FLOAT), None)
            for name in outputs.split()
        ],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def save(model: onnx.ModelProto, folder: Path) -> Graph:
    """Write the model to `folder` and load it as the package does."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return load_graph(path)


def scan(model: onnx.ModelProto, folder: Path, *feeds: Mapping[str, Any]) -> tuple[Graph, RangeTable]:
    """The loaded model and its ranges on the batches `feeds`, from a real run."""
    graph = save(model, folder)
    return graph, collect_ranges(graph, InMemoryCalibration(feeds))


def ask(rule: Rule, graph: Graph, ranges: RangeTable, policy: PlanPolicy | None = None) -> list[Finding]:
    """Every finding of a rule, over all nodes in order."""
    policy = policy or PlanPolicy()
    return [finding for at in graph.nodes for finding in rule(at, graph, ranges, policy)]


def pinned_by(rule: Rule, graph: Graph, ranges: RangeTable, policy: PlanPolicy | None = None) -> list[str]:
    """Labels of the nodes that a rule wants to pin, in order, each once."""
    found = ask(rule, graph, ranges, policy)
    return list(dict.fromkeys(finding.node for finding in found if finding.action == "pin"))

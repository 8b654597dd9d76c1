"""What is left of a finding: a pin, a protection by the backend, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node, save
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Finding, PlanPolicy
from overflow_fixer.rules.settling import protection_of, settle

ONES = {"scale": np.ones(4, np.float32)}
POLICY = PlanPolicy(protected={"LayerNormalization": "the backend does it in FP32"})
FINDING = Finding("inner_value", "LayerNormalization_y", "x", 1e6, 1e4, "because")


def _graph(folder: Path, **attributes: Any) -> Graph:
    return save(
        make_model([node("LayerNormalization", "x scale", "y", **attributes)], {"x": [2, 4]}, "y", ONES),
        folder,
    )


@pytest.mark.parametrize(
    ("stash_type", "action"),
    [
        (None, "protected"),
        (TensorProto.FLOAT, "protected"),
        (TensorProto.FLOAT16, "pin"),
        (TensorProto.BFLOAT16, "pin"),
    ],
)
def test_a_normalisation_that_is_told_to_compute_in_less_is_not_protected(
    tmp_path: Path, stash_type: int | None, action: str
) -> None:
    graph = _graph(tmp_path, **({} if stash_type is None else {"stash_type": stash_type}))
    found = settle(FINDING, graph.nodes[0], graph, POLICY, is_excluded=False)
    assert found.action == action
    assert found.reason == ("because" if action == "pin" else "because; the backend does it in FP32")


def test_another_domain_is_not_protected(tmp_path: Path) -> None:
    graph = _graph(tmp_path)
    proto = onnx.NodeProto()
    proto.CopyFrom(graph.nodes[0].proto)
    assert protection_of(graph.nodes[0], POLICY) == "the backend does it in FP32"
    proto.domain = "my.domain"
    assert protection_of(type(graph.nodes[0]).of(0, "n", proto), POLICY) is None


@pytest.mark.parametrize("rule", ["threshold", "constant_range", "vanishing_divisor"])
def test_what_is_between_nodes_is_not_protected(tmp_path: Path, rule: str) -> None:
    graph = _graph(tmp_path)
    finding = Finding(rule, "LayerNormalization_y", "x", 1e6, 1e4, "because")
    assert settle(finding, graph.nodes[0], graph, POLICY, is_excluded=False) == finding
    excluded = settle(finding, graph.nodes[0], graph, POLICY, is_excluded=True)
    assert (excluded.action, excluded.reason) == ("none", "because; left in FP16 because you excluded it")

"""Where a session's nodes run, as the tests on a GPU ask it."""

from __future__ import annotations

import onnxruntime
from cpu_nodes import count_on_cpu, record_places
from in_memory_calibration import make_model, node


def test_what_runs_on_the_cpu_is_counted_by_operator() -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    record_places(options)
    nodes = [node("Neg", "x", "n"), node("Abs", "n", "a"), node("Neg", "a", "y")]
    source = make_model(nodes, {"x": [2]}, "y").SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    told = hasattr(session, "get_provider_graph_assignment_info")
    assert count_on_cpu(session) == ({"Neg": 2, "Abs": 1} if told else None)

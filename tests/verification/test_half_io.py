"""What is lost where inputs and outputs are FP16, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from in_memory_calibration import make_model, node, save, scalar, scan
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Batch, Tolerance
from overflow_fixer.verification.comparison import open_reference
from overflow_fixer.verification.half_io import RoundedRunner, find_wrong_input, say_over_range


def _graph(folder: Path) -> Graph:
    """y = 3 x + h, with h FP16 in the model itself, and j = 2 i of integers."""
    nodes = [
        node("Mul", "x three", "a"),
        node("Cast", "h", "w", to=TensorProto.FLOAT),
        node("Add", "a w", "y"),
        node("Add", "i i", "j"),
    ]
    inputs = {"x": [3], "h": (TensorProto.FLOAT16, [3]), "i": (TensorProto.INT64, [3])}
    types = {"j": TensorProto.INT64}
    return save(make_model(nodes, inputs, "y j", {"three": scalar(3)}, output_types=types), folder)


def test_floats_are_rounded_on_the_way_in_and_out_and_nothing_else_is(tmp_path: Path) -> None:
    graph = _graph(tmp_path)
    x = np.array([1.0002, 20001, 70000], np.float32)
    feeds = {"x": x, "h": np.float16([0.1, 0.2, 0.3]), "i": np.array([70001, 1, 2])}
    found = RoundedRunner(graph, open_reference(graph)).run(Batch("b", feeds))
    assert found["j"].tolist() == [140002, 2, 4]
    inner = np.array([1, 20000, np.inf]) * 3 + feeds["h"].astype(np.float64)
    assert found["y"].dtype == np.float16
    np.testing.assert_array_equal(found["y"], inner.astype(np.float16))
    assert feeds["x"] is x
    assert x[2] == 70000


def test_the_first_input_that_does_not_survive_is_found(tmp_path: Path) -> None:
    inputs = {"k": (TensorProto.INT64, [2]), "a": [2], "b": [2], "c": [2]}
    nodes = [node("Cast", "k", "f", to=TensorProto.FLOAT), node("Sum", "f a b c", "y")]
    graph = save(make_model(nodes, inputs, "y"), tmp_path)
    right, wide, small = (np.array(values, np.float32) for values in ([1.5, 2], [3, 1e5], [1e-9, 2e-9]))
    batch = Batch("b", {"k": np.array([70000, 1]), "a": right, "b": wide, "c": small})
    error = find_wrong_input(graph, batch, Tolerance())
    assert error is not None
    assert (error.tensor, error.candidate_inf, error.mismatched, error.worst_batch) == ("b", 1, 1, "b")
    lost = find_wrong_input(graph, Batch("b", {**batch.feeds, "b": right}), Tolerance())
    assert lost is not None
    assert (lost.tensor, lost.snr_db) == ("c", 0)
    assert find_wrong_input(graph, Batch("b", {**batch.feeds, "b": right, "c": right}), Tolerance()) is None
    later = find_wrong_input(graph, Batch("b", {**batch.feeds, "a": small}), Tolerance())
    assert later == error


def test_the_largest_input_or_output_over_the_range_is_named(tmp_path: Path) -> None:
    nodes = [node("Mul", "x three", "y"), node("Mul", "y three", "z"), node("Neg", "i", "n")]
    model = make_model(nodes, {"x": [1], "i": [1]}, "y n", {"three": scalar(3)})
    said = {}
    for x in (20000.0, 21840.0, 1e5):
        feeds = [{"x": np.array([value], np.float32), "i": np.float32([np.inf])} for value in (x / 2, x)]
        said[x] = list(say_over_range(*scan(model, tmp_path, *feeds)))
    start, end = (
        "Output y, which --io-types fp16 makes FP16, has max |x| of",
        "no plan mends that, --io-types keep does.",
    )
    assert said == {
        20000: [],
        21840: [f"{start} 65520 [batch_1], over FP16's 65504: {end}"],
        1e5: [
            f"{start} 300000 [batch_1], over FP16's 65504, the largest of 2 such inputs and outputs: {end}"
        ],
    }

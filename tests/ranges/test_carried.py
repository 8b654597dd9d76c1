"""Values leave the run that observes, whatever observes, as a plain run gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from scan_cases import save_model, value_info
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges.carried import Carried
from overflow_fixer.ranges.observers import Observe, open_observer
from overflow_fixer.ranges.wanted import Wanted
from overflow_fixer.records import Batch

BF16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
MODEL = """
    <ir_version: 8, opset_import: [ "" : 17 ]>
    g (float[N] x, float[N] z) => (float[N] y) <float[1] two = {2}> {
        h = Mul (x, two)
        half = Cast <to = 10> (h)
        narrow = Cast <to = 16> (h)
        flag = Less (x, two)
        items = SequenceConstruct (h, x)
        y = Relu (h)
    }"""
WAYS: tuple[Observe, ...] = ("reductions", "outputs")
FAST_AND_PLAIN: tuple[Observe, ...] = ("optimized", "outputs")


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(MODEL).SerializeToString())
    return load_graph(path)


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("observe", WAYS)
def test_any_type_leaves_the_run_that_observes(observe: Observe, probes: Probes, graph: Graph) -> None:
    x = np.array([1.0009765, -3, 7e4], np.float32)
    carried = ["y", "h", "half", "narrow", "flag", "items"]
    with use_probes(probes):
        observer = open_observer(
            graph, Wanted(["x", "h", "half", "narrow", "y"], carried=carried), observe, "cpu"
        )
        found, values = observer.observe(Batch("b", {"x": x, "z": x}))
    assert found["max"].tolist()[:2] == [7e4, np.float32(1.4e5)]
    assert list(values) == carried
    twice = x * 2
    with np.errstate(over="ignore"):
        expected = {
            "y": np.maximum(twice, 0),
            "h": twice,
            "half": twice.astype(np.float16),
            "narrow": twice.astype(BF16),
        }
    for name, array in expected.items():
        assert values[name].dtype == array.dtype
        assert values[name].tolist() == array.tolist()
    assert values["flag"].tolist() == [True, True, False]
    assert [item.tolist() for item in values["items"]] == [twice.tolist(), x.tolist()]


def test_a_fast_scan_hands_on_what_it_computes_itself(tmp_path: Path) -> None:
    """Sixteen channels are laid out in blocks."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((32, 16, 3, 3), np.float32), "w")
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 16, 8, 8])], [value_info("y")], [weight]
    )
    batch = Batch("b", {"x": rng.standard_normal((1, 16, 8, 8), np.float32)})
    found = [
        open_observer(graph, Wanted(["x", "h", "y"], carried=["h"]), way, "cpu").observe(batch)
        for way in FAST_AND_PLAIN
    ]
    one, other = (seen.values["h"] for seen in found)
    assert one.shape == other.shape == (1, 32, 6, 6)
    assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()
    assert found[0].summaries["max_abs"][1] == np.abs(one).max()


def test_constants_and_what_a_batch_gives_need_no_run(graph: Graph) -> None:
    carried = Carried(graph, ["two", "x", "h", "x"])
    assert carried.computed == ("h",)
    x, h = np.float32([1]), np.float32([2])
    found = carried.complete(Batch("b", {"x": x, "z": x}), {"h": h})
    assert (found["two"].tolist(), found["x"], found["h"]) == ([2.0], x, h)
    assert list(found) == ["two", "x", "h"]


def test_a_constant_that_a_batch_feeds_is_what_it_feeds(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: [ "" : 17 ]>
    g (float[1] x, float[1] w = {2}) => (float[1] y) { y = Mul (x, w) }"""
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    carried = Carried(load_graph(path), ["w"])
    x, w = np.float32([1]), np.float32([3])
    assert carried.complete(Batch("b", {"x": x}), {})["w"].tolist() == [2.0]
    assert carried.complete(Batch("b", {"x": x, "w": w}), {})["w"] is w

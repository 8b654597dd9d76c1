"""What holds for every rule of the table, on models of every kind."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, save, scalar
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules import DEFAULT_RULES

CALIB_DATA = Path(__file__).parents[2] / "calib_data"
SAMPLES = sorted(path.parent.name for path in CALIB_DATA.glob("*/model.onnx"))
POLICY = PlanPolicy(threshold=0.5, include_nodes=("",))
every_rule = pytest.mark.parametrize("rule", DEFAULT_RULES)


@cache
def _sample(name: str) -> tuple[Graph, RangeTable]:
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    feeds = [dict(np.load(file)) for file in sorted((CALIB_DATA / name / "data").glob("*.npz"))]
    return graph, collect_ranges(graph, InMemoryCalibration(tuple(feeds)))


def _oddities(folder: Path) -> tuple[Graph, RangeTable]:
    """No names, twice the same name, left out inputs, sequences, control flow, other domains and types."""
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Add", ["h", "low"], ["inner"])], "body", [], [info])
    nodes = [
        node("Clip", "x - low", "a", name="twice"),
        node("Clip", "x", "b", name="twice"),
        node("SequenceConstruct", "a b", "s", name=""),
        node("SequenceAt", "s zero", "d", name=""),
        node("Cast", "d", "e", to=TensorProto.DOUBLE, name=""),
        node("Div", "e tiny64", "f", name=""),
        node("Cast", "f", "g", to=TensorProto.FLOAT16, name=""),
        node("Cast", "g", "h", to=TensorProto.FLOAT, name=""),
        node("If", "c", "i", then_branch=body, else_branch=body, name=""),
        node("Gelu", "i", "j", domain="com.microsoft", name=""),
        node("NonZero", "j", "where", name=""),
        node("GatherND", "j none", "empty", name=""),
        node("ReduceSum", "empty", "total", name="", keepdims=0),
        node("Shape", "j", "k", name=""),
        node("Constant", "", "l", value=numpy_helper.from_array(floats(math.nan, math.inf)), name=""),
        node("ConstantOfShape", "k", "m", name=""),
        node("Dropout", "m", "n mask", name=""),
        node("Add", "n l", "o", name=""),
        node("Add", "o total", "p", name=""),
        node("MatMul", "large small", "q", name=""),
        node("Add", "p q", "y", name=""),
    ]
    model = make_model(
        nodes,
        {"x": ["n"], "c": (TensorProto.BOOL, [])},
        "y",
        {
            "low": scalar(-1e9),
            "zero": np.asarray(0, np.int64),
            "tiny64": np.asarray(1e-300),
            "none": np.zeros((0, 1), np.int64),
            "unused": ints(2**62),
            "large": floats(50000, 50000),
            "small": floats(1, -1),
        },
        opset=13,
    )
    graph = save(model, folder)
    feeds = [
        {"x": floats(1, math.nan), "c": np.asarray(True)},
        {"x": floats(-math.inf, 0), "c": np.asarray(False)},
    ]
    return graph, collect_ranges(graph, InMemoryCalibration(tuple(feeds)))


def _small_and_counted(folder: Path) -> tuple[Graph, RangeTable]:
    """Values that FP16 makes zero, positions that it cannot tell apart, places and angles; some in a body."""
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Sin", ["phase"], ["inner"])], "body", [], [info])
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Sub", "p last", "d"),
        node("Mul", "p third", "phase"),
        node("If", "c", "s", then_branch=body, else_branch=body),
        node("Cos", "phase", "t"),
        node("Mul", "x small", "a"),
        node("Sign", "a", "sign"),
        node("Div", "d a", "q"),
        node("Exp", "x", "e"),
        node("Mul", "e small", "rate"),
        node("Add", "x far", "place"),
        node("Sub", "place far", "side"),
        node("ReduceMax", "place", "most", keepdims=0),
        node("Expand", "most corners", "boxes"),
        node("RoiAlign", "image boxes index", "cut"),
        node("Range", "far most third", "steps"),
        node("ReduceSum", "steps", "total", keepdims=0),
        node("Softmax", "place", "share", axis=0),
        node("Pow", "near p", "decay"),
        node("ReduceMean", "x", "mean", keepdims=0),
        node("Mul", "mean third", "spot"),
        node("Expand", "spot pair", "grid"),
        node("GridSample", "wide grid", "seen"),
        node("Sum", "d s t q side cut total share decay seen sign", "y"),
    ]
    inputs = {"ids": (TensorProto.INT64, [3]), "c": (TensorProto.BOOL, []), "x": [3]}
    constants = {"corners": ints(1, 4), "image": np.ones((1, 1, 2, 2), np.float32), "index": ints(0)}
    constants |= {"last": scalar(2999), "far": scalar(5000), "third": scalar(1 / 3), "small": scalar(1e-8)}
    noise = np.random.default_rng(0).standard_normal((1, 1, 2, 1200)).astype(np.float32)
    constants |= {"near": scalar(0.9999), "pair": ints(1, 1, 1, 2), "wide": noise}
    graph = save(make_model(nodes, inputs, "y rate", constants), folder)
    feeds = {"ids": ints(0, 1500, 3001), "c": np.asarray(True), "x": floats(0.5, 1, 2)}
    return graph, collect_ranges(graph, InMemoryCalibration((feeds,)))


def _findings(rule: str, graph: Graph, ranges: RangeTable) -> list[Finding]:
    return [found for at in graph.nodes for found in DEFAULT_RULES[rule](at, graph, ranges, POLICY)]


MADE = {"oddities": _oddities, "small_and_counted": _small_and_counted}


@pytest.fixture(params=[*SAMPLES, *MADE])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Graph, RangeTable]:
    return MADE[request.param](tmp_path) if request.param in MADE else _sample(request.param)


@every_rule
def test_each_rule_finds_something_in_one_of_these_models(rule: str, tmp_path: Path) -> None:
    """Or what follows would be about nothing."""
    for name in MADE:
        (tmp_path / name).mkdir()
    models = [*map(_sample, SAMPLES), *(make(tmp_path / name) for name, make in MADE.items())]
    assert any(_findings(rule, *model) for model in models)


@every_rule
def test_a_finding_is_complete_and_about_the_node_it_was_asked_of(
    rule: str, model: tuple[Graph, RangeTable]
) -> None:
    graph, ranges = model
    for at in graph.nodes:
        for found in DEFAULT_RULES[rule](at, graph, ranges, POLICY):
            assert found.node == at.label
            assert found.action in ("pin", "none")
            if rule == "control_flow":  # what the other rules find in a body
                assert found.rule in DEFAULT_RULES.keys() - {rule}
                assert found.tensor in (*graph.tensors, *ranges.by_tensor, "")
            else:
                assert found.rule == rule
                assert found.tensor in (*graph.tensors, "")
            assert found.reason
            assert "\n" not in found.reason
            assert found.batch is None or found.batch in ranges.batch_names
            assert isinstance(found.value, float)
            assert isinstance(found.limit, float)


@every_rule
def test_asking_again_gives_the_same(rule: str, model: tuple[Graph, RangeTable]) -> None:
    first, second = (_findings(rule, *model) for _ in range(2))
    assert list(map(repr, first)) == list(map(repr, second))
    assert len(set(map(repr, first))) == len(first)


def test_every_rule_finds_something_somewhere(tmp_path: Path) -> None:
    models = [*(make(tmp_path) for make in MADE.values()), _sample("masked_attention")]
    assert all(any(_findings(rule, *model) for model in models) for rule in DEFAULT_RULES)


def test_rules_take_another_graphs_turn(tmp_path: Path) -> None:
    """What a rule remembers of one graph is not told of another."""
    one, other = _sample("masked_attention"), _sample("conv_chain")
    alone = repr(_findings("constant_range", *one))
    assert _findings("constant_range", *other) == []
    assert repr(_findings("constant_range", *one)) == alone

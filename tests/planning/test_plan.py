"""Findings become pins, clamps and what was considered; the user's word and the model's types have the last."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, scalar, scan
from onnx import TensorProto, numpy_helper

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.planning.plan import add_pins, plan_precision
from overflow_fixer.planning.plan_fit import check_plan
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Finding, PlanPolicy, PrecisionPlan, RangeTable
from overflow_fixer.rules import DEFAULT_RULES
from overflow_fixer.rules.settling import is_pinnable

CALIB_DATA = Path(__file__).parents[2] / "calib_data"
MIN = float(np.finfo(np.float32).min)


def _overflowing(folder: Path) -> tuple[Graph, RangeTable]:
    """x -> up (over the threshold) -> down -> tail, and an index of the largest element beside it."""
    model = make_model(
        [
            node("Mul", "x big", "up"),
            node("Mul", "up small", "down"),
            node("Tanh", "down", "y"),
            node("ArgMax", "up", "best"),
            node("Greater", "up small", "flag"),
            node("Cast", "up", "wide", to=TensorProto.DOUBLE),
            node("Shape", "up", "size"),
        ],
        {"x": [4]},
        "y best flag wide size",
        {"big": scalar(30000), "small": scalar(1e-4)},
        output_types={
            "best": TensorProto.INT64,
            "flag": TensorProto.BOOL,
            "wide": TensorProto.DOUBLE,
            "size": TensorProto.INT64,
        },
    )
    return scan(model, folder, {"x": floats(1, 2, 3, -1)})


def _masked(folder: Path, *more: onnx.NodeProto) -> tuple[Graph, RangeTable]:
    """A Where mask that is provably clamped, unless something is pinned on its way."""
    model = make_model(
        [
            node("Unsqueeze", "k axes", "k1"),
            node("Where", "c k1 x", "w"),
            node("Identity", "w", "s"),
            node("Softmax", "s", "p"),
            node("Neg", "p", "y"),
            *more,
        ],
        {"x": [2, 4], "c": (TensorProto.BOOL, [2, 4])},
        "y",
        {"k": scalar(MIN), "axes": ints(0)},
    )
    feeds = {"x": np.full((2, 4), 50, np.float32), "c": np.eye(2, 4, dtype=bool)}
    return scan(model, folder, feeds)


def test_the_nodes_that_touch_what_is_over_the_threshold_are_pinned_in_order(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert [(pin.node, pin.op_type, pin.outputs) for pin in plan.pins] == [
        ("Mul_up", "Mul", ("up",)),
        ("Mul_down", "Mul", ("down",)),
    ]
    assert plan.pinned == {"Mul_up", "Mul_down"}
    assert (plan.model_sha256, plan.threshold) == (graph.sha256, 10000)
    assert {finding.tensor for finding in plan.pins[0].findings} == {"up", "big"}


def test_nodes_without_an_fp32_output_are_never_pinned_and_said_so(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Shape",)))
    considered = {finding.node: finding for finding in plan.considered}
    assert set(considered) == {"ArgMax_best", "Greater_flag", "Cast_wide", "Shape_size"}
    assert all(finding.action == "none" for finding in plan.considered)
    assert all("not pinned: it computes no FP32 value" in finding.reason for finding in plan.considered)
    assert any(f.rule == "user" for f in plan.considered)


def test_a_constant_is_never_pinned(tmp_path: Path) -> None:
    value = numpy_helper.from_array(scalar(70000))
    nodes = [node("Constant", "", "big", value=value), node("Div", "x big", "y")]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y"), tmp_path, {"x": floats(1, 2)})
    plan = plan_precision(graph, ranges, PlanPolicy(include_ops=("Constant",)))
    assert plan.pinned == {"Div_y"}
    assert all("a constant is typed by its readers" in finding.reason for finding in plan.considered)
    assert {finding.node for finding in plan.considered} == {"Constant_big"}


def test_a_node_with_one_fp32_output_among_others_is_pinnable(tmp_path: Path) -> None:
    nodes = [node("TopK", "x k", "y i"), node("Identity", "i", "j")]
    model = make_model(nodes, {"x": [4]}, "y j", {"k": ints(2)}, output_types={"j": TensorProto.INT64})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2, 3, 20000)})
    assert [is_pinnable(graph, at) for at in graph.nodes] == [True, False]
    assert plan_precision(graph, ranges, PlanPolicy()).pinned == {"TopK_y"}


@pytest.mark.parametrize(
    "policy", [PlanPolicy(exclude_nodes=("down$",)), PlanPolicy(exclude_nodes=("Mul_d", "^Mul_down$"))]
)
def test_exclusion_wins_over_every_rule_and_is_recorded(policy: PlanPolicy, tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, replace(policy, include_nodes=("down",)))
    assert plan.pinned == {"Mul_up"}
    found = [finding for finding in plan.considered if finding.node == "Mul_down"]
    assert {finding.rule for finding in found} == {"threshold", "user"}
    assert all(f.action == "none" and "left in FP16 because you excluded it" in f.reason for f in found)


def test_exclusion_by_operator(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(exclude_ops=("Mul",), include_ops=("Tanh",)))
    assert plan.pinned == {"Tanh_y"}
    assert {f.node for f in plan.considered if "excluded" in f.reason} == {"Mul_up", "Mul_down"}


def test_nodes_of_one_name_are_chosen_by_their_outputs(tmp_path: Path) -> None:
    nodes = [node("Mul", "x x", "a", name="same"), node("Tanh", "a", "y", name="same")]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y"), tmp_path, {"x": floats(1, 2)})
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("^node_of_y$",)))
    assert plan.pinned == {"node_of_y"}
    with pytest.raises(PlanError, match=r"'\^same\$' matches none of the 2 nodes"):
        plan_precision(graph, ranges, PlanPolicy(exclude_nodes=("^same$",)))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            PlanPolicy(include_nodes=("nothing",)),
            ["'nothing'", "matches none of the 7 nodes", "goes by node_of_OUTPUT"],
        ),
        (PlanPolicy(exclude_nodes=("Mul", "nothing")), ["'nothing'", "matches none"]),
        (PlanPolicy(include_nodes=("Mul(",)), ["'Mul('", "not a regular expression", "backslash"]),
        (PlanPolicy(include_ops=("mul",)), ["'mul'", "ArgMax, Cast, Greater, Mul, Shape, Tanh"]),
        (PlanPolicy(exclude_ops=("Conv",)), ["'Conv'", "Expected one of"]),
        (PlanPolicy(include_ops=("Mul",), exclude_ops=("Tanh", "Mul")), ["'Mul'", "included and excluded"]),
        (PlanPolicy(include_nodes=("he",), exclude_nodes=("he",)), ["'he'", "included and excluded"]),
    ],
)
def test_a_choice_that_matches_nothing_or_contradicts_itself_is_an_error(
    policy: PlanPolicy, words: list[str], tmp_path: Path
) -> None:
    graph, ranges = _overflowing(tmp_path)
    with pytest.raises(PlanError) as caught:
        plan_precision(graph, ranges, policy)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_a_pattern_that_is_written_as_an_operator_is_no_contradiction(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Mul",), exclude_ops=("Mul",)))
    assert not [pin for pin in plan.pins if pin.op_type == "Mul"]


def test_ranges_of_another_model_are_an_error(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    with pytest.raises(PlanError, match="recorded for another model"):
        plan_precision(graph, replace(ranges, model_sha256="0" * 64), PlanPolicy())


def test_rules_can_be_chosen(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Tanh",)), rules={})
    assert plan.pins == plan.considered == ()


def test_a_clamped_mask_pins_nothing_and_is_recorded(tmp_path: Path) -> None:
    graph, ranges = _masked(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == ()
    (clamp,) = plan.clamps
    assert (clamp.tensor, clamp.magnitude, clamp.covers) == ("k", 25000, ("k1", "s", "w"))
    assert {finding.node for finding in plan.considered} == {
        "Unsqueeze_k1",
        "Where_w",
        "Identity_s",
        "Softmax_p",
    }
    assert all(finding.action == "clamp" for finding in plan.considered)
    assert all(finding.reason.count("clamped to -25000") == 1 for finding in plan.considered)


def _causal(folder: Path, value: float) -> tuple[Graph, RangeTable]:
    """softmax(x + mask), its 4 x 4 mask handed on once."""
    nodes = [node("Add", "x k", "w"), node("Identity", "w", "s"), node("Softmax", "s", "y")]
    mask = np.triu(np.full((4, 4), value, np.float32), 1)
    model = make_model(nodes, {"x": [4, 4]}, "y", {"k": mask})
    return scan(model, folder, {"x": np.linspace(-9, 9, 16, dtype=np.float32).reshape(4, 4)})


@pytest.mark.parametrize(("value", "clamped"), [(-10000, False), (-30000, True), (-65504, True)])
def test_a_mask_that_fp16_holds_pins_nothing(value: float, clamped: bool, tmp_path: Path) -> None:
    graph, ranges = _causal(tmp_path, value)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == ()
    assert [clamp.tensor for clamp in plan.clamps] == ["k"] * clamped
    assert {finding.node for finding in plan.considered} == {"Add_w", "Identity_s", "Softmax_y"}
    action, said = ("clamp", "clamped to -25000: Softmax") if clamped else ("none", "left as it is: Softmax")
    assert {finding.action for finding in plan.considered} == {action}
    assert all(finding.reason.count(said) == 1 for finding in plan.considered)
    pinned = plan_precision(graph, ranges, PlanPolicy(masks="pin")).pinned
    assert pinned == {"Add_w", "Identity_s", "Softmax_y"}


def test_your_own_choice_pins_where_a_mask_that_fp16_holds_is_left(tmp_path: Path) -> None:
    graph, ranges = _causal(tmp_path, -10000)
    assert plan_precision(graph, ranges, PlanPolicy(include_nodes=("Add_w",))).pinned >= {"Add_w"}


def test_a_mask_that_fp16_holds_and_that_pins_says_why(tmp_path: Path) -> None:
    nodes = [node("Add", "x k", "s"), node("Softmax", "s", "y")]
    model = make_model(nodes, {"x": [4, 4]}, "y", {"k": np.full((4, 4), -10000, np.float32)})
    graph, ranges = scan(model, tmp_path, {"x": np.full((4, 4), -1, np.float32)})
    plan = plan_precision(graph, ranges, PlanPolicy())
    reasons = [finding.reason for pin in plan.pins for finding in pin.findings if finding.rule == "threshold"]
    assert len(reasons) == 2
    assert all("not proved as a mask: it masks a row as a whole" in reason for reason in reasons)


def test_a_mask_that_fp16_holds_at_a_lower_threshold(tmp_path: Path) -> None:
    graph, ranges = _causal(tmp_path, -10000)
    assert plan_precision(graph, ranges, PlanPolicy(threshold=5000)).pins == ()
    assert {"Add_w", "Softmax_y"} <= plan_precision(graph, ranges, PlanPolicy(threshold=5)).pinned


def test_masks_pin_pins_instead(tmp_path: Path) -> None:
    graph, ranges = _masked(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(masks="pin"))
    assert plan.pinned == {"Unsqueeze_k1", "Where_w", "Identity_s", "Softmax_p"}
    assert plan.clamps == ()


def test_a_row_that_is_masked_as_a_whole_is_answered_by_the_clamp(tmp_path: Path) -> None:
    """Its mask replaces the scores, so that the row is constant before and after."""
    graph, _ = _masked(tmp_path)
    data = {"x": np.full((2, 4), 50, np.float32), "c": np.array([[True] * 4, [True, False] * 2])}
    ranges = collect_ranges(graph, InMemoryCalibration((data,)))
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert not plan.pins
    assert len(plan.clamps) == 1
    (told,) = [finding for finding in plan.considered if finding.rule == "inner_value"]
    assert (told.node, told.action) == ("Softmax_p", "clamp")
    pinned = plan_precision(graph, ranges, PlanPolicy(masks="pin"))
    assert "inner_value" in {f.rule for pin in pinned.pins for f in pin.findings if pin.node == "Softmax_p"}


def test_a_pinned_mask_says_why_it_is_not_clamped(tmp_path: Path) -> None:
    graph, ranges = _masked(tmp_path, node("Max", "x k", "z"), node("Neg", "z", "z2"))
    plan = plan_precision(graph, ranges, PlanPolicy())
    reasons = {f.reason for pin in plan.pins for f in pin.findings if f.rule == "constant_range"}
    assert reasons
    assert all(
        reason.endswith("Max Max_z reads it, not Softmax behind an Add or Where") for reason in reasons
    )
    (bound,) = [finding for finding in plan.considered if finding.node == "Max_z"]
    assert bound.action == "none"


@pytest.mark.parametrize(
    ("pinned", "clamped"), [("Where_w", False), ("Unsqueeze_k1", False), ("Softmax_p", True), ("Neg_y", True)]
)
def test_a_clamp_is_given_up_when_a_node_on_its_way_runs_in_fp32(
    pinned: str, clamped: bool, tmp_path: Path
) -> None:
    """In FP32 the node would read the constant as it is, and hand -3.4e38 on to FP16."""
    graph, ranges = _masked(tmp_path)
    chosen = plan_precision(graph, ranges, PlanPolicy(include_nodes=(f"^{pinned}$",)))
    finding = Finding("repair", pinned, "x", 1.0, 2.0, "because")
    added = add_pins(plan_precision(graph, ranges, PlanPolicy()), graph, PlanPolicy(), [finding])
    for plan in (chosen, added):
        assert bool(plan.clamps) is clamped
        everything = {"Unsqueeze_k1", "Where_w", "Identity_s", "Softmax_p"}
        assert plan.pinned == ({pinned} if clamped else everything)
        assert any("not clamped after all" in f.reason for p in plan.pins for f in p.findings) is not clamped


def _triangle(folder: Path) -> tuple[Graph, RangeTable]:
    """x + triu(full(-3.4e38), 1) of any size, under a Softmax."""
    nodes = [
        node("Shape", "x", "size"),
        node("ConstantOfShape", "size", "full", value=numpy_helper.from_array(floats(MIN))),
        node("Trilu", "full one", "tri"),
        node("Add", "x tri", "s"),
        node("Softmax", "s", "y"),
    ]
    model = make_model(nodes, {"x": ["n", "n"]}, "y", {"one": np.asarray(1, np.int64)})
    return scan(model, folder, {"x": np.eye(4, dtype=np.float32)}, {"x": np.full((7, 7), -9, np.float32)})


@pytest.mark.parametrize(
    ("pinned", "clamped"),
    [("ConstantOfShape_full", False), ("Trilu_tri", False), ("Add_s", False), ("Softmax_y", True)],
)
def test_a_clamp_of_what_fills_a_tensor(pinned: str, clamped: bool, tmp_path: Path) -> None:
    graph, ranges = _triangle(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == set()
    assert [(clamp.tensor, clamp.covers) for clamp in plan.clamps] == [("full", ("s", "tri"))]
    check_plan(graph, plan)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=(f"^{pinned}$",)))
    assert bool(plan.clamps) is clamped
    everything = {"ConstantOfShape_full", "Trilu_tri", "Add_s", "Softmax_y"}
    assert plan.pinned == ({pinned} if clamped else everything)


def test_a_clamp_given_up_pins_no_excluded_node(tmp_path: Path) -> None:
    graph, ranges = _masked(tmp_path)
    policy = PlanPolicy(include_nodes=("Where",), exclude_nodes=("Identity",))
    plan = plan_precision(graph, ranges, policy)
    assert plan.pinned == {"Unsqueeze_k1", "Where_w", "Softmax_p"}
    assert any(f.node == "Identity_s" and "excluded" in f.reason for f in plan.considered)


def test_a_lower_threshold_than_the_scores_gives_the_clamp_up(tmp_path: Path) -> None:
    graph, ranges = _masked(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=40))
    assert plan.clamps == ()
    assert {"Where_w", "Identity_s", "Softmax_p"} <= plan.pinned


def test_pins_are_added_in_the_order_of_the_graph_and_once_a_node(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    names = ("Tanh_y", "Mul_up", "ArgMax_best")
    more = [Finding("repair", name, "up", math.nan, 30.0, "because") for name in names]
    wider = add_pins(plan, graph, PlanPolicy(), more)
    assert [pin.node for pin in wider.pins] == ["Mul_up", "Mul_down", "Tanh_y"]
    assert wider.pins[0].findings == (*plan.pins[0].findings, more[1])
    assert "ArgMax_best" in {finding.node for finding in wider.considered}
    assert [pin.node for pin in plan.pins] == ["Mul_up", "Mul_down"]


def test_added_pins_respect_exclusion(tmp_path: Path) -> None:
    graph, ranges = _overflowing(tmp_path)
    policy = PlanPolicy(exclude_ops=("Tanh",))
    finding = Finding("repair", "Tanh_y", "y", 1.0, 30.0, "because")
    wider = add_pins(plan_precision(graph, ranges, policy), graph, policy, [finding])
    assert "Tanh_y" not in wider.pinned
    assert wider.considered[-1].action == "none"


def test_an_empty_plan_pins_nothing() -> None:
    assert PrecisionPlan("0" * 64, 10000.0, ()).pinned == frozenset()


@pytest.mark.parametrize(
    ("sample", "pins"),
    [
        ("needs_constraints", {"/Add", "/Sub"}),
        ("conv_chain", {"/conv4/Conv", "/relu4/Relu", "/conv5/Conv", "/relu5/Relu", "/conv6/Conv"}),
        (
            "layernorm_transformer",
            {
                f"/{norm}/{op}"
                for norm in ("ln_1", "ln_2", "ln_f")
                for op in ("ReduceMean", "Sub", "Pow", "ReduceMean_1", "Add", "Sqrt", "Div", "Mul", "Add_1")
            },
        ),
        ("masked_attention", {"/Mul", "/attention/self/Add", "/attention/self/Softmax"}),
    ],
)
def test_few_nodes_of_the_samples_are_pinned(sample: str, pins: set[str]) -> None:
    graph = load_graph(CALIB_DATA / sample / "model.onnx")
    feeds = [dict(np.load(file)) for file in sorted((CALIB_DATA / sample / "data").glob("*.npz"))]
    ranges = collect_ranges(graph, InMemoryCalibration(tuple(feeds)))
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == pins
    assert plan.clamps == ()


def test_a_mask_that_no_sample_used_is_pinned_all_the_same() -> None:
    graph = load_graph(CALIB_DATA / "masked_attention" / "model.onnx")
    feeds = {"input_ids": np.ones((1, 8), np.int64), "attention_mask": np.ones((1, 8), np.int64)}
    plan = plan_precision(graph, collect_ranges(graph, InMemoryCalibration((feeds,))), PlanPolicy())
    assert plan.pinned == {"/Mul", "/attention/self/Add", "/attention/self/Softmax"}


NORM = ("ReduceMean_m", "Sub_d", "Pow_q", "ReduceMean_v", "Add_s", "Sqrt_r", "Div_n", "Mul_w", "Add_y")


def _norm(folder: Path, size: float = 1.0, epsilon: float = 1e-5) -> tuple[Graph, RangeTable]:
    """A LayerNorm written out, between two nodes; `size` is that of what comes in."""
    model = make_model(
        [
            node("Neg", "x", "h"),
            node("ReduceMean", "h", "m", axes=[-1]),
            node("Sub", "h m", "d"),
            node("Pow", "d two", "q"),
            node("ReduceMean", "q", "v", axes=[-1]),
            node("Add", "v eps", "s"),
            node("Sqrt", "s", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n g", "w"),
            node("Add", "w b", "y"),
            node("Tanh", "y", "z"),
        ],
        {"x": [2, 4]},
        "z",
        {
            "two": scalar(2),
            "eps": scalar(epsilon),
            "g": floats(1, 2, 3, 4),
            "b": floats(1, -1, 1, -1),
        },
        opset=13,
    )
    return scan(model, folder, {"x": floats(-1, 2, -3, 4, 1, 1, -1, -1).reshape(2, 4) * np.float32(size)})


def _of_region(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.node: finding for finding in findings if finding.rule == "region"}


def _from_region(plan: PrecisionPlan) -> dict[str, Finding]:
    return _of_region(finding for pin in plan.pins for finding in pin.findings)


def test_a_region_alone_pins_nothing(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == plan.considered == ()


def test_a_pin_takes_its_region_along_and_nothing_else(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path, size=50)
    plan = plan_precision(graph, ranges, PlanPolicy())
    by_rules = plan.pinned - set(_from_region(plan))
    assert plan.pinned == set(NORM)
    assert {"Pow_q"} <= by_rules < set(NORM)
    found = _from_region(plan)
    assert all("in one LayerNorm with " in finding.reason for finding in found.values())
    causes = [f for pin in plan.pins for f in pin.findings if f.rule != "region"]
    assert {(f.value, f.limit, f.batch) for f in found.values()} <= {
        (f.value, f.limit, f.batch) for f in causes
    }


def test_an_epsilon_that_vanishes_takes_the_region_along(tmp_path: Path) -> None:
    """Of rows whose variance is 9e-6, below FP16's least normal number."""
    graph, ranges = _norm(tmp_path, size=0.003, epsilon=1e-12)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == set(NORM)
    assert all("which the rule vanishing_constant pins" in f.reason for f in _from_region(plan).values())


def test_rows_whose_variance_is_zero(tmp_path: Path) -> None:
    """Behind the epsilon stand a root of 1e-6 and a quotient of zeros."""
    graph, ranges = _norm(tmp_path, size=0, epsilon=1e-12)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == set(NORM)
    (pin,) = (pin for pin in plan.pins if pin.node == "Add_s")
    assert {"vanishing_constant", "vanishing_divisor"} <= {finding.rule for finding in pin.findings}


def test_an_epsilon_that_guards_nothing_leaves_the_region_in_fp16(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path, epsilon=1e-12)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == ()
    assert [(f.rule, f.node, f.action) for f in plan.considered] == [("vanishing_constant", "Add_s", "none")]


def test_your_own_choice_takes_the_region_along(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Sqrt_r",)))
    assert plan.pinned == set(NORM)
    assert set(_from_region(plan)) == set(NORM) - {"Sqrt_r"}


def test_what_you_exclude_of_a_region_is_left_and_said_so(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    plan = plan_precision(
        graph, ranges, PlanPolicy(include_nodes=("Sqrt_r",), exclude_nodes=("Add_y", "Sub"))
    )
    assert plan.pinned == set(NORM) - {"Add_y", "Sub_d"}
    left = _of_region(plan.considered)
    assert set(left) == {"Add_y", "Sub_d"}
    assert all(f.action == "none" and "because you excluded it" in f.reason for f in left.values())


def _add(plan: PrecisionPlan, graph: Graph, *findings: Finding) -> PrecisionPlan:
    return add_pins(plan, graph, PlanPolicy(protected={"Pow": "it does that itself"}), findings)


def test_what_does_not_pin_does_not_spread(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    protected = Finding("inner_value", "Pow_q", "d", 1e6, 1e4, "because")
    noted = replace(protected, rule="accumulator", node="Sub_d", action="none")
    widened = _add(plan, graph, protected, noted)
    assert widened.pins == ()
    assert [finding.action for finding in widened.considered] == ["none", "protected"]


def test_the_severity_is_that_of_the_gravest_cause(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy())
    mild = Finding("accumulator", "ReduceMean_m", "m", 7e4, 65504, "because", severity="low")
    grave = Finding("repair", "Div_n", "n", 3.0, 30, "because")
    assert {f.severity for f in _from_region(_add(plan, graph, mild)).values()} == {"low"}
    both = _from_region(_add(plan, graph, mild, grave))
    assert {(f.severity, f.value) for f in both.values()} == {("high", 3.0)}
    assert set(both) == set(NORM) - {"ReduceMean_m", "Div_n"}
    assert all("with Div_n, which the rule repair pins" in f.reason for f in both.values())


def test_a_region_is_spread_once_however_often_pins_are_added(tmp_path: Path) -> None:
    graph, ranges = _norm(tmp_path)
    policy = PlanPolicy(include_nodes=("Sqrt_r",), exclude_nodes=("Add_y",))
    plan = plan_precision(graph, ranges, policy)
    more = Finding("repair", "Tanh_z", "z", 1.0, 30.0, "because")
    widened = add_pins(plan, graph, policy, [more])
    assert widened.pinned == plan.pinned | {"Tanh_z"}
    assert _from_region(widened) == _from_region(plan)
    assert widened.considered == plan.considered


def _masked_attention(folder: Path) -> tuple[Graph, RangeTable]:
    """softmax(where(c, -3.4e38, q k)) v: a mask that is provably clamped."""
    nodes = [
        node("MatMul", "q q", "s"),
        node("Where", "c low s", "u"),
        node("Softmax", "u", "p"),
        node("MatMul", "p q", "y"),
    ]
    inputs = {"q": [3, 3], "c": (TensorProto.BOOL, [3, 3])}
    model = make_model(nodes, inputs, "y", {"low": scalar(MIN)}, opset=13)
    return scan(model, folder, {"q": np.eye(3, dtype=np.float32), "c": np.eye(3, dtype=bool)})


def test_a_pinned_softmax_does_not_undo_the_clamp_of_its_mask(tmp_path: Path) -> None:
    graph, ranges = _masked_attention(tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(include_ops=("Softmax",)))
    assert plan.pinned == {"Softmax_p"}
    assert [clamp.tensor for clamp in plan.clamps] == ["low"]


def test_without_the_clamp_mask_and_softmax_go_together_and_no_product_does(tmp_path: Path) -> None:
    graph, ranges = _masked_attention(tmp_path)
    by_data = plan_precision(graph, ranges, PlanPolicy(masks="pin"))
    assert by_data.pinned == {"Where_u", "Softmax_p"}
    for chosen in ("Softmax_p", "Where_u"):
        policy = PlanPolicy(include_nodes=(chosen,), masks="pin")
        alone = plan_precision(graph, ranges, policy, rules={"user": DEFAULT_RULES["user"]})
        assert alone.pinned == {"Where_u", "Softmax_p"}
    product = PlanPolicy(include_nodes=("MatMul_s",))
    assert plan_precision(graph, ranges, product, rules={"user": DEFAULT_RULES["user"]}).pinned == {
        "MatMul_s"
    }

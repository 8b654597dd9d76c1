"""What is wrong inside a body alone pins the node that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, ask, floats, pinned_by

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch, PlanPolicy, RangeTable
from overflow_fixer.rules.control_flow import find_inside_bodies
from overflow_fixer.verification.comparison import open_reference

TRUE, FALSE = np.array(True), np.array(False)


def _scan(
    folder: Path, text: str, feeds: Sequence[dict[str, Any]], functions: str = ""
) -> tuple[Graph, RangeTable]:
    imports = '"" : 17' + (', "local" : 1' if functions else "")
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{text}\n{functions}")
    onnx.save(model, folder / "m.onnx")
    graph = load_graph(folder / "m.onnx")
    return graph, collect_ranges(graph, InMemoryCalibration(tuple(feeds)))


def _loop(inside: str) -> str:
    """A loop from s to t, as often as `trips` says; `w` is captured, and a weight."""
    return f"""
    g (float[4] x, float[4] live, int64 trips) => (float[N] y) <float[4] w = {{1, 2, 3, 4}}> {{
        [repeat] end = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) {{ {inside} }}
        >
        [last] y = Tanh (end)
    }}"""


def _feeds(*x: float, trips: int = 3) -> list[dict[str, Any]]:
    return [{"x": floats(*x), "live": floats(1, 2, 3, 4), "trips": np.array(trips)}]


def test_a_tensor_over_the_threshold_in_a_body_alone(tmp_path: Path) -> None:
    text = _loop("sq = Mul (s, s) [up] h = Mul (sq, sq) r = Sqrt (h) [down] t = Sqrt (r)")
    graph, ranges = _scan(tmp_path, text, _feeds(1, 2, 3, 20))
    assert all(ranges.by_tensor[name].max_abs <= 10000 for name in graph.tensors if graph.is_float(name))
    found = ask(find_inside_bodies, graph, ranges)
    assert {(one.rule, one.node, one.tensor) for one in found} == {("threshold", "repeat", "repeat/body/h")}
    up, reader, *_ = found
    assert up.value == 160000
    assert (up.limit, up.batch, up.action) == (10000, "batch_0", "pin")
    assert up.reason.startswith("inside repeat/body, node up: writes h, whose max |x| of 160000 is over")
    assert "node node_of_r: reads h" in reader.reason
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == {"repeat"}
    assert plan.pins[0].op_type == "Loop"


@pytest.mark.parametrize(("x", "rule"), [(0.0, "non_finite"), (3e38, "non_finite")])
def test_nan_or_infinity_in_a_body_alone(x: float, rule: str, tmp_path: Path) -> None:
    inside = """
        scale = Constant <value_float = 3e38> ()
        e = Mul (s, scale)
        bad = Div (e, s)
        nan = IsNaN (bad)
        inf = IsInf (e)
        odd = Or (nan, inf)
        one = Constant <value_float = 1.0> ()
        [mend] t = Where (odd, one, s)
    """
    graph, ranges = _scan(tmp_path, _loop(inside), _feeds(x, 0.5, 0.25, 0.125, trips=1))
    rules = {(one.rule, one.tensor) for one in ask(find_inside_bodies, graph, ranges)}
    assert (rule, "repeat/body/bad") in rules
    outside = {one.rule for one in ask(find_inside_bodies, graph, ranges) if one.tensor in graph.tensors}
    assert outside == set()
    assert plan_precision(graph, ranges, PlanPolicy(threshold=65504)).pinned == {"repeat"}


def test_nothing_is_found_in_a_healthy_body(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, _loop("a = Add (s, w) t = Tanh (a)"), _feeds(1, 2, 3, 4))
    assert ask(find_inside_bodies, graph, ranges) == []
    assert plan_precision(graph, ranges, PlanPolicy()).pins == ()


def test_a_captured_weight_keeps_its_name_and_a_captured_tensor_is_that_of_the_body(tmp_path: Path) -> None:
    text = _loop("[a] p = Mul (s, w) [b] t = Mul (p, live)")
    graph, ranges = _scan(tmp_path, text, _feeds(1, 1, 1, 1, trips=1))
    found = ask(find_inside_bodies, graph, ranges, PlanPolicy(threshold=3.5))
    assert [(one.tensor, one.value) for one in found if "node a:" in one.reason] == [
        ("repeat/body/p", 4),
        ("w", 4),
    ]
    assert ("repeat/body/live", 4.0) in [(one.tensor, one.value) for one in found]


LAYER_NORM = "[norm] t = LayerNormalization (s, w)"


def test_a_value_inside_a_node_inside_a_body(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, _loop(LAYER_NORM), _feeds(-900, 900, -900, 900, trips=1))
    found = ask(find_inside_bodies, graph, ranges)
    assert [(one.rule, one.value, one.action) for one in found] == [
        ("inner_value", 810000, "pin"),
        ("inner_value", 3240000, "pin"),
    ]
    assert found[0].reason.startswith("inside repeat/body, node norm: inside, the square of x - mean")
    policy = PlanPolicy(protected={"LayerNormalization": "the backend does it in FP32"})
    protected = ask(find_inside_bodies, graph, ranges, policy)
    assert [one.action for one in protected] == ["protected"] * 2
    assert all(one.reason.endswith("; the backend does it in FP32") for one in protected)
    plan = plan_precision(graph, ranges, policy)
    assert plan.pins == ()
    assert plan.considered == tuple(protected)


def test_a_mean_that_leaves_little_inside_a_body(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, _loop(LAYER_NORM), _feeds(300.1, 300.6, 300.1, 300.6, trips=1))
    (found,) = ask(find_inside_bodies, graph, ranges)
    assert (found.rule, found.tensor) == ("lost_difference", "repeat/body/s")
    assert found.value == pytest.approx(0.25, rel=1e-4)


def test_excluded_operators_and_what_computes_no_fp32_are_for_the_record(tmp_path: Path) -> None:
    inside = "[up] h = Mul (s, s) [size] n = Shape (h) [down] t = Sqrt (h)"
    graph, ranges = _scan(tmp_path, _loop(inside), _feeds(1, 2, 3, 2000, trips=1))
    actions = {
        one.reason.split(":")[0].split()[-1]: one.action
        for one in ask(find_inside_bodies, graph, ranges, PlanPolicy(exclude_ops=("Mul",)))
        if one.tensor.endswith("/h")
    }
    assert actions == {"up": "none", "size": "none", "down": "pin"}


def test_a_constant_in_a_branch_that_was_never_taken(tmp_path: Path) -> None:
    """It counts whatever the data showed, in a body too; what was not seen does not."""
    text = """
    g (float[4] x, bool c) => (float[N] y) {
        [branch] y = If (c) <
            then_branch = then () => (float[A] t) { t = Neg (x) },
            else_branch = else () => (float[B] e) {
                mask = Constant <value_float = -3.4e38> ()
                [add] a = Add (x, mask)
                [soft] e = Softmax (a)
            }
        >
    }"""
    graph, ranges = _scan(tmp_path, text, [{"x": floats(1, 2, 3, 4), "c": TRUE}])
    assert set(ranges.not_observed) == {"branch/else_branch"}
    found = ask(find_inside_bodies, graph, ranges)
    assert {one.tensor for one in found} == {"branch/else_branch/mask"}
    assert "constant_range" in {one.rule for one in found}
    assert any("node soft: a can carry it" in one.reason for one in found)
    actions = {one.reason.split(":")[0].split()[-1]: one.action for one in found}
    assert actions == {"node_of_mask": "none", "add": "pin", "soft": "pin"}
    assert pinned_by(find_inside_bodies, graph, ranges) == ["branch"]


def test_a_body_inside_a_body(tmp_path: Path) -> None:
    inside = """
        m = ReduceMax <keepdims = 0> (s)
        zero = Constant <value_float = 0.0> ()
        up = Greater (m, zero)
        [inner] t = If (up) <
            then_branch = then () => (float[A] p) { [square] q = Mul (s, s) p = Sqrt (q) },
            else_branch = else () => (float[B] n) { n = Neg (s) }
        >
    """
    graph, ranges = _scan(tmp_path, _loop(inside), _feeds(1, 2, 3, 500, trips=2))
    found = ask(find_inside_bodies, graph, ranges)
    assert {one.tensor for one in found} == {"repeat/body/inner/then_branch/q"}
    assert found[0].value == 250000
    assert found[0].node == "repeat"
    assert found[0].reason.startswith(
        "inside repeat/body, node inner: inside inner/then_branch, node square: writes q, whose max"
    )


def test_local_functions_are_planned_inside_bodies_and_outside(tmp_path: Path) -> None:
    functions = """
    <domain: "local", opset_import: ["" : 17]> square (a) => (b) { b = Mul (a, a) }
    <domain: "local", opset_import: ["" : 17, "local" : 1]>
    norm (a) => (b) { u = local.square (a)  b = Sqrt (u) }
    """
    text = """
    g (float[2] x, bool c) => (float[N] y, float[N] r) {
        r = local.norm (x)
        [i] y = If (c) <
            then_branch = t () => (float[A] p) { p = local.norm (x) },
            else_branch = e () => (float[B] q) { q = Neg (x) }
        >
    }"""
    graph, ranges = _scan(tmp_path, text, [{"x": floats(300, 2), "c": TRUE}], functions)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert [pin.op_type for pin in plan.pins] == ["Mul", "Sqrt", "If"]
    assert {finding.value for pin in plan.pins for finding in pin.findings} == {90000}


def test_another_policy_and_other_ranges_are_judged_anew(tmp_path: Path) -> None:
    text = _loop("t = Add (s, w)")
    graph, ranges = _scan(tmp_path, text, _feeds(1, 2, 3, 4, trips=1))
    assert ask(find_inside_bodies, graph, ranges) == []
    assert {one.value for one in ask(find_inside_bodies, graph, ranges, PlanPolicy(threshold=7))} == {8}
    assert ask(find_inside_bodies, graph, ranges) == []
    larger = collect_ranges(graph, InMemoryCalibration(tuple(_feeds(1, 2, 3, 40000, trips=1))))
    assert ask(find_inside_bodies, graph, larger) != []
    assert ask(find_inside_bodies, load_graph(graph.path), ranges) == []


def test_a_loop_that_hands_on_integers_alone_is_pinned_for_what_it_computes(tmp_path: Path) -> None:
    """Greedy decoding: a token goes in, the number of the largest score comes out."""
    text = """
    g (int64 trips, int64[1] start) => (int64[1] token)
    <float[2,2] table = {1, 2, 3, 4}, float[2,2] w = {90000, 1, 1, 90000}> {
        [decode] token = Loop (trips, , start) <
            body = b (int64 i, bool c, int64[1] s) => (bool c, int64[1] t) {
                e = Gather (table, s)
                [score] h = MatMul (e, w)
                t = ArgMax <axis = 1, keepdims = 0> (h)
            }
        >
    }"""
    feeds = [{"trips": np.array(3), "start": np.array([0])}]
    graph, ranges = _scan(tmp_path, text, feeds)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == {"decode"}
    assert {"decode/body/h"} <= {one.tensor for one in plan.pins[0].findings}
    artifact = emit(graph, plan, tmp_path / "out.onnx")
    before, after = open_reference(graph), open_runner(artifact)
    batch = Batch("b", feeds[0])
    np.testing.assert_array_equal(after.run(batch)["token"], before.run(batch)["token"])


@pytest.mark.parametrize(
    ("behind", "is_pinned"), [("ReduceMax <keepdims = 0> (end)", False), ("Identity (end)", True)]
)
def test_small_values_that_a_body_hands_out_are_no_outputs_of_the_model(
    behind: str, is_pinned: bool, tmp_path: Path
) -> None:
    """Unless they are: rates of 1e-9, of which the largest is 1."""
    text = f"""
    g (float[4] x, bool c) => (float[N] y) {{
        [choose] end = If (c) <
            then_branch = a () => (float[N] t) {{ t = Exp (x) }},
            else_branch = b () => (float[N] e) {{ e = Abs (x) }}
        >
        [last] y = {behind}
    }}"""
    graph, ranges = _scan(tmp_path, text, [{"x": floats(0, -20, -1, -2), "c": TRUE}])
    plan = plan_precision(graph, ranges, PlanPolicy())
    found = [one for pin in plan.pins for one in pin.findings if "has values down to 2.06e-09" in one.reason]
    assert bool(found) == is_pinned
    assert {one.node for one in found} <= {"choose", "last"}


def test_what_makes_a_base_outside_that_a_body_raises_stays_with_it(tmp_path: Path) -> None:
    """Of 0.9997 to the 128th, 0.96, FP16 makes 1 where the base was rounded."""
    text = """
    g (float[4] n, float[4] h, bool c) => (float[N] y) <float t = {128}> {
        [made] b = Mul (n, h)
        [choose] y = If (c) <
            then_branch = a () => (float[N] p) { p = Pow (b, t) },
            else_branch = e () => (float[N] q) { q = Abs (n) }
        >
    }"""
    feeds = {"n": floats(0.1, 0.2, 0.5, 0.3), "h": floats(9.9973, 4.9981, 1.9991, 3.3321), "c": TRUE}
    graph, ranges = _scan(tmp_path, text, [feeds])
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pinned == {"made", "choose"}
    before, after = open_reference(graph), open_runner(emit(graph, plan, tmp_path / "out.onnx"))
    exact, found = (one.run(Batch("b", feeds))["y"] for one in (before, after))
    np.testing.assert_allclose(found, exact, rtol=2**-10)

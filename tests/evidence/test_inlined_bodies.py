"""Values that run into a body, through it or out of it: what is pinned as where no body stands between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration

from overflow_fixer.evidence.inlined_bodies import inline_bodies
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import PlanPolicy, PrecisionPlan, RangeTable

_HEAD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, bool c, int64 trips) => (float[A, B] y) <float e = {1e-12}, float f = {0.7}, float k = {128}> {
    [made] p = %s
    %s
}"""
BODIES = {
    "none": "[op] y = {op} ({args})",
    "if": """[node] y = If (c) <
        then_branch = t () => (float[A, B] o) { [op] o = {op} ({args}) },
        else_branch = u () => (float[A, B] q) { q = Identity (x) }
    >""",
    "if in if": """[node] y = If (c) <
        then_branch = t () => (float[A, B] o) {
            [inner] o = If (c) <
                then_branch = t2 () => (float[A, B] o2) { [op] o2 = {op} ({args}) },
                else_branch = u2 () => (float[A, B] q2) { q2 = Identity (x) }
            >
        },
        else_branch = u () => (float[A, B] q) { q = Identity (x) }
    >""",
    "loop": """[node] last, s = Loop (trips, , p) <
        body = b (int64 i, bool going, float[A, B] p_in) => (bool going_out, float[A, B] p_out, float[A, B] o) {
            going_out = Identity (going) p_out = Identity (p_in) [op] o = {op} ({loop})
        }
    >
    zero = Constant <value_ints = [0]> ()
    [taken] y = Squeeze (s, zero)""",
    "scan": """[node] y = Scan <num_scan_inputs = 2, body = b (float[B] x_row, float[B] p_row) => (float[B] o) {
        [op] o = {op} ({scan})
    }> (x, p)""",
}
"""Where the operator stands that reads what [made] computes."""
CASES = {
    "vanishing_constant": ("Add (x, e)", "Div", "x, {p}", "made op"),
    "lost_phase": ("Mul (x, f)", "Sin", "{p}", "made op"),
    "lost_power": ("Cos (x)", "Pow", "{p}, k", "made op"),
}


def _load(where: str, rule: str, folder: Path) -> Graph:
    made, op, args, _ = CASES[rule]
    text = BODIES[where].replace("{op}", op)
    for place, p, x in (("args", "p", "x"), ("loop", "p_in", "x"), ("scan", "p_row", "x_row")):
        text = text.replace(f"{{{place}}}", args.replace("{p}", p).replace("x,", f"{x},"))
    onnx.save(onnx.parser.parse_model(_HEAD % (made, text)), folder / "m.onnx")
    return load_graph(folder / "m.onnx")


def _scan(graph: Graph, *taken: bool) -> RangeTable:
    x = np.abs(np.random.default_rng(0).standard_normal((3, 4))).astype(np.float32) * 3000
    x[0, :2] = 0
    feeds: list[dict[str, Any]] = [{"x": x, "c": np.array(one), "trips": np.array(1)} for one in taken]
    return collect_ranges(graph, InMemoryCalibration(tuple(feeds)))


def _pinned_by(plan: PrecisionPlan, rule: str) -> set[str]:
    return {pin.node for pin in plan.pins if rule in {finding.rule for finding in pin.findings}}


@pytest.mark.parametrize("rule", CASES)
@pytest.mark.parametrize("where", BODIES)
def test_both_ends_are_pinned_wherever_the_second_stands(where: str, rule: str, tmp_path: Path) -> None:
    graph = _load(where, rule, tmp_path)
    plan = plan_precision(graph, _scan(graph, True), PlanPolicy())
    second = "op" if where == "none" else "node"
    assert _pinned_by(plan, rule) == {"made", second}
    told = [f.reason for pin in plan.pins for f in pin.findings if f.rule == rule and pin.node == second]
    assert len(told) == 1
    assert where == "none" or "node inner/then_branch/op: " in told[0] or ", node op: " in told[0]


@pytest.mark.parametrize("where", ["if", "if in if"])
def test_a_branch_that_was_never_taken_leads_nowhere(where: str, tmp_path: Path) -> None:
    graph = _load(where, "vanishing_constant", tmp_path)
    assert not plan_precision(graph, _scan(graph, False), PlanPolicy()).pins
    assert plan_precision(graph, _scan(graph, False, True), PlanPolicy()).pinned == {"made", "node"}


@pytest.mark.parametrize("where", BODIES)
def test_names_are_those_of_the_ranges_and_every_tensor_is_written_once(where: str, tmp_path: Path) -> None:
    graph = _load(where, "lost_phase", tmp_path)
    ranges = _scan(graph, True, False)
    flat = inline_bodies(graph, ranges)
    written = [name for node in flat.nodes for name in node.writes]
    assert len(written) == len(set(written))
    given = {spec.name for spec in flat.inputs} | flat.constants.keys()
    seen = {one.tensor for one in ranges.ranges if one.element_count}
    assert seen <= {*written, *given}
    known = {*written, *given}
    for node in flat.nodes:
        assert known.issuperset(name for name in node.reads if not name.endswith(("/i", "/going")))
    assert not [node for node in flat.nodes if node.op_type in ("If", "Loop", "Scan")]
    assert all(flat.is_float(name) for name in seen)


def test_a_value_that_leaves_a_body_is_followed(tmp_path: Path) -> None:
    """The epsilon is added inside, the division stands outside, as a name of the body's own captured constant tells."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x, bool c) => (float[A, B] y) <float e = {1e-12}> {
        [node] p = If (c) <
            then_branch = t () => (float[A, B] o) { [made] o = Add (x, e) },
            else_branch = u () => (float[A, B] q) { q = Identity (x) }
        >
        [op] y = Div (x, p)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    x = np.array([[0, 1, 2, 3]], np.float32)
    ranges = collect_ranges(graph, InMemoryCalibration(({"x": x, "c": np.array(True)},)))
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert _pinned_by(plan, "vanishing_constant") == {"node", "op"}


def test_a_step_that_a_body_counts_by_is_pinned_outside(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float x, bool c) => (float[A] y) <float f = {0.7}, float from = {0}, float to = {300}, float[1] w = {2}> {
        [made] p = Mul (x, f)
        [node] y = If (c) <
            then_branch = t () => (float[A] o) { [op] o = Range (from, to, p) },
            else_branch = u () => (float[A] q) { q = Neg (w) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    feeds = {"x": np.array(1, np.float32), "c": np.array(True)}
    plan = plan_precision(graph, collect_ranges(graph, InMemoryCalibration((feeds,))), PlanPolicy())
    assert _pinned_by(plan, "lost_size") == {"made", "node"}

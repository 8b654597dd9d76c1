"""What is inside If, Loop and Scan is observed: per branch, over all iterations, at any depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from body_cases import Run, assert_body, find_body, floats, parse, run_body, scan_runs
from onnx import TensorProto, helper, numpy_helper
from scan_cases import (
    MemoryBatches,
    StoppingBatches,
    run_marked,
    save_model,
    stop_before,
    value_info,
)
from sparse_tensors import make_sparse
from ways_to_observe import PROBES, Probes, assert_same_table, use_probes

from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect_ranges, merge_ranges, observers
from overflow_fixer.ranges.store import load_recording
from overflow_fixer.sessions.settings import has_native_probes

TRUE, FALSE = np.array(True), np.array(False)

IF = """
g (float[N] x, bool c) => (float[M] y) {
    h = Mul (x, x)
    [branch] z = If (c) <
        then_branch = then () => (float[A] t) { u = Mul (h, h)  t = Neg (u) },
        else_branch = else () => (float[B] e) { two = Constant <value_float = 2.0> ()  e = Add (x, two) }
    >
    y = Relu (z)
}
"""

LOOP = """
g (float[N] x, float[N] w, int64 trips, bool go) => (float[N] y, float[K,N] all) {
    [repeat] y, all = Loop (trips, go, x) <
        body = step (int64 i, bool c, float[N] s) => (bool more, float[N] s_next, float[N] half) {
            s_next = Mul (s, w)
            half = Div (s_next, s)
            largest = ReduceMax <keepdims = 0> (s_next)
            limit = Constant <value_float = 1e20> ()
            more = Less (largest, limit)
        }
    >
}
"""


def _loop_feeds(trips: int, go: bool, scale: float) -> Run:
    return {"x": floats(1, 0, -3), "w": floats(scale, 2, 7), "trips": np.array(trips), "go": np.array(go)}


def _iterate(body: onnx.GraphProto, feeds: Run) -> list[Run]:
    """The runs of the body of LOOP, by the specification."""
    runs: list[Run] = []
    state, goes_on = feeds["x"], bool(feeds["go"])
    while goes_on and len(runs) < feeds["trips"]:
        given = {"i": np.array(len(runs)), "c": TRUE, "s": state, "w": feeds["w"]}
        runs.append(run_body(body, given))
        state, goes_on = runs[-1]["s_next"], bool(runs[-1]["more"])
    return runs


def test_each_branch_of_if_in_the_batches_that_took_it(tmp_path: Path) -> None:
    graph = parse(tmp_path, IF)
    feeds = [{"x": floats(*x), "c": c} for x, c in (((1, 9), TRUE), ((3, -1), FALSE), ((5, 0), TRUE))]
    table = scan_runs(graph, feeds)
    then, other = (find_body(graph, "branch", f"{which}_branch") for which in ("then", "else"))
    taken = [[run_body(then, {"h": f["x"] * f["x"]})] if f["c"] else [] for f in feeds]
    left = [[] if f["c"] else [run_body(other, {"x": f["x"]})] for f in feeds]
    assert_body(table, "branch/then_branch/", taken, "h u t")
    assert_body(table, "branch/else_branch/", left, "x e", "two")
    assert table.by_tensor["branch/else_branch/two"].element_count == 3  # constants are present in each batch
    assert table.worst_batch_of(table.by_tensor["branch/then_branch/u"]) == "batch0"
    assert dict(table.not_observed) == {}
    main = [seen.tensor for seen in table.ranges[:4]]
    assert main == ["x", "h", "z", "y"]


def test_a_branch_that_was_never_taken_is_told_and_its_constants_are_known(tmp_path: Path) -> None:
    graph = parse(tmp_path, IF)
    table = scan_runs(graph, [{"x": floats(1), "c": TRUE}] * 2)
    assert dict(table.not_observed) == {
        "branch/else_branch": "If branch never took its else_branch in the data that were scanned"
    }
    unseen = table.by_tensor["branch/else_branch/e"]
    assert (unseen.element_count, unseen.worst_batch) == (0, -1)
    assert np.isnan([unseen.max_abs, unseen.min, unseen.max, unseen.min_nonzero_abs]).all()
    assert table.by_tensor["branch/else_branch/two"].max_abs == 2
    other = scan_runs(graph, [{"x": floats(1), "c": FALSE}])
    assert set(other.not_observed) == {"branch/then_branch"}


@pytest.mark.parametrize(("trips", "go"), [(5, True), (40, True), (0, True), (5, False), (1, True)])
def test_loop_by_trip_count_and_by_condition(trips: int, go: bool, tmp_path: Path) -> None:
    graph = parse(tmp_path, LOOP)
    feeds = [_loop_feeds(trips, go, 10), _loop_feeds(3, True, 1e15)]
    table = scan_runs(graph, feeds)
    body = find_body(graph, "repeat", "body")
    runs = [_iterate(body, feed) for feed in feeds]
    assert [len(batch) for batch in runs] == [0 if not go else min(trips, 20), 2]
    names = "s w s_next half largest"
    assert_body(table, "repeat/body/", runs, names, "limit")
    assert table.by_tensor["repeat/body/limit"].element_count == 2
    assert table.by_tensor["all"].element_count == sum(3 * len(batch) for batch in runs)
    assert table.by_tensor["repeat/body/half"].nan_count == sum(map(len, runs))  # 0 / 0


def test_a_loop_that_never_ran_is_told(tmp_path: Path) -> None:
    table = scan_runs(parse(tmp_path, LOOP), [_loop_feeds(0, True, 10)])
    assert dict(table.not_observed) == {
        "repeat/body": "Loop repeat never ran its body in the data that were scanned"
    }
    assert table.by_tensor["repeat/body/s_next"].element_count == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_bodys_condition_ends_a_loop_whose_node_has_none(rank: int, tmp_path: Path) -> None:
    """As ONNX Runtime has it; the specification lets the condition pass. Counters may be of rank 1."""
    dims = "[1]" * rank
    text = f"""
    g (int64{dims} trips, float[N] x) => (float[N] y, float[K,N] all) {{
        [l] y, all = Loop (trips, , x) <body = b (int64{dims} i, bool{dims} c, float[N] s)
            => (bool{dims} more, float[N] t, float[N] t_again) {{
            dims = Shape (i)
            rank = Size (dims)
            is_vector = Cast <to = 1> (rank)
            f = Cast <to = 1> (i)
            t = Add (s, f)
            t_again = Identity (t)
            two = Constant <value = int64{dims or ""} {"{2}"}> ()
            more = Less (i, two)
        }}>
    }}"""
    graph = parse(tmp_path, text)
    trips = np.full((1,) * rank, 9)
    table = scan_runs(graph, [{"trips": trips, "x": floats(1)}])
    assert table.by_tensor["all"].element_count == table.by_tensor["l/body/t"].element_count == 3
    assert table.by_tensor["l/body/f"].max == 2
    assert table.by_tensor["l/body/is_vector"].max == rank


NESTED = """
g (float[N] x, float limit, int64 trips) => (float[N] y) {
    yes = Constant <value = bool {1}> ()
    w = Mul (x, x)
    [outer] y = Loop (trips, yes, x) <
        body = step (int64 i, bool c, float[N] s) => (bool c, float[N] s_next) {
            m = ReduceMax <keepdims = 0> (s)
            high = Greater (m, limit)
            [inner] s_next = If (high) <
                then_branch = then () => (float[A] t) { sq = Sqrt (s)  t = Mul (sq, w) },
                else_branch = else () => (float[B] e) { e = Add (s, w) }
            >
        }
    >
}
"""


def _iterate_nested(graph: Graph, feed: Run) -> tuple[list[Run], list[Run], list[Run]]:
    body = find_body(graph, "outer", "body")
    branches = {a.name: a.g for node in body.node if node.op_type == "If" for a in node.attribute}
    state, w = feed["x"], feed["x"] * feed["x"]
    runs: list[Run] = []
    taken: dict[str, list[Run]] = {"then_branch": [], "else_branch": []}
    for i in range(int(feed["trips"])):
        given = {"i": np.array(i), "c": TRUE, "s": state, "limit": feed["limit"], "w": w}
        runs.append(run_body(body, given))
        which = "then_branch" if runs[-1]["high"] else "else_branch"
        taken[which].append(run_body(branches[which], {"s": state, "w": w}))
        state = taken[which][-1]["t" if runs[-1]["high"] else "e"]
    return runs, taken["then_branch"], taken["else_branch"]


def test_if_inside_loop(tmp_path: Path) -> None:
    graph = parse(tmp_path, NESTED)
    feeds = [
        {"x": floats(*x), "limit": np.float32(5), "trips": np.array(t)}
        for x, t in (((1, 2), 4), ((9,), 3), ((2, 1), 0))
    ]
    feeds = [{name: np.asarray(value) for name, value in feed.items()} for feed in feeds]
    table = scan_runs(graph, feeds)
    runs, then, other = zip(*(_iterate_nested(graph, feed) for feed in feeds), strict=True)
    assert [len(r) for r in then] == [3, 3, 0]
    assert [len(r) for r in other] == [1, 0, 0]
    assert_body(table, "outer/body/", runs, "s limit w m s_next")
    assert_body(table, "outer/body/inner/then_branch/", then, "s w sq t")
    assert_body(table, "outer/body/inner/else_branch/", other, "s w e")
    assert dict(table.not_observed) == {}


def test_what_is_inside_an_unseen_body_is_not_told_by_itself(tmp_path: Path) -> None:
    feeds = [{"x": floats(1), "limit": np.asarray(np.float32(5)), "trips": np.array(0)}]
    assert set(scan_runs(parse(tmp_path, NESTED), feeds).not_observed) == {"outer/body"}
    feeds[0]["trips"] = np.array(1)
    table = scan_runs(parse(tmp_path, NESTED), feeds)
    reason = "If outer/body/inner never took its then_branch in the data that were scanned"
    assert dict(table.not_observed) == {"outer/body/inner/then_branch": reason}


@pytest.mark.parametrize("state", ["s", "last"])
def test_a_sequence_that_is_carried_and_one_that_is_captured(state: str, tmp_path: Path) -> None:
    """Also where the body has a name of the graph around it."""
    text = """
    g (float[N] x, int64 trips) => (float[M] y) {
        start = SequenceEmpty <dtype = 1> ()
        known = SequenceConstruct (x)
        [l] parts, last = Loop (trips, , start, x) <
            body = b (int64 i, bool c, seq(float[A]) q, float[N] STATE)
                => (bool c, seq(float[A]) r, float[N] t) {
                zero = Constant <value = int64 {0}> ()
                first = SequenceAt (known, zero)
                t = Mul (STATE, first)
                r = SequenceInsert (q, t)
                all = ConcatFromSequence <axis = 0> (r)
                twice = Concat <axis = 0> (all, all)
                negative = Neg (all)
                both = Concat <axis = 0> (all, negative)
                p = MatMul (twice, both)
            }
        >
        y = ConcatFromSequence <axis = 0> (parts)
    }"""
    graph = parse(tmp_path, text.replace("STATE", state))
    feeds = [{"x": floats(2, 10), "trips": np.array(3)}, {"x": floats(1, 1), "trips": np.array(1)}]
    table = scan_runs(graph, feeds)
    runs: list[list[Run]] = []
    for feed in feeds:
        carried, queue, batch = feed["x"], [], []
        for i in range(int(feed["trips"])):
            given = {"i": np.array(i), "c": TRUE, "q": queue, state: carried, "known": [feed["x"]]}
            batch.append(run_body(find_body(graph, "l", "body"), given))
            queue, carried = batch[-1]["r"], batch[-1]["t"]
        runs.append(batch)
    assert_body(table, "l/body/", runs, f"{state} first t all twice negative both p")
    assert table.by_tensor["l/body/all"].element_count == 2 + 4 + 6 + 2
    assert {"l/body/q", "l/body/r"} <= set(table.not_observed)
    assert table.not_observed["l/body/q"] == "it is a sequence, not a tensor"
    products = [2 * np.square(run["all"].astype(np.float64)).sum() for batch in runs for run in batch]
    measured = table.inner_of["l/body/node_of_p"]["products"].seen
    np.testing.assert_allclose(measured.max_abs, max(products), rtol=1e-5)


def _scan_model(folder: Path, directions: list[int], axes: list[int]) -> Graph:
    """Two states, two scan inputs, an initializer captured that is one state's start too."""
    state = ["p", "q", "a", "b"]
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["p", "a"], ["pa"]),
            helper.make_node("Add", ["pa", "w"], ["p_next"]),
            helper.make_node("Sub", ["q", "b"], ["q_next"]),
            helper.make_node("Mul", ["p_next", "q_next"], ["out"]),
        ],
        "step",
        [value_info(name, dims=[3]) for name in state],
        [value_info(name, dims=[3]) for name in ("p_next", "q_next", "out")],
    )
    node = helper.make_node(
        "Scan",
        ["w", "x", "u", "v"],
        ["p_last", "last", "outs"],
        body=body,
        num_scan_inputs=2,
        scan_input_directions=directions,
        scan_input_axes=axes,
        name="sweep",
    )
    inputs = [value_info("x", dims=[3]), value_info("u", dims=None), value_info("v", dims=None)]
    outputs = [value_info("p_last"), value_info("last"), value_info("outs")]
    return save_model(
        folder / "m.onnx", [node], inputs, outputs, [numpy_helper.from_array(floats(1, 2, 3), "w")]
    )


@pytest.mark.parametrize("directions", [[0, 0], [1, 0], [1, 1]])
@pytest.mark.parametrize("axes", [[0, 0], [1, -1]])
def test_scan_both_ways_over_two_inputs(directions: list[int], axes: list[int], tmp_path: Path) -> None:
    graph = _scan_model(tmp_path, directions, axes)
    rng = np.random.default_rng(3)
    u, v = (rng.normal(0, 9, (4, 3)).astype(np.float32) for _ in range(2))
    feed = {"x": floats(4, 5, 6), "u": u if axes[0] == 0 else u.T, "v": v if axes[1] == 0 else v.T}
    table = scan_runs(graph, [{n: np.ascontiguousarray(a) for n, a in feed.items()}])
    p, q = floats(1, 2, 3), floats(4, 5, 6)
    runs = []
    for a, b in zip(u[::-1] if directions[0] else u, v[::-1] if directions[1] else v, strict=True):
        given = {"p": p, "q": q, "a": a, "b": b, "w": floats(1, 2, 3)}
        runs.append(run_body(find_body(graph, "sweep", "body"), given))
        p, q = runs[-1]["p_next"], runs[-1]["q_next"]
    assert_body(table, "sweep/body/", [runs], "p q a b pa p_next q_next out")
    out, outs = table.by_tensor["sweep/body/out"], table.by_tensor["outs"]
    assert (out.max_abs, out.min, out.element_count) == (outs.max_abs, outs.min, outs.element_count)
    assert table.by_tensor["last"].max_abs == np.abs(q).max()


@pytest.mark.parametrize("places", [[0, 2], [[0, 0], [0, 2]]])
def test_scan_over_numbers_with_a_sparse_state(places: list[Any], tmp_path: Path) -> None:
    """Each slice is a number, which numpy gives as none of its arrays; the state is what ONNX Runtime makes of it."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "a"], ["t"])],
        "step",
        [value_info("s", dims=[1, 3]), value_info("a", dims=[])],
        [value_info("t", dims=[1, 3])],
    )
    node = helper.make_node("Scan", ["sparse", "x"], ["y"], body=body, num_scan_inputs=1, name="sweep")
    graph = save_model(
        tmp_path / "m.onnx", [node], [value_info("x", dims=[4])], [value_info("y", dims=[1, 3])]
    )
    model = onnx.load(graph.path)
    model.graph.sparse_initializer.append(make_sparse("sparse", [5, 7], places, [1, 3]))
    onnx.save(model, graph.path)
    table = collect_ranges(load_graph(graph.path), MemoryBatches([{"x": floats(1, 2, 3, 4)}]))
    seen = table.by_tensor["sweep/body/t"]
    assert (seen.max, seen.min, seen.element_count) == (17, 1, 12)


def test_captured_weights_stay_on_disk_and_have_one_row(tmp_path: Path) -> None:
    text = """
    g (float[N,128] x, bool c) => (float[N,128] y) {
        [branch] y = If (c) <
            then_branch = then () => (float[A,B] t) { t = MatMul (x, w) },
            else_branch = else () => (float[C,D] e) { e = Neg (x) }
        >
    }"""
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(header + text)
    w = np.random.default_rng(0).normal(0, 50, (128, 128)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    then = next(body for body in find_bodies(graph).read if body.attribute == "then_branch")
    copied = then.graph.initializers["w"]
    assert (copied.data_location, copied.raw_data) == (TensorProto.EXTERNAL, b"")
    feeds = [{"x": np.full((2, 128), 30, np.float32), "c": TRUE}]
    table = scan_runs(graph, feeds)
    run = run_body(find_body(graph, "branch", "then_branch"), {"x": feeds[0]["x"], "w": w})
    assert_body(table, "branch/then_branch/", [[run]], "x t")
    assert [seen.tensor for seen in table.ranges if seen.tensor.endswith("w")] == ["w"]
    products = next(inner for inner in table.inner if inner.quantity == "products")
    assert products.node.startswith("branch/then_branch/")
    np.testing.assert_allclose(products.seen.max_abs, (30 * np.abs(w).sum(0)).max(), rtol=1e-5)


def test_a_captured_default_that_is_fed_instead(tmp_path: Path) -> None:
    body = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["t"])], "then", [], [value_info("t")])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value_info("e")])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other, name="branch")]
    inputs = [value_info("x", dims=[1]), value_info("c", TensorProto.BOOL, []), value_info("w", dims=[1])]
    weights = [numpy_helper.from_array(floats(3), "w")]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")], weights)
    feeds = [{"x": floats(10), "c": TRUE}, {"x": floats(10), "c": TRUE, "w": floats(-7)}]
    table = scan_runs(graph, feeds)
    seen = table.by_tensor["branch/then_branch/t"]
    assert (seen.max, seen.min) == (30, -70)
    assert (table.by_tensor["w"].max, table.by_tensor["w"].min) == (3, -7)


def test_names_that_the_outer_graph_has_too(tmp_path: Path) -> None:
    """An input of the body hides an outer tensor; tensors and nodes outside are named as if they were inside."""
    text = """
    g (float[N] x, int64 trips) => (float[N] h, float[N] last) {
        s = Neg (x)
        [l] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] late) { late = Add (s, s) }
        >
        late = Add (y, s)
        ["l/body/n"] h = Exp (late)
        [n] last = Relu (h)
    }"""
    graph = parse(tmp_path, text.replace("[n]", '["n"]').replace("[l]", '["l"]'))
    table = scan_runs(graph, [{"x": floats(1, 2), "trips": np.array(3)}])
    names = [seen.tensor for seen in table.ranges]
    assert names == ["x", "s", "y", "late", "h", "last", "_l/body/s", "_l/body/late"]
    assert table.by_tensor["s"].max == -1
    assert table.by_tensor["_l/body/s"].max == 8
    assert table.by_tensor["late"].max == 14
    assert table.by_tensor["_l/body/late"].max == 16


@pytest.mark.parametrize("kind", PROBES)
def test_a_name_that_the_node_around_it_writes_in_another_shape(kind: Probes, tmp_path: Path) -> None:
    """ONNX's inference of shapes takes the one for the other; the Softmax inside lets shapes be asked for."""
    text = """
    g (float[3,4] x) => (float[3,4] o) {
        o = Scan <num_scan_inputs = 1, body = step (float[4] row) => (float[4] inside) {
            o = Add (row, row)
            inside = Softmax <axis = -1> (o)
        }> (x)
    }
    """
    graph = parse(tmp_path, text)
    assert graph.sure_shapes["o"] == (3, 4)
    with use_probes(kind):
        ranges = collect_ranges(graph, MemoryBatches(({"x": np.arange(12, dtype=np.float32).reshape(3, 4)},)))
    outer, inner = (found for name, found in ranges.by_tensor.items() if name.endswith("o"))
    assert (outer.element_count, inner.element_count, inner.max_abs) == (12, 12, 22)
    assert outer.max_abs < 1


def test_outputs_that_no_node_of_the_body_writes(tmp_path: Path) -> None:
    text = """
    g (float[N] x, bool c, int64 trips) => (float[N] y, float[N] z) {
        h = Exp (x)
        [i] y = If (c) <then_branch = t () => (float[A] k) { k = Identity (h) }, else_branch = e () => (float[B] f) { f = Neg (x) }>
        [l] z, unread = Loop (trips, c, x, h) <
            body = b (int64 n, bool go, float[N] p, float[N] q) => (bool go, float[N] q, float[N] p) {}
        >
    }"""
    graph = parse(tmp_path, text)
    table = scan_runs(graph, [{"x": floats(1, 2), "c": TRUE, "trips": np.array(3)}])
    assert table.by_tensor["i/then_branch/k"].max == table.by_tensor["h"].max
    both = [table.by_tensor[f"l/body/{name}"] for name in "pq"]
    assert [seen.element_count for seen in both] == [6, 6]
    assert [seen.min for seen in both] == [1, 1]
    assert [seen.max for seen in both] == [table.by_tensor["h"].max] * 2
    assert dict(table.not_observed) == {
        "i/else_branch": "If i never took its else_branch in the data that were scanned"
    }


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats_in_a_body_are_rounded(kind: str, tmp_path: Path) -> None:
    """Carried, captured and inside: each value as it is stored, not as ONNX Runtime keeps it in between."""
    elem_type = getattr(TensorProto, kind.upper())
    dtype = np.dtype(getattr(ml_dtypes, kind, np.float16))
    text = f"""
    g (float[N] x, int64 trips) => (float[N] y) {{
        start = Cast <to = {elem_type}> (x)
        [l] end = Loop (trips, , start) <body = b (int64 i, bool c, {kind}[N] s) => (bool c, {kind}[N] n) {{
            wide = Cast <to = 1> (s)
            other = Cast <to = 1> (start)
            third = Mul (wide, other)
            n = Cast <to = {elem_type}> (third)
        }}>
        y = Cast <to = 1> (end)
    }}"""
    graph = parse(tmp_path, text)
    x = floats(1.1, 7.77, 0.3333)
    table = scan_runs(graph, [{"x": x, "trips": np.array(4)}])
    start = state = x.astype(dtype)
    states, thirds = [], []
    for _ in range(4):
        states.append(state)
        thirds.append(state.astype(np.float32) * start.astype(np.float32))
        state = thirds[-1].astype(dtype)
    given = table.by_tensor["l/body/s"]
    assert (given.max, given.min) == (float(np.max(states)), float(np.min(states)))
    assert table.by_tensor["l/body/third"].max == np.max(thirds)
    assert table.by_tensor["l/body/n"].max == float(np.max(np.asarray(thirds).astype(dtype)))
    assert table.by_tensor["y"].max == float(state.max())


def test_computing_in_fp16_inside_a_loop(tmp_path: Path) -> None:
    """ONNX Runtime computes it in float, and would carry on what it never rounded."""
    text = """
    g (float[N] x, float16[N] w, int64 trips) => (float[N] y) {
        start = Cast <to = 10> (x)
        low = Sin (start)
        begin = Cast <to = 1> (low)
        [l] y = Loop (trips, , begin) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] n) {
                h = Cast <to = 10> (s)
                m = Mul (h, w)
                e = Sin (m)
                n = Cast <to = 1> (e)
            }
        >
    }"""
    graph = parse(tmp_path, text)
    rng = np.random.default_rng(8)
    x, w = (rng.normal(1.7, 0.4, 50).astype(kind) for kind in (np.float32, np.float16))
    table = scan_runs(graph, [{"x": x, "w": w, "trips": np.array(7)}])
    state, runs = run_marked(graph.path, ["low"], {"x": x, "w": w, "trips": np.array(7)})["low"], []
    state = state.astype(np.float32)
    for i in range(7):
        given = {"i": np.array(i), "c": TRUE, "s": state, "w": w}
        runs.append(run_body(find_body(graph, "l", "body"), given))
        state = runs[-1]["n"]
    assert_body(table, "l/body/", [runs], "s w h m e n")


def test_values_inside_nodes_of_a_body(tmp_path: Path) -> None:
    text = """
    g (float[N,4] x, float[4] scale, int64 trips) => (float[N,4] y) {
        [l] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N,4] s) => (bool c, float[N,4] t) {
                big = Mul (s, scale)
                [norm] t = LayerNormalization (big, scale)
            }
        >
    }"""
    graph = parse(tmp_path, text)
    feed = {"x": floats(1, 2, 3, 5).reshape(1, 4), "scale": floats(30, 20, 10, -40), "trips": np.array(5)}
    table = scan_runs(graph, [feed])
    found = table.inner_of["l/body/norm"]["deviation"].seen
    state, deviations = feed["x"], []
    for i in range(5):
        given = {"i": np.array(i), "c": TRUE, "s": state, "scale": feed["scale"]}
        run = run_body(find_body(graph, "l", "body"), given)
        deviations.append(np.abs(run["big"] - run["big"].mean()).max())
        state = run["t"]
    assert found.max_abs == pytest.approx(max(deviations), rel=1e-6)
    assert found.tensor == "l/body/norm: deviation"


def test_local_functions_are_scanned_inside_nested_ones_too(tmp_path: Path) -> None:
    functions = """
    <domain: "local", opset_import: ["" : 17]> square (a) => (b) { t = Mul (a, a)  b = Neg (t) }
    <domain: "local", opset_import: ["" : 17, "local" : 1]>
    twice (a) => (b) { u = local.square (a)  b = local.square (u) }
    """
    text = """
    g (float[N] x, bool c) => (float[N] y, float[N] r) {
        r = local.twice (x)
        [i] y = If (c) <
            then_branch = t () => (float[A] p) { p = local.twice (x) },
            else_branch = e () => (float[B] q) { q = local.square (x) }
        >
    }"""
    graph = parse(tmp_path, text, functions=functions)
    assert {node.op_type for node in graph.nodes} == {"Mul", "Neg", "If"}
    table = scan_runs(graph, [{"x": floats(300, 2), "c": TRUE}])
    inside = [seen.max_abs for seen in table.ranges if seen.tensor.startswith("i/then_branch/")]
    fourth = float(np.float32(8.1e9))
    assert inside == [300, 90000, 90000, fourth, fourth]
    outside = [seen.max_abs for seen in table.ranges if "/" not in seen.tensor and seen.tensor not in "xyr"]
    assert outside == [90000, 90000, fourth]


def test_a_scan_that_was_stopped_goes_on_and_parts_merge(tmp_path: Path) -> None:
    graph = parse(tmp_path, NESTED)
    feeds = [
        {"x": floats(*x), "limit": np.asarray(np.float32(5)), "trips": np.array(t)}
        for x, t in (((1, 2), 4), ((9,), 0), ((2, 1), 2), ((8, 1), 1))
    ]
    whole = collect_ranges(graph, MemoryBatches(feeds))
    stopping = StoppingBatches(feeds)
    store = tmp_path / "ranges.h5"
    stop_before(1, graph, stopping, store)
    assert not load_recording(store).is_finished
    again = collect_ranges(graph, stopping, store=store)
    assert_same_table(again, whole)
    assert again.inner == whole.inner
    parts = [tmp_path / name for name in ("a.h5", "b.h5")]
    for path, part, name in zip(parts, (feeds[:1], feeds[1:]), "ab", strict=True):
        collect_ranges(graph, MemoryBatches(part, fingerprint=name), store=path)
    merged = merge_ranges(parts)
    assert [repr(seen) for seen in merged.ranges] == [repr(seen) for seen in whole.ranges]
    assert dict(merged.not_observed) == dict(whole.not_observed)


def test_a_part_that_took_another_branch_is_told_no_more_in_the_merge(tmp_path: Path) -> None:
    graph = parse(tmp_path, IF)
    parts = []
    for name, c in (("a", TRUE), ("b", FALSE)):
        parts.append(tmp_path / f"{name}.h5")
        data = MemoryBatches([{"x": floats(1, len(name)), "c": c}], fingerprint=name)
        assert len(collect_ranges(graph, data, store=parts[-1]).not_observed) == 1
    assert dict(merge_ranges(parts).not_observed) == {}


@pytest.mark.parametrize("probes", PROBES)
def test_a_model_is_opened_once_and_run_once_a_batch_and_each_body_likewise_or_with_it(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"open_session": 0, "run_session": 0}

    def count(name: str, function: Any) -> Any:
        def counting(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*args, **options)

        return counting

    for name in counts:
        monkeypatch.setattr(observers, name, count(name, getattr(observers, name)))
    feeds = [{"x": floats(1, 2), "c": c} for c in (TRUE, TRUE, FALSE)]
    with use_probes(probes):
        is_native = has_native_probes()
        collect_ranges(parse(tmp_path, IF), MemoryBatches(feeds))
    assert counts == {"open_session": 1 + 2 * (not is_native), "run_session": 3 + 3 * (not is_native)}


def test_a_body_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    text = """
    g (seq(float[N]) q) => (seq(float[N]) r) {
        [m] r = SequenceMap (q) <body = b (float[N] e) => (float[N] f) { f = Exp (e) }>
    }"""
    graph = parse(tmp_path, text)
    table = collect_ranges(graph, MemoryBatches([{"q": [floats(1)]}]))
    assert table.not_observed["m/body"] == "what runs inside SequenceMap is not looked into"

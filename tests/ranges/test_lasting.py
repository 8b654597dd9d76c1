"""What is computed from constants alone is found, and looked at once; what a batch can change is neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from body_cases import floats, parse, scan_runs
from scan_cases import MemoryBatches

from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.native import LIBRARY
from overflow_fixer.ranges import collect_ranges, observers
from overflow_fixer.ranges.lasting import copy_native, find_lasting
from overflow_fixer.ranges.levels import find_level

TEXT = """
g (float[N] x, float[2] d) => (float[N] y, float[2] e, float[2] r) <float[2] w = {3.0, -4.0}, float[2] d = {1.0, 2.0}> {
    two = Constant <value_float = 2.0> ()
    a = Mul (w, two)
    shape = Shape (a)
    ones = ConstantOfShape <value = float[1] {1.0}> (shape)
    b = Add (a, ones)
    e = Mul (a, d)
    r = RandomNormalLike (a)
    yes = Constant <value = bool {1}> ()
    chosen = If (yes) <
        then_branch = t () => (float[2] p) { p = Neg (b) },
        else_branch = u () => (float[2] q) { q = Mul (b, d) }
    >
    sure = If (yes) <
        then_branch = v () => (float[2] s) { s = Neg (b) },
        else_branch = z () => (float[2] o) { o = Identity (b) }
    >
    c = ReduceMax (sure)
    y = Add (x, c)
}"""


def test_what_is_computed_from_constants_alone(tmp_path: Path) -> None:
    assert find_lasting(parse(tmp_path, TEXT)) == {"a", "shape", "ones", "b", "sure", "c"}


def test_operators_of_other_domains_may_have_a_memory(tmp_path: Path) -> None:
    path = parse(tmp_path, TEXT).path
    model = onnx.load(path)
    assert model.graph.node[1].output == ["a"]
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Gelu", ["w"], ["a"], domain="com.microsoft"))
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, path)
    assert find_lasting(load_graph(path)) == set()


def test_each_batch_counts_them_and_what_is_fed_is_looked_at_in_each(tmp_path: Path) -> None:
    text = TEXT.replace("r = RandomNormalLike (a)", "r = Neg (e)").replace("w, two", "w, big")
    text = text.replace("two = Constant <value_float = 2.0>", "big = Constant <value_float = 20000.0>")
    graph = parse(tmp_path, text)
    feeds = [{"x": floats(k), "d": floats(k, 2)} for k in (1, 5, 3)]
    table = scan_runs(graph, [*feeds, {"x": floats(7)}])
    found = table.by_tensor["a"]
    assert (found.min, found.max, found.min_nonzero_abs) == (-8e4, 6e4, 6e4)
    assert (found.element_count, found.over_fp16_count, found.worst_batch) == (8, 4, 0)
    assert table.by_tensor["e"].max == 3e5
    assert table.by_tensor["e"].worst_batch == 1


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_they_are_looked_at_anew_in_a_session_that_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch is over the limit behind a Mul, which opens one with a probe of that."""
    text = """
    g (float[N] x) => (float[N] y) <float[2] w = {3.0, -4.0}, float large = {30000.0}> {
        a = Exp (w)
        k = ReduceMax (a)
        h = Sinh (x)
        m = Mul (h, large)
        z = Add (m, k)
        y = Sin (z)
    }"""
    opened = []
    open_session = observers.open_session
    monkeypatch.setattr(
        observers, "open_session", lambda *given, **how: opened.append(given) or open_session(*given, **how)
    )
    feeds = [{"x": floats(0.1)}, {"x": floats(9)}, {"x": floats(0.2)}]
    table = collect_ranges(parse(tmp_path, text), MemoryBatches(feeds))
    assert len(opened) == 2
    assert table.by_tensor["m"].over_fp16_count == 1
    found = table.by_tensor["a"]
    np.testing.assert_allclose((found.min, found.max), np.exp([-4.0, 3.0]), rtol=1e-6)
    assert found.element_count == 6


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_what_is_inside_nodes_that_compute_with_constants_is_added_up_once(tmp_path: Path) -> None:
    """And counts in each batch; what a batch can feed is added up in each."""
    text = """
    g (float[N] x, float[2, 3] d) => (float[2, 3] y, float[2] e)
    <float[2, 3] w = {1.0, -2.0, 4.0, 8.0, -16.0, 32.0}, float[2, 3] d = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}> {
        v = Neg (w)
        m = ReduceMean <axes = [-1]> (v)
        c = ReduceMean <axes = [-1]> (w)
        e = ReduceMean <axes = [1], keepdims = 0> (d)
        k = Add (m, c)
        f = Mul (k, v)
        s = ReduceMax (x)
        y = Add (f, s)
    }"""
    graph = parse(tmp_path, text)
    level = find_level(graph, is_native=True)
    lasting = dict.fromkeys(find_lasting(level.inside.graph), 0)
    copies = dict(copy_native(level.inside.graph, lasting)).values()
    assert [node.op_type for node in copies] == ["Sums"] * 3
    assert {node.input[0]: len(node.attribute) for node in copies} == {"v": 1, "w": 1, "d": 0}
    feeds = [{"x": floats(1)}, {"x": floats(2), "d": np.full((2, 3), 7, np.float32)}, {"x": floats(3)}]
    table = scan_runs(graph, feeds)
    inner = {
        label: {one.quantity: one.seen for one in found.values()} for label, found in table.inner_of.items()
    }
    for label in ("node_of_m", "node_of_c"):
        assert inner[label]["sum of magnitudes"].max == 56
        assert inner[label]["sum of magnitudes"].element_count == 6
    assert inner["node_of_e"]["sum"].max == 21
    assert inner["node_of_e"]["sum"].worst_batch == 1


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_what_a_body_computes_of_what_it_captures_is_added_up_once_in_each_run_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
    g (float[2, 3] x, int64 trips) => (float[2, 3] y) {
        [l] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[2, 3] s) => (bool d, float[2, 3] t) {
                d = Identity (c)
                a = Neg (x)
                m = ReduceMean <axes = [-1]> (a)
                n = ReduceMean <axes = [-1]> (s)
                k = Mul (m, n)
                t = Add (s, k)
            }
        >
    }"""
    built = []
    open_session = observers.open_session
    monkeypatch.setattr(
        observers, "open_session", lambda *given, **how: built.append(given[0]) or open_session(*given, **how)
    )
    graph = parse(tmp_path, text)
    feeds = [
        {"x": np.full((2, 3), number, np.float32), "trips": np.array(trips)}
        for number, trips in ((1, 3), (-4, 2), (2, 0), (3, 4))
    ]
    table = collect_ranges(graph, MemoryBatches(feeds))
    (body,) = (node.attribute[0].g for node in built[0].graph.node if node.op_type == "Loop")
    sums = {node.input[0]: node for node in body.node if node.op_type == "Sums"}
    addresses = {name: [one.i for one in node.attribute] for name, node in sums.items()}
    assert addresses["s"] == []
    assert len(addresses["a"]) == 1
    assert addresses["a"] != [0]
    seen = {one.quantity: one.seen for one in table.inner_of["l/body/node_of_m"].values()}
    assert (seen["sum"].max, seen["sum"].min, seen["sum"].element_count) == (12, -9, 2 * (3 + 2 + 4))
    scan_runs(graph, feeds)


def _load(folder: Path, text: str) -> Graph:
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / "m.onnx")
    return load_graph(folder / "m.onnx")


def test_what_is_made_of_constants_alone_lasts(tmp_path: Path) -> None:
    graph = _load(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2] x, float[2] d) => (float[2] y) <float[2] w = {3, 4}, float[2] d = {1, 2}> {
            two = Constant <value_float = 2.0> ()
            p = Pow (w, two)
            r = Sqrt (p)
            m = Mul (r, x)
            s = Shape (x)
            z = ConstantOfShape (s)
            fed = Add (d, w)
            n = RandomNormalLike (w)
            f = com.microsoft.Gelu (w)
            a = Add (m, fed)
            y = Add (a, n)
        }""",
    )
    assert find_lasting(graph) == {"p", "r"}


def test_of_a_body_what_it_makes_itself(tmp_path: Path) -> None:
    graph = _load(
        tmp_path,
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {3, 4}> {
            [branch] y = If (c) <
                then_branch = t () => (float[2] o) { q = Mul (w, w) o = Add (q, x) },
                else_branch = e () => (float[2] o) { o = Identity (x) }
            >
        }""",
    )
    then = next(body for body in find_bodies(graph).read if body.attribute == "then_branch")
    assert find_lasting(graph) == frozenset()
    assert find_lasting(then.graph) == {"q"}

"""A state that each run of a body hands on as it got it has the value that the loop is given, and is looked at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from body_cases import find_looked_at_once, floats, keep_built, parse, scan_runs
from scan_cases import MemoryBatches

from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.native import LIBRARY
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.ranges.unchanged import find_unchanged

STATES = """
g (float[N] x, float[N] w, float[N] v, int64 trips) => (float[N] y, float[N] kept, float[N] p, float[N] q) {
    [l] y, kept, p, q = Loop (trips, , x, w, w, v) <
        body = b (int64 i, bool c, float[N] s, float[N] k, float[N] a, float[N] z)
            => (bool d, float[N] t, float[N] m, float[N] z, float[N] a) {
            d = Identity (c)
            u = Identity (k)
            m = Identity (u)
            t = Add (s, k)
        }
    >
}"""
SCAN = """
g (float[M,N] x, float[N] w) => (float[N] y, float[M,N] z) {
    [l] y, z = Scan (w, x) <
        num_scan_inputs = 1,
        body = b (float[N] k, float[N] s) => (float[N] k, float[N] t) { t = Mul (s, k) }
    >
}"""
BRANCHES = """
g (float[N] x, bool c) => (float[N] y) {
    [l] y = If (c) <then_branch = t () => (float[N] a) { a = Neg (x) }, else_branch = e () => (float[N] b) { b = Abs (x) }>
}"""
NESTED = """
g (float[N] x, float[N] w, int64 trips) => (float[N] y, float[N] r) {
    [l] y, r = Loop (trips, , x, w) <
        body = b (int64 i, bool c, float[N] s, float[N] k) => (bool c, float[N] t, float[N] k) {
            [inner] t, m, n = Loop (trips, c, s, k, s) <
                body = d (int64 j, bool e, float[N] f, float[N] h, float[N] o)
                    => (bool e, float[N] g, float[N] h, float[N] o) {
                    p = Add (f, h)
                    g = Sub (p, o)
                }
            >
        }
    >
}"""


@pytest.mark.parametrize(
    ("text", "expected"), [(STATES, {"k": "w"}), (SCAN, {"k": "w"}), (BRANCHES, {}), (NESTED, {"k": "w"})]
)
def test_what_comes_back_as_it_went_in_is_found(text: str, expected: dict[str, str], tmp_path: Path) -> None:
    """Behind Identities too; not two states that change places, nor what a loop counts and ends by, which it is not given."""
    body = find_bodies(parse(tmp_path, text)).read[0]
    assert find_unchanged(body) == expected


def test_a_condition_that_is_handed_on_is_the_loops(tmp_path: Path) -> None:
    text = """
    g (float[N] x, int64 trips, bool go) => (float[N] y) {
        [l] y = Loop (trips, go, x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) { t = Neg (s) }
        >
    }"""
    assert find_unchanged(find_bodies(parse(tmp_path, text)).read[0]) == {"c": "go"}


@pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
def test_it_is_looked_at_once_in_a_run_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop within a loop, where it has one value in all of its runs."""
    built = keep_built(monkeypatch)
    feeds = [{"x": floats(k, -3), "w": floats(k, 7), "trips": np.array(k)} for k in (2, 0, 3)]
    collect_ranges(parse(tmp_path, NESTED), MemoryBatches(feeds))
    assert find_looked_at_once(built[0].graph) == ["k", "h"]


def test_the_models_tensors_are_not_searched_one_by_one_for_each(tmp_path: Path) -> None:
    class Unsearched(tuple[str, ...]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError(f"{name} is searched for in all of them")

    graph = parse(tmp_path, STATES)
    graph.__dict__["tensors"] = Unsearched(graph.tensors)
    feeds = {"x": floats(2, -3), "w": floats(2, 7), "v": floats(2, 1), "trips": np.array(2)}
    assert collect_ranges(graph, MemoryBatches([feeds])).by_tensor["l/body/k"].max == 7


@pytest.mark.parametrize("text", [STATES, NESTED])
def test_its_ranges_are_those_of_each_run(text: str, tmp_path: Path) -> None:
    """Each way to observe tells the same; of another batch, the other value."""
    feeds = [
        {"x": floats(k, -3), "w": floats(k, 7), "v": floats(2, 1), "trips": np.array(k)} for k in (2, 0, 3)
    ]
    graph = parse(tmp_path, text)
    names = {spec.name for spec in graph.inputs}
    table = scan_runs(graph, [{name: one[name] for name in names} for one in feeds])
    kept = table.by_tensor["l/body/k"]
    assert (kept.min, kept.max, kept.element_count) == (2, 7, 2 * (2 + 3))

"""Constants that FP16 cannot hold, on one side of a body's edge, and what carries their value on the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, pinned_by

from overflow_fixer.evidence.inlined_bodies import can_inline, list_carried
from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.rules.constant_range import find_constants_out_of_range

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, bool[N, 4] c, bool on, int64 trips) => (float[A, B] y) <float big = {-1e9}> {
    %s
    [behind] y = Softmax (a)
}"""
_LOOP = """[node] %s = Loop (trips, , x) <
    body = b (int64 i, bool go, float[A, B] s) => (bool goes, %s) { goes = Identity (go) %s }
>"""
_IF = """[node] a = If (on) <
    then_branch = t () => (float[A, B] p) { %s },
    else_branch = e () => (float[A, B] q) { q = Neg (x) }
>"""
_HELD = "held = Constant <value_float = -1e9> () "
CASES = {
    "a Constant in a Loop": (_LOOP % ("a", "float[A, B] t", _HELD + "t = Where (c, held, s)"), ["behind"]),
    "a Constant in a branch that was never taken": (_IF % (_HELD + "p = Where (c, held, x)"), ["behind"]),
    "what a branch that was never taken captures": (_IF % "p = Where (c, big, x)", ["node", "behind"]),
    "a Constant in a Scan": (
        """[node] a = Scan <num_scan_inputs = 2, body = b (float[B] s, bool[B] d) => (float[B] t) {
            held = Constant <value_float = -1e9> () t = Where (d, held, s)
        }> (x, c)""",
        ["behind"],
    ),
    "a Constant in a branch in a Loop": (
        _LOOP
        % (
            "a",
            "float[A, B] t",
            """[inner] t = If (on) <
                then_branch = u () => (float[A, B] p) { held = Constant <value_float = -1e9> () p = Where (c, held, s) },
                else_branch = e () => (float[A, B] q) { q = Neg (s) }
            >""",
        ),
        ["behind"],
    ),
    "what a Loop captures ends in its body": (
        _LOOP % ("a", "float[A, B] t", "w = Where (c, big, s) t = Tanh (w)"),
        ["node"],
    ),
    "what a branch captures ends in it": (_IF % "w = Where (c, big, x) p = Tanh (w)", ["node"]),
    "what comes into a Loop ends in its body": (
        "[before] w = Where (c, big, x) " + _LOOP % ("a", "float[A, B] t", "v = Add (w, s) t = Tanh (v)"),
        ["before", "node"],
    ),
    "what comes into a Loop comes out": (
        "[before] w = Where (c, big, x) " + _LOOP % ("a", "float[A, B] t", "t = Add (w, s)"),
        ["before", "node", "behind"],
    ),
    **{
        f"what each run scales by {factor}": (
            "[before] w = Where (c, big, x) "
            + (_LOOP % ("a", "float[A, B] t", "t = Mul (s, factor)")).replace("(trips, , x)", "(trips, , w)")
            + f" factor = Constant <value_float = {factor}> ()",
            ["before", "node", "behind"],
        )
        for factor in (0.5, 2.0)
    },
    "one run of a Loop hands it to the next": (
        _LOOP % ("last, all", "float[A, B] t, float[A, B] o", _HELD + "t = Where (c, held, s) o = Neg (s)")
        + " zero = Constant <value_ints = [0]> () [taken] a = ReduceSum <keepdims = 0> (all, zero)",
        ["taken", "behind"],
    ),
    "one run of a Scan hands it to the next": (
        """first = ReduceMax <axes = [0], keepdims = 0> (x)
        [node] last, a = Scan <num_scan_inputs = 2, body = b (float[B] s, float[B] r, bool[B] d) => (float[B] t, float[B] o) {
            held = Constant <value_float = -1e9> () t = Where (d, held, s) o = Add (s, r)
        }> (first, x, c)""",
        ["behind"],
    ),
    "one run of a Loop in a branch hands it to the next": (
        _IF
        % (
            """[inner] last, all = Loop (trips, , x) <
                body = b (int64 i, bool go, float[A, B] s) => (bool goes, float[A, B] t, float[A, B] o) {
                    goes = Identity (go) held = Constant <value_float = -1e9> () t = Where (c, held, s) o = Neg (s)
                }
            >
            zero = Constant <value_ints = [0]> () p = ReduceSum <keepdims = 0> (all, zero)"""
        ),
        ["behind"],
    ),
    "where the data decide nothing, each run shows what there is": (
        _LOOP % ("last, all", "float[A, B] t, float[A, B] o", _HELD + "t = Mul (s, held) o = Neg (s)")
        + " zero = Constant <value_ints = [0]> () a = ReduceSum <keepdims = 0> (all, zero)",
        [],
    ),
    "branches in both branches that have one name": (
        """[node] a = If (on) <
            then_branch = t () => (float[A, B] p) {
                [inner] p = If (on) <
                    then_branch = t1 () => (float[A, B] p1) { p1 = Abs (x) },
                    else_branch = e1 () => (float[A, B] q1) { q1 = Neg (x) }
                >
            },
            else_branch = e () => (float[A, B] q) {
                [inner] q = If (on) <
                    then_branch = t2 () => (float[A, B] p2) { held = Constant <value_float = -1e9> () p2 = Add (x, held) },
                    else_branch = e2 () => (float[A, B] q2) { q2 = Neg (x) }
                >
            }
        >""",
        ["behind"],
    ),
    "a body that is not read, beside one that is": (
        "[other] z = If (on) < then_branch = t () => (float[A, B] p) { p = Abs (x) }, else_branch = e () => (float[A, B] q) "
        """{ q = Neg (x) }> s = SequenceConstruct (x, z)
        [node] m = SequenceMap (s) <body = b (float[A, B] e) => (float[A, B] o) { w = Where (c, big, e) o = Tanh (w) }>
        one = Constant <value_int = 1> ()
        [taken] a = SequenceAt (m, one)""",
        ["node", "taken", "behind"],
    ),
    "a body that is not read, in a branch": (
        _IF
        % (
            """s = SequenceConstruct (x, x)
            m = SequenceMap (s) <body = b (float[A, B] e) => (float[A, B] o) { w = Where (c, big, e) o = Tanh (w) }>
            one = Constant <value_int = 1> () p = SequenceAt (m, one)"""
        ),
        ["node", "behind"],
    ),
    "a body that is not read shows what it captures": (
        """s = SequenceConstruct (x, x)
        [node] m = SequenceMap (s) <body = b (float[A, B] e) => (float[A, B] o) { w = Where (c, big, e) o = Tanh (w) }>
        one = Constant <value_int = 1> ()
        [taken] a = SequenceAt (m, one)""",
        ["node", "taken", "behind"],
    ),
}


def _load(name: str, folder: Path) -> onnx.ModelProto:
    model = onnx.parser.parse_model(_MODEL % CASES[name][0])
    onnx.save(model, folder / "m.onnx")
    return model


@pytest.mark.parametrize("name", CASES)
def test_what_a_constant_reaches(name: str, tmp_path: Path) -> None:
    """No batch takes the branch, shows the constant, or makes the loop run but once."""
    _load(name, tmp_path)
    graph = load_graph(tmp_path / "m.onnx")
    feeds = {
        "x": np.arange(8, dtype=np.float32).reshape(2, 4),
        "c": np.zeros((2, 4), bool),
        "on": np.array(False),
        "trips": np.array(1),
    }
    used = {spec.name for spec in graph.inputs}
    ranges = collect_ranges(graph, InMemoryCalibration([{k: v for k, v in feeds.items() if k in used}]))
    assert pinned_by(find_constants_out_of_range, graph, ranges) == CASES[name][1]


def test_which_bodies_can_be_inlined_and_what_they_carry(tmp_path: Path) -> None:
    def carried(name: str) -> list[tuple[str, str]] | None:
        _load(name, tmp_path)
        graph = load_graph(tmp_path / "m.onnx")
        return list(list_carried(graph)) if can_inline(graph) else None

    assert carried("a body that is not read shows what it captures") is None
    assert carried("what a branch captures ends in it") == []
    assert carried("a Constant in a branch in a Loop") == [("node/body/t", "node/body/s")]
    assert carried("one run of a Scan hands it to the next") == [("node/body/t", "node/body/s")]
    assert carried("a Constant in a Scan") == []

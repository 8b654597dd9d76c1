"""Which tensors no data can move."""

from __future__ import annotations

from pathlib import Path

import onnx

from overflow_fixer.body_graphs import find_bodies
from overflow_fixer.graph import Graph, load_graph
from overflow_fixer.rules.fixed import find_fixed


def _graph(folder: Path, text: str) -> Graph:
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / "m.onnx")
    return load_graph(folder / "m.onnx")


def test_what_is_made_of_constants_alone_is_fixed(tmp_path: Path) -> None:
    graph = _graph(
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
    assert find_fixed(graph) == {"w", "two", "p", "r"}


def test_of_a_body_its_own(tmp_path: Path) -> None:
    graph = _graph(
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
    assert find_fixed(graph) == {"w"}
    assert find_fixed(then.graph) == {"w", "q"}

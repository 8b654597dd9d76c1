"""Comparisons with zero or a tiny number that FP16 decides otherwise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.rules.lost_comparison import find_lost_comparisons

GUARD = [
    node("Mul", "x x", "q"),
    node("Less", "q eps", "c"),
    node("Where", "c one q", "s"),
    node("Div", "one s", "y"),
]


def _scan(folder: Path, nodes: list[onnx.NodeProto], eps: float, values: list[float]) -> tuple:
    used = {name for one in nodes for name in one.input}
    constants = {name: scalar(v) for name, v in (("eps", eps), ("one", 1.0), ("half", 0.5)) if name in used}
    return scan(make_model(nodes, {"x": [None]}, "y", constants), folder, {"x": floats(*values)})


@pytest.mark.parametrize(
    ("eps", "values", "is_pinned"),
    [
        (1e-10, [1e-6, 1, 2], True),
        (1e-10, [0, 1, 2], True),
        (1e-10, [0.5, 1, 2], False),
        (1e-10, [], False),
        (1e-10, [math.nan], False),
        (1e-10, [math.inf, 0], True),
        (2**-25, [0, 1, 2], True),
        (2**-24, [0, 1, 2], False),
    ],
)
def test_the_guard_of_a_safe_division(
    eps: float, values: list[float], is_pinned: bool, tmp_path: Path
) -> None:
    graph, ranges = _scan(tmp_path, GUARD, eps, values)
    assert pinned_by(find_lost_comparisons, graph, ranges) == (["Mul_q", "Less_c"] if is_pinned else [])


def test_the_pins_keep_zero_from_the_division(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, GUARD, 1e-10, [1e-6, 0, 1, 2])
    labels, path = pinned_by(find_lost_comparisons, graph, ranges), tmp_path / "model.onnx"
    pins = {graph.by_label[label].outputs[0] for label in labels}
    feeds = {"x": floats(1e-6, 0, 1, 2)}
    right = run_fp32(path, feeds)["y"]
    assert np.isinf(run_fp16(path, feeds, set())["y"]).any()
    np.testing.assert_allclose(run_fp16(path, feeds, pins)["y"], right, rtol=1e-3)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Cast", "h", "b", to=TensorProto.BOOL), node("Cast", "b", "y", to=TensorProto.FLOAT)],
        [node("Sign", "h", "y")],
    ],
)
def test_truth_values_and_signs(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Mul", "x half", "h"), *nodes], 0, [1e-10, 1, 0])
    assert pinned_by(find_lost_comparisons, graph, ranges) == ["Mul_h", nodes[0].name]


def test_the_evidence(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x half", "h"),
        node("Greater", "h eps", "b"),
        node("Cast", "b", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = _scan(tmp_path, nodes, 1e-7, [2e-9, 1e-5])
    mul, greater = ask(find_lost_comparisons, graph, ranges)
    assert (mul.node, greater.node, mul.tensor) == ("Mul_h", "Greater_b", "h")
    assert (mul.value, mul.limit) == (pytest.approx(1.15e-7, rel=0.01), pytest.approx(1e-7 + 2**-24))
    assert mul.reason == (
        "Greater Greater_b compares h with 1e-07, and decides otherwise of 1.15e-07 where FP16 rounds both"
    )
    graph, ranges = _scan(tmp_path, GUARD, 1e-10, [0, 1])
    assert [(one.value, one.limit) for one in ask(find_lost_comparisons, graph, ranges)] == [
        (0, FP16_UNDERFLOW)
    ] * 2


LINKS = {
    "masks": [
        node("Greater", "h zero", "c"),
        node("Cast", "c", "m", to=TensorProto.FLOAT),
        node("Add", "before m", "s"),
    ],
    "guards that FP16 holds badly": [
        node("Less", "h tiny", "c"),
        node("Where", "c one h", "w"),
        node("Mul", "before w", "s"),
    ],
    "truths that are combined": [node("Greater", "h zero", "c"), node("And", "before c", "s")],
}
"""What is done with each tensor h of a long chain, and with what was made `before`."""
LEAST = {"masks": 1e-9, "guards that FP16 holds badly": 9.9e-7, "truths that are combined": 1e-9}


def _make_chain(form: str, length: int) -> onnx.ModelProto:
    kind = TensorProto.BOOL if "truths" in form else TensorProto.FLOAT
    nodes = [node("Cast", "one", "s-1", to=kind)]
    for i in range(length):
        names = {name: f"{name}{i}" for name in ("h", "c", "m", "w", "s")} | {"before": f"s{i - 1}"}
        nodes.append(node("Abs", f"h{i - 1}" if i else "x", f"h{i}"))
        for one in LINKS[form]:
            read = " ".join(names.get(name, name) for name in one.input)
            attributes = {"to": TensorProto.FLOAT} if one.op_type == "Cast" else {}
            nodes.append(node(one.op_type, read, names[one.output[0]], **attributes))
    nodes += [node("Cast", f"s{length - 1}", "t", to=TensorProto.FLOAT), node("Mul", "t one", "y")]
    constants = {"zero": scalar(0), "one": scalar(1), "tiny": scalar(1e-6)}
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return make_model(nodes, {"x": [2]}, "y", constants)


@pytest.mark.parametrize("form", LINKS)
def test_each_node_of_a_long_chain_is_told_of_once_and_looked_at_a_few_times(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What writes h writes it for all comparisons that follow, and each of these is made of all that was written before."""
    counts, asked = [], list[int]()
    for module in ("lost_decisions", "shown_decisions", "small_sources"):
        counted = f"overflow_fixer.evidence.zeros.{module}.moves"
        monkeypatch.setattr(counted, lambda node, slot: asked.append(slot) or moves(node, slot))
    for length in (50, 100):
        graph, ranges = scan(_make_chain(form, length), tmp_path, {"x": floats(LEAST[form], 1)})
        asked.clear()
        found = ask(find_lost_comparisons, graph, ranges)
        assert len(found) == len({one.node for one in found}) == 2 * length
        counts.append(len(asked))
    assert counts[1] < 2.5 * counts[0]

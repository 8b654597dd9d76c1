"""Softmax and LogSoftmax are found as operators and written out, with what tells how far their logits are from zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scan

from overflow_fixer.evidence.softmaxes import Softmax, find_softmaxes

SHIFTED = [node("ReduceMax", "x", "m", axes=[-1]), node("Sub", "x m", "d"), node("Exp", "d", "e")]
SUMMED = [*SHIFTED, node("ReduceSum", "e last", "t")]
LOG_SUM = [*SUMMED, node("Log", "t", "l"), node("Add", "m l", "s"), node("Sub", "x s", "y")]
ROW = floats([300, 303], [310, 311])


def _find(folder: Path, nodes: list[onnx.NodeProto], x: np.ndarray = ROW) -> list[Softmax]:
    graph, ranges = scan(
        make_model(nodes, {"x": [None, 2]}, nodes[-1].output[0], {"last": ints(-1)}), folder, {"x": x}
    )
    return list(find_softmaxes(graph, ranges))


FORMS: dict[str, tuple[list[onnx.NodeProto], str, str]] = {
    "an operator": ([node("Softmax", "x", "y")], "Softmax", "Softmax_y"),
    "the operator of logarithms": ([node("LogSoftmax", "x", "y")], "LogSoftmax", "LogSoftmax_y"),
    "a quotient": ([*SUMMED, node("Div", "e t", "y")], "Softmax", "Sub_d"),
    "less a logarithm": ([*SUMMED, node("Log", "t", "l"), node("Sub", "d l", "y")], "LogSoftmax", "Sub_d"),
    "less a log-sum-exp": (LOG_SUM, "LogSoftmax", "Sub_d"),
    "the logarithm of a quotient": (
        [*SUMMED, node("Div", "e t", "p"), node("Log", "p", "y")],
        "LogSoftmax",
        "Sub_d",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_is_found_once(form: str, tmp_path: Path) -> None:
    nodes, kind, label = FORMS[form]
    (found,) = _find(tmp_path, nodes)
    assert (found.kind, found.node.label, found.logits, found.output) == (kind, label, "x", "y")
    assert found.is_written_out == (label == "Sub_d")
    assert found.rows is not None
    assert (found.rows.min, found.rows.max) == (303, 311)


@pytest.mark.parametrize("form", ["the operator of logarithms", "less a log-sum-exp"])
def test_an_exponential_of_logarithms_is_a_softmax(form: str, tmp_path: Path) -> None:
    nodes, kind, label = FORMS[form]
    found = _find(tmp_path, [*nodes, node("Exp", "y", "p")])
    assert [(one.kind, one.node.label, one.output) for one in found] == [
        (kind, label, "y"),
        ("Softmax", label, "p"),
    ]


def test_of_one_as_a_reduction_the_rows_are_its_result(tmp_path: Path) -> None:
    (found,) = _find(
        tmp_path, [node("ReduceLogSumExp", "x", "s", axes=[-1]), node("Sub", "x s", "y")], floats([300, 300])
    )
    assert (found.kind, found.node.label) == ("LogSoftmax", "Sub_y")
    assert found.rows is not None
    assert found.rows.min == pytest.approx(300 + np.log(2))


def test_one_that_subtracts_nothing_is_none(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("ReduceSum", "e last", "t"), node("Div", "e t", "y")]
    assert _find(tmp_path, nodes, ROW - np.float32(310)) == []


def test_of_no_rows_nothing_was_seen(tmp_path: Path) -> None:
    (found,) = _find(tmp_path, FORMS["a quotient"][0], ROW[:0])
    assert found.rows is None or np.isnan(found.rows.max_abs)

"""Native operators that read an x that stays the same look at it once, and anew where the number at their address changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from overflow_fixer.native import DOMAIN, LIBRARY, LOOKS_AT_ALL
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
_FORMS = {
    "Moments": (7, [-1]),
    "Sums": (5, [-1]),
    "SumsApart": (5, [0, 1]),
    "Exponentials": (1, [-1]),
    "Windows": (2, [2, 1, 1, 0, 0]),
}
"""Of each operator how many outputs there are before the statistics, and its second input."""
_LENGTH = 5000
"""Of rows: an Exponentials looks at no shorter ones."""


def _open(op_type: str, is_told: bool = True, **address: int) -> Any:
    """Where it is not told, the statistics are left out."""
    count, form = _FORMS[op_type]
    types = dict.fromkeys((f"y{i}" for i in range(count)), TensorProto.FLOAT)
    types |= {"statistics": TensorProto.DOUBLE} if is_told else {}
    outputs = [*types] if is_told else [*types, ""]
    nodes = [
        helper.make_node("Constant", [], ["form"], value_ints=form),
        helper.make_node(op_type, ["x", "form"], outputs, domain=DOMAIN, **address),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(name, elem_type, None) for name, elem_type in types.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())


def _run(session: Any, x: Array) -> list[list[float]]:
    return [output.tolist() for output in run_session(session, None, Batch("b", {"x": x}))]


def _draw(seed: int, rows: int = 3) -> Array:
    return np.random.default_rng(seed).random((rows, _LENGTH)).astype(np.float32)


@pytest.mark.parametrize("op_type", _FORMS)
def test_without_an_address_each_run_looks(op_type: str) -> None:
    session = _open(op_type)
    assert _run(session, _draw(0)) == _run(session, _draw(0)) != _run(session, _draw(1))


@pytest.mark.parametrize("op_type", _FORMS)
def test_an_address_of_0_means_for_ever(op_type: str) -> None:
    session, fresh = _open(op_type, address=0), _open(op_type)
    first = _run(session, _draw(0))
    assert first == _run(fresh, _draw(0))
    assert _run(session, _draw(1)) == _run(session, _draw(2, rows=8)) == first
    other = _open(op_type, address=0)
    assert _run(other, _draw(1)) == _run(fresh, _draw(1)) != first


@pytest.mark.parametrize("op_type", sorted(LOOKS_AT_ALL))
def test_rows_are_kept_where_nobody_reads_what_is_told_of_them(op_type: str) -> None:
    session = _open(op_type, is_told=False, address=0)
    first = _run(session, _draw(0))
    assert _run(session, _draw(1)) == first == _run(_open(op_type), _draw(0))[:-1]


@pytest.mark.parametrize("op_type", _FORMS)
def test_where_the_number_changes_it_looks_again(op_type: str) -> None:
    number = np.array([7.0])
    session, fresh = _open(op_type, address=number.ctypes.data), _open(op_type)
    for seed, rows in ((0, 3), (1, 8), (2, 0), (3, 1)):  # more and fewer numbers to keep
        number[0] += 1
        found = _run(session, _draw(seed, rows))
        assert found == _run(fresh, _draw(seed, rows))
        assert _run(session, _draw(9)) == found


@pytest.mark.parametrize("op_type", _FORMS)
def test_nothing_is_kept_of_nothing(op_type: str) -> None:
    session, fresh = _open(op_type, address=0), _open(op_type)
    nothing = np.zeros((0, _LENGTH), np.float32)
    assert _run(session, nothing) == _run(session, _draw(0)) == _run(fresh, nothing)

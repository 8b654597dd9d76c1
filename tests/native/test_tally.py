"""What native nodes add up over runs, against numpy: real sessions of one node."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_values import EDGES
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from test_native_operators import leave_out_small, probe, reckon

from overflow_fixer.native import DOMAIN, LIBRARY
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
NOTHING = (-np.inf, np.inf, np.inf, 0, 0, 0, 0, 0)


def _open(op_type: str, elem_type: int, numbers: Array | None) -> Any:
    address = 0 if numbers is None else numbers.ctypes.data
    made = helper.make_node(op_type, ["x"], ["y"], domain=DOMAIN, address=address)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("x", elem_type, None)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())


def _run(session: Any, x: Array) -> list[float]:
    return list(run_session(session, None, Batch("b", {"x": x}))[0])


def _begin(count: int) -> Array:
    totals = np.zeros((1 + count, 13))
    totals[1:, 0], totals[1:, 4], totals[1:, 5:] = np.arange(count), np.inf, NOTHING
    return totals


def _values() -> st.SearchStrategy[Array]:
    return st.lists(st.sampled_from(EDGES), max_size=4).map(lambda values: np.array(values, np.float32))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_values(), _values(), _values()), max_size=5))
def test_what_is_told_in_each_run_is_what_would_be_told_of_all_at_once(
    runs: list[tuple[Array, Array, Array]],
) -> None:
    totals = _begin(3)
    session = _open("Tally", TensorProto.DOUBLE, totals)
    for values in runs:
        assert _run(session, np.concatenate([reckon(x) for x in values])) == []
    assert totals[0, 0] == len(runs)
    together = [np.concatenate([np.zeros(0, np.float32), *(run[i] for run in runs)]) for i in range(3)]
    assert totals[1:, 5:].tolist() == [reckon(x) for x in together]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(_values(), _values()), min_size=1, max_size=5), st.integers(0, 2))
def test_what_is_made_of_a_tensor_is_taken_in_the_runs_in_which_that_holds_so_much_more(
    runs: list[tuple[Array, Array]], times: int
) -> None:
    totals = _begin(2)
    totals[1, :2] = 1, times
    session = _open("Tally", TensorProto.DOUBLE, totals)
    for values in runs:
        _run(session, np.concatenate([reckon(x) for x in values]))
    taken = [made for made, source in runs if source.size > times * made.size]
    assert totals[1, 5:].tolist() == reckon(
        reduce(lambda x, y: np.append(x, y), taken, np.zeros(0, np.float32))
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(_values(), _values(), _values()), min_size=1, max_size=5))
def test_a_tensor_is_taken_in_the_runs_in_which_fp16_can_hold_the_others_that_are_listed_for_it(
    runs: list[tuple[Array, Array, Array]],
) -> None:
    memory = np.zeros(4 * 13 + 2)
    totals = memory[: 4 * 13].reshape(4, 13)
    totals[:] = _begin(3)
    totals[1, 2:4], memory[4 * 13 :] = (4 * 13, 2), (1, 2)
    session = _open("Tally", TensorProto.DOUBLE, memory)
    for values in runs:
        _run(session, np.concatenate([reckon(x) for x in values]))
    none = np.zeros(0, np.float32)
    taken = [x for x, *others in runs if all(_is_held(other) for other in others)]
    assert totals[1, 5:].tolist() == reckon(np.concatenate([none, *taken]))
    assert totals[2, 5:].tolist() == reckon(np.concatenate([none, *(other for _, other, _ in runs)]))


def _is_held(x: Array) -> bool:
    return bool((np.abs(x[~np.isnan(x)]) <= 65504).all())


@settings(max_examples=100, deadline=None)
@given(st.lists(_values(), max_size=4))
def test_a_least_magnitude_follows_from_the_extremes_of_each_run_or_not_at_all(
    runs: list[Array],
) -> None:
    totals = _begin(1)
    session = _open("Tally", TensorProto.DOUBLE, totals)
    expected = np.inf
    for x in runs:
        _run(session, np.array(leave_out_small(reckon(x))))
        present = x[~np.isnan(x)].astype(np.float64)
        is_told = (present > 0).all() or (present < 0).all() or (present == 0).all()
        least = np.abs(present[present != 0]).min(initial=np.inf)
        expected = min(expected, least if is_told else -np.inf)
    assert totals[1, 4] == expected


def test_a_lasting_probe_looks_when_the_number_at_its_address_is_another() -> None:
    number = np.zeros(1)
    session = _open("LastingProbe", TensorProto.FLOAT, number)
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    for first in (x, 2 * x):
        for other in (first, 3 * first, 5 * first):
            assert _run(session, other) == probe(first) == reckon(first)
        number += 1


def test_a_lasting_probe_without_an_address_looks_once_in_a_session() -> None:
    x = np.float32([1, -70000, np.nan])
    for _ in range(2):
        session = _open("LastingProbe", TensorProto.FLOAT, None)
        assert _run(session, x) == _run(session, 2 * x) == reckon(x)
        x = 3 * x

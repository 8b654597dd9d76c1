"""RoundToHalf against numpy: real sessions of it alone, and where others read what it reads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_values import EDGES
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from overflow_fixer.formats import round_to_fp16
from overflow_fixer.native import DOMAIN, LIBRARY, declare_operators
from overflow_fixer.records import Array
from overflow_fixer.sessions.session import open_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")

_VECTOR = 8
"""Of so many elements an instruction is used where there is one; of fewer it is not."""


@cache
def _session(ops: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
    """Nodes `result operator argument` in a row, of x: float[...]."""
    words = (op.split() for op in ops)
    nodes = [
        helper.make_node(op, [source], [result], domain=DOMAIN if op == "RoundToHalf" else "")
        for result, op, source in words
    ]
    given, found = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (("x",), outputs)
    )
    graph = helper.make_graph(nodes, "g", given, found)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    declare_operators(model)
    return open_session(model, Path())


def _round(values: Array) -> Array:
    return np.asarray(_session(("y RoundToHalf x",), ("y",)).run(None, {"x": values})[0])


def _check(values: Array) -> None:
    found, expected = _round(values), round_to_fp16(values).astype(np.float32)
    assert found.shape == values.shape
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(np.isnan(found), is_nan)
    np.testing.assert_array_equal(found[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))
    assert ((found[is_nan].view(np.uint32) >> 31) == (values[is_nan].view(np.uint32) >> 31)).all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=3 * _VECTOR))
def test_any_bits_are_rounded_as_numpy_rounds_them(bits: list[int]) -> None:
    _check(np.array(bits, np.uint32).view(np.float32))


@pytest.mark.parametrize("size", [1, _VECTOR - 1])
def test_every_exponent_is_rounded_so_without_the_instruction(size: int) -> None:
    """Of each, mantissas about the middle between two numbers of FP16 and at the ends."""
    for exponent in range(256):
        mantissas = np.array([0, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFFFF], np.uint32)
        _check((np.uint32(exponent << 23) + mantissas)[:size].view(np.float32))


def test_a_large_tensor_is_rounded_in_parts_that_meet() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1_000_003, np.uint32)
    _check(bits.view(np.float32))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 9, (2, 3, 5, 7)])
def test_the_shape_stays(shape: tuple[int, ...]) -> None:
    _check(np.full(shape, 0.1, np.float32))


def test_edges_are_rounded() -> None:
    _check(np.array(EDGES, np.float32))


@pytest.mark.parametrize(
    "ops",
    [
        ("a Neg x", "y RoundToHalf a", "z Neg a"),
        ("a Neg x", "z Neg a", "y RoundToHalf a"),
        ("z Identity x", "y RoundToHalf x"),
        ("z Neg x", "y RoundToHalf z"),
        ("a Neg x", "b Identity a", "y RoundToHalf a", "z Identity b"),
    ],
)
def test_what_others_read_is_left_as_it_is(ops: tuple[str, ...]) -> None:
    """Its output may lie where its input lay, where nobody needs that any more."""
    values = np.linspace(0.1, 70000, 4099, dtype=np.float32)
    given = values.copy()
    rounded, read = _session(ops, ("y", "z")).run(None, {"x": given})
    half = round_to_fp16(values).astype(np.float32)
    np.testing.assert_array_equal(given, values)
    np.testing.assert_array_equal(np.abs(rounded), half)
    np.testing.assert_array_equal(np.abs(read), values)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ([2, 3], [2, 3]),
        (["N", 3], ["N", 3]),
        ([], []),
        (None, []),  # ONNX Runtime tells an unknown rank so too
        ([None, 3], []),
    ],
)
def test_the_shape_is_known_before_it_runs(shape: list[int | str | None] | None, told: list[Any]) -> None:
    node = helper.make_node("RoundToHalf", ["x"], ["y"], domain=DOMAIN)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", given, result),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    declare_operators(model)
    session = open_session(model, Path())
    assert session.get_outputs()[0].shape == told
    values = np.full((2, 3) if shape != [] else (), 0.1, np.float32)
    np.testing.assert_array_equal(
        session.run(None, {"x": values})[0], values.astype(np.float16).astype(np.float32)
    )

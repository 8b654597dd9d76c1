"""The native operators against numpy: real sessions of one node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_values import EDGES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from overflow_fixer import native
from overflow_fixer.errors import ModelError
from overflow_fixer.native import DOMAIN, LIBRARY, SWITCH, find_library
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.sessions.settings import has_native_probes

needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")


def test_it_is_built_where_it_must_be() -> None:
    assert has_native_probes() or "NATIVE_PROBES_REQUIRED" not in os.environ


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert find_library() is None
    assert not has_native_probes()


def test_a_library_that_does_not_load_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libprobes.so"
    broken.write_text("torn")
    monkeypatch.setattr(native, "LIBRARY", broken)
    assert find_library() is None
    assert not has_native_probes()


def test_a_library_of_another_source_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_library() is None:
        pytest.skip("no library was built")
    source = LIBRARY.with_name("probes.cpp")
    (tmp_path / source.name).write_bytes(source.read_bytes() + b"\n")
    for place, is_current in ((source, True), (tmp_path / source.name, False)):
        monkeypatch.setattr(native, "_SOURCE", place)
        native._is_current.cache_clear()
        assert (find_library() is not None) == has_native_probes() == is_current
    native._is_current.cache_clear()


_ROWS = {"Moments": 7, "Sums": 5}
"""The operators that read rows, and how many numbers they tell of each."""
_APART = "SumsApart"
_OUTPUTS = {**_ROWS, _APART: 5}
_SECOND_INPUT = {**dict.fromkeys(_OUTPUTS, "length"), "BlockProbe": "layout"}


@cache
def _session(op_type: str, unread: frozenset[int] = frozenset()) -> Any:
    """The outputs `unread` are left out."""
    values = [f"y{i}" for i in range(_OUTPUTS.get(op_type, 0))]
    outputs = ["" if i in unread else name for i, name in enumerate([*values, "statistics"])]
    types = {
        name: TensorProto.FLOAT if name in values else TensorProto.DOUBLE for name in filter(None, outputs)
    }
    given = {"x": TensorProto.FLOAT}
    if op_type in _SECOND_INPUT:
        given[_SECOND_INPUT[op_type]] = TensorProto.INT64
    graph = helper.make_graph(
        [helper.make_node(op_type, list(given), outputs, domain=DOMAIN)],
        "g",
        [helper.make_tensor_value_info(name, elem_type, None) for name, elem_type in given.items()],
        [helper.make_tensor_value_info(name, elem_type, None) for name, elem_type in types.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())


def probe(x: Array, op_type: str = "SmallProbe") -> list[float]:
    (found,) = run_session(_session(op_type), None, Batch("b", {"x": x}))
    return list(found)


def read_rows(op_type: str, x: Array, *length: int) -> list[Array]:
    """What the operator tells of the rows; what it tells of that, and of all, is what Probe would, whatever is left out."""
    batch = Batch("b", {"x": x, "length": np.array(length, np.int64)})
    *found, statistics = run_session(_session(op_type), None, batch)
    expected = [leave_out_small(reckon(values)) for values in (*found, x)]
    assert statistics.reshape(-1, 8).tolist() == expected
    for unread in (range(len(found)), range(0, len(found), 2), [len(found)]):
        others = run_session(_session(op_type, frozenset(unread)), None, batch)
        kept = [values for i, values in enumerate((*found, statistics)) if i not in unread]
        assert [other.tobytes() for other in others] == [values.tobytes() for values in kept]
    return found


def leave_out_small(told: list[float]) -> list[float]:
    """What Probe tells where SmallProbe tells this."""
    return [*told[:2], np.inf, *told[3:]]


def reckon(x: Array) -> list[float]:
    """What SmallProbe tells, by numpy in float64: 800,000 numbers one by one take a second."""
    numbers = x[~np.isnan(x)].astype(np.float64)
    sizes = np.abs(numbers)
    return [
        numbers.max(initial=-np.inf),
        numbers.min(initial=np.inf),
        sizes[sizes > 0].min(initial=np.inf),
        x.size,
        x.size - numbers.size,
        np.count_nonzero(sizes < 65520),
        np.count_nonzero(sizes < np.inf),
        np.count_nonzero(numbers >= 65520),
    ]


_SHAPES = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=90)


@needs_library
@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        hnp.arrays(np.float32, _SHAPES, elements=st.sampled_from([float(np.float32(x)) for x in EDGES])),
        hnp.arrays(np.float32, _SHAPES, elements=st.floats(width=32)),
    )
)
def test_a_probe_tells_each_number(x: Array) -> None:
    assert probe(x) == reckon(x)
    assert probe(x, "Probe") == leave_out_small(reckon(x))


def _probe_together(arrays: Sequence[Array]) -> list[list[float]]:
    """What one SharedProbe tells of each."""
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    graph = helper.make_graph(
        [helper.make_node("SharedProbe", list(feeds), ["statistics"], domain=DOMAIN)],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in feeds],
        [helper.make_tensor_value_info("statistics", TensorProto.DOUBLE, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    session = open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())
    (found,) = run_session(session, None, Batch("b", feeds))
    return [list(told) for told in np.asarray(found).reshape(-1, 8)]


@needs_library
@settings(max_examples=50, deadline=None)
@given(st.lists(hnp.arrays(np.float32, _SHAPES, elements=st.floats(width=32)), min_size=1, max_size=5))
def test_a_shared_probe_tells_of_each_in_turn(arrays: list[Array]) -> None:
    assert _probe_together(arrays) == [reckon(array) for array in arrays]


@needs_library
def test_a_shared_probe_may_look_at_many_and_at_large_ones() -> None:
    """The notes of sizes by which it is chosen may be untrue."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size).astype(np.float32) for size in (*range(63), 300_000)]
    arrays[63][123_456] = 70_000
    assert _probe_together(arrays) == [reckon(array) for array in arrays]


@needs_library
@pytest.mark.parametrize("size", [31, 32, 33, 4095, 4096, 4097, 100_003, 1 << 20])
@pytest.mark.parametrize("bad", [65520, np.inf, -np.inf, np.nan])
def test_one_value_is_found_wherever_it_is(size: int, bad: float) -> None:
    """At the ends of the pieces that threads and vectors take, too."""
    for place in {0, 1, 30, size // 3, 4095 % size, 32767 % size, size - 1}:
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        x[place] = bad
        numbers = x[~np.isnan(x)].astype(np.float64)
        expected = [numbers.max(), numbers.min(), np.abs(numbers).min(), size, int(np.isnan(bad)), size - 1]
        expected += [size - (not np.isfinite(bad)), int(bad >= 65520)]
        assert probe(x) == expected
        assert probe(x, "Probe") == leave_out_small(expected)


def probe_blocks(x: Array, *layout: int) -> list[float]:
    (found,) = run_session(
        _session("BlockProbe"), None, Batch("b", {"x": x, "layout": np.array(layout, np.int64)})
    )
    return list(found)


def lay_out(x: Array, block: int, padding: Array) -> Array:
    """x [images, channels, h, w] in blocks of channels, `padding` where the last one holds none; the shape says otherwise."""
    images, channels, height, width = x.shape
    padded = -(-channels // block) * block
    whole = np.empty((images, padded, height, width), np.float32)
    whole[:, :channels], whole[:, channels:] = x, np.resize(padding, whole[:, channels:].shape)
    blocks = whole.reshape(images, padded // block, block, height, width).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(blocks).reshape(whole.shape)


@needs_library
@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=4, max_dims=4, min_side=0, max_side=20),
        elements=st.sampled_from([float(np.float32(x)) for x in EDGES]),
    ),
    st.sampled_from([8, 16]),
)
def test_a_probe_of_blocks_leaves_the_padding_out(x: Array, block: int) -> None:
    found = probe_blocks(lay_out(x, block, np.float32(EDGES)), x.shape[1], block)
    assert found == leave_out_small(reckon(x))


@needs_library
@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize(
    "shape", [(1, 24, 56, 56), (2, 40, 28, 28), (1, 58, 113, 97), (3, 5, 64, 64), (9, 184, 3, 5)]
)
def test_a_probe_of_blocks_that_threads_share(shape: tuple[int, ...], block: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for place in {0, 7, x.size // 3, x.size - 1}:
        x.reshape(-1)[place] = 70000
    wide = x.astype(np.float64)
    over = np.count_nonzero(wide == 70000)
    expected = [wide.max(), wide.min(), np.inf, x.size, 0, x.size - over, x.size, over]
    assert probe_blocks(lay_out(x, block, np.float32([np.nan, np.inf, -1e9])), shape[1], block) == expected


@needs_library
@pytest.mark.parametrize(
    "layout", [(), (5,), (0, 8), (5, 0), (5, 3), (-1, 8), (17, 8), (8, 8), (5, -8), (5, 64)]
)
@pytest.mark.parametrize("shape", [(2, 16, 3), (16,), (), (0, 16, 1), (2, 0)])
def test_what_cannot_lie_in_blocks_has_no_padding(shape: tuple[int, ...], layout: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert probe_blocks(x, *layout) == leave_out_small(reckon(x))


@needs_library
@pytest.mark.parametrize(
    ("rows", "length"),
    [(1, 1), (7, 768), (32, 5000), (3, 17), (64, 1000), (2, 70_000), (96, 49), (5, 127), (5, 128)],
)
@pytest.mark.parametrize("mean", [0, 5, -1000, 1e5])
def test_moments_of_rows(rows: int, length: int, mean: float) -> None:
    x = (mean + np.random.default_rng(rows).standard_normal((rows, length))).astype(np.float32)
    wide = x.astype(np.float64)
    deviations, magnitudes = wide - wide.mean(1, keepdims=True), np.abs(wide).sum(1)
    largest, smallest, deviation, total, *others = read_rows("Moments", x, length)
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_array_equal(smallest, x.min(1))
    np.testing.assert_allclose(deviation, np.abs(deviations).max(1), rtol=3e-6, atol=0)
    assert (np.abs(total - wide.sum(1)) <= 3e-6 * magnitudes).all()
    expected = [magnitudes, (wide**2).sum(1), (deviations**2).sum(1)]
    for found, right in zip(others, expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=3e-6, atol=0)


@needs_library
@pytest.mark.parametrize(
    ("rows", "length"), [(1, 1), (7, 768), (3, 17), (2, 70_000), (96, 49), (5, 127), (5, 128)]
)
@pytest.mark.parametrize("values", ["alike", "any", "far"])
def test_sums_of_rows(rows: int, length: int, values: str) -> None:
    """Of numbers that are all alike, too, where every rounding goes the same way."""
    noise = np.random.default_rng(rows).standard_normal((rows, length))
    x = {"alike": np.full((rows, length), 0.1), "any": noise, "far": noise - 1e5}[values].astype(np.float32)
    wide = x.astype(np.float64)
    largest, smallest, total, magnitudes, squares = read_rows("Sums", x, length)
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_array_equal(smallest, x.min(1))
    assert (np.abs(total - wide.sum(1)) <= 2e-6 * np.abs(wide).sum(1)).all()
    np.testing.assert_allclose(magnitudes, np.abs(wide).sum(1), rtol=2e-6, atol=0)
    np.testing.assert_allclose(squares, (wide**2).sum(1), rtol=2e-6, atol=0)


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize(
    ("shape", "first", "axes", "last"),
    [
        ((2, 3, 700), 0, 1, 1),
        ((2, 3, 4, 50, 60), 0, 1, 3),
        ((4, 2, 3, 5, 70), 1, 2, 1),
        ((5, 600, 7), 0, 1, 1),
        ((3, 1, 4, 1), 0, 1, 2),
        ((2, 64, 112, 56), 0, 1, 2),  # by several threads
    ],
)
@pytest.mark.parametrize("bad", [0, np.nan, np.inf, -7e4])
def test_rows_in_parts_are_those_of_the_axes_moved_to_the_end(
    op_type: str, shape: tuple[int, ...], first: int, axes: int, last: int, bad: float
) -> None:
    x = np.random.default_rng(last).standard_normal(shape).astype(np.float32) + 3
    x.flat[x.size // 3] = bad
    moved = np.moveaxis(x, range(first, first + axes), range(-last - axes, -last))
    length = np.prod(moved.shape[-last - axes :])
    expected = read_rows(op_type, np.ascontiguousarray(moved), length)
    for found, right in zip(read_rows(op_type, x, first, axes, last), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=3e-6, atol=1e-3)


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize(
    "where", [(0, 1, 2), (0, 3, 1), (-1, 1, 1), (0, 0, 1), (1, 1, 0), (0, 1, -1), (0, 1, 4), (7, 1, 1)]
)
def test_what_has_no_such_parts_is_one_row(op_type: str, where: tuple[int, int, int]) -> None:
    found = read_rows(op_type, np.ones((2, 3, 5), np.float32), *where)
    assert [len(values) for values in found] == [1] * _ROWS[op_type]


@needs_library
@pytest.mark.parametrize(
    ("shape", "first", "end"),
    [
        ((3, 5, 7), 1, 2),
        ((3, 5, 7), 0, 1),
        ((3, 5, 7), 0, 2),
        ((3, 5, 7), 1, 3),  # to the last axis
        ((3, 5, 7), 0, 3),
        ((2, 3, 4, 130), 1, 3),
        ((1, 70_000, 2), 1, 2),
        ((5, 300, 1000), 1, 2),  # by several threads
        ((4000, 3, 40), 1, 2),
        ((1, 1, 1), 1, 2),
    ],
)
@pytest.mark.parametrize("values", ["alike", "any", "far"])
def test_sums_of_rows_whose_elements_lie_apart(
    shape: tuple[int, ...], first: int, end: int, values: str
) -> None:
    noise = np.random.default_rng(first).standard_normal(shape)
    x = {"alike": np.full(shape, 0.1), "any": noise, "far": noise - 1e5}[values].astype(np.float32)
    wide, axes = x.astype(np.float64), tuple(range(first, end))
    largest, smallest, total, magnitudes, squares = read_rows(_APART, x, first, end - first)
    np.testing.assert_array_equal(largest, x.max(axes).reshape(-1))
    np.testing.assert_array_equal(smallest, x.min(axes).reshape(-1))
    exact = np.abs(wide).sum(axes).reshape(-1)
    assert (np.abs(total - wide.sum(axes).reshape(-1)) <= 4e-6 * exact).all()
    np.testing.assert_allclose(magnitudes, exact, rtol=4e-6, atol=0)
    np.testing.assert_allclose(squares, (wide**2).sum(axes).reshape(-1), rtol=4e-6, atol=0)


@needs_library
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65504, 65519, 65520, -1e9, 3e38])
@pytest.mark.parametrize("shape", [(3, 200, 5), (2, 400, 700)])
def test_elements_that_lie_apart_are_counted_as_a_probe_does(shape: tuple[int, ...], bad: float) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[1, shape[1] // 2, 3] = bad
    found = read_rows(_APART, x, 1, 1)  # which looks at what it tells of all
    for values in found[2:] if not np.isfinite(bad) else ():
        is_bad = np.zeros((shape[0], shape[2]), bool)
        is_bad[1, 3] = True
        assert (~np.isfinite(values)).tolist() == is_bad.reshape(-1).tolist()


@needs_library
@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [
        ((0, 3), (0, 1), 0),
        ((3, 0), (0, 1), 0),
        ((6, 2), (), 1),
        ((6, 2), (0,), 1),
        ((6, 2), (1, 2), 1),
        ((6, 2), (-1, 1), 1),
        ((6, 2), (0, 0), 1),
        ((), (0, 1), 1),
    ],
)
def test_what_has_no_such_axes_is_one_row(shape: tuple[int, ...], axes: tuple[int, ...], rows: int) -> None:
    x = np.ones(shape, np.float32)
    found = read_rows(_APART, x, *axes)
    assert [len(values) for values in found] == [rows] * 5
    if rows:
        assert [float(values[0]) for values in found] == [1, 1, x.size, x.size, x.size]


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize(
    ("shape", "length", "rows"), [((0,), 5, 0), ((4, 0), 0, 0), ((6,), 4, 1), ((6,), 0, 1), ((), 1, 1)]
)
def test_what_cannot_be_cut_is_one_row_and_nothing_is_none(
    op_type: str, shape: tuple[int, ...], length: int, rows: int
) -> None:
    found = read_rows(op_type, np.ones(shape, np.float32), length)
    assert [len(values) for values in found] == [rows] * _ROWS[op_type]


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize(
    ("shape", "axes", "length"),
    [((2, 3, 5, 7), 2, 35), ((2, 3, 5), 1, 5), ((6,), 1, 6), ((2, 3), 2, 6), ((2, 3), 3, 6), ((), 1, 1)],
)
def test_rows_can_be_told_by_the_number_of_their_axes(
    op_type: str, shape: tuple[int, ...], axes: int, length: int
) -> None:
    x = np.random.default_rng(axes).standard_normal(shape).astype(np.float32)
    for found, expected in zip(read_rows(op_type, x, -axes), read_rows(op_type, x, length), strict=True):
        np.testing.assert_array_equal(found, expected)


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize("count", [3000, 400_000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65504, 65519, 65520, -1e9, 3e38])
def test_of_all_that_it_reads_it_tells_what_a_probe_does(op_type: str, count: int, bad: float) -> None:
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    x[count // 3] = bad
    batch = Batch("b", {"x": x, "length": np.array([count // 10])})
    *_, statistics = run_session(_session(op_type), None, batch)
    assert statistics[-8:].tolist() == leave_out_small(reckon(x))


@needs_library
@pytest.mark.parametrize("op_type", _ROWS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_show_what_is_not_finite_in_its_row_alone(op_type: str, bad: float) -> None:
    x = np.ones((3, 1000), np.float32)
    x[1, 700] = bad
    _, _, *others = read_rows(op_type, x, 1000)
    for values in others:
        assert np.isfinite(values).tolist() == [True, False, True]


@needs_library
def test_another_type_is_refused_and_not_read() -> None:
    with pytest.raises(ModelError, match="could not be run"):
        probe(np.ones(3))

"""The native operators Watch and WatchPair: what they tell, and when they call, against numpy in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from overflow_fixer.native import DOMAIN, LIBRARY, probe_array
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")
_TENSOR = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64, *_TENSOR, *_TENSOR)
NUMBER = 7


_TOLD = frozenset({"told", "told_y"})


def _open(inputs: Collection[str], numbers: Sequence[int]) -> Any:
    types = {name: TensorProto.DOUBLE if name in _TOLD else TensorProto.FLOAT for name in inputs}
    is_pair = "y" in inputs
    places = ["written", "told", "x", *(["told_y", "y"] if is_pair else ["constant"])]
    read = [name if name in types else "" for name in places if name != "constant" or name in types]
    op_type = "WatchPair" if is_pair else "Watch"
    graph = helper.make_graph(
        [helper.make_node(op_type, read, ["statistics"], domain=DOMAIN, numbers=numbers)],
        "g",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()],
        [helper.make_tensor_value_info("statistics", TensorProto.DOUBLE, None)],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())


def tell(most: float, least: float = 0.0) -> Array:
    """What a probe tells, as far as it is looked at."""
    return np.array([most, least, 0, 0, 0, 0, 0])


def tell_of(x: Array) -> Array:
    return tell(float(np.max(x, initial=-np.inf)), float(np.min(x, initial=np.inf)))


def watch(
    x: Array,
    axis: int,
    y: Array | None = None,
    *,
    groups: int = 1,
    allowed: tuple[float, ...] = (0, 0, 0),
    grown: tuple[float, ...] = (0, 0, 0),
    written: Array | None = None,
    told: Array | None = None,
    told_y: Array | None = None,
    scale: float = 1,
    scale_y: float = 1,
    is_kernel: bool = False,
    axis_y: int = -2,
    constant: Array | None = None,
) -> list[Any]:
    """What it calls with: the arrays, or None where it asks for a larger allowance, which is `grown` then.

    Of what is `written` it tells the same each time. Where a test says neither what is told of them nor in which scale, it calls
    with the same when it has to look at the factors itself.
    """
    is_plain = told is told_y is None and scale == scale_y == 1
    given = tell_of(x) if told is None else told
    given_y = {} if y is None else {"told_y": tell_of(y) if told_y is None else told_y, "y": y}
    shown = {} if constant is None else {"constant": constant}
    feeds = {"written": np.zeros(1, np.float32) if written is None else written, "told": given, "x": x}
    feeds |= {**shown, **given_y}
    of_x, of_y = [axis, groups, _bits_of(scale)], [axis_y, _bits_of(scale_y), int(is_kernel)]
    calls = _call(feeds, allowed, grown, [*of_x, *of_y])
    if is_plain:
        looked = {name: array for name, array in feeds.items() if name not in _TOLD}
        assert repr(_call(looked, allowed, grown, [*of_x, *of_y])) == repr(calls)
    return calls


def _call(
    feeds: dict[str, Array], allowed: tuple[float, ...], grown: tuple[float, ...], numbers: list[int]
) -> list[Any]:
    calls: list[Any] = []
    allowance = np.array(allowed, np.float64)

    def look(number: int, *tensors: Any) -> None:
        assert number == NUMBER
        if tensors[0] is None:
            calls.append(None)
            allowance[:] = grown
        else:
            calls.append([_copy(*one) for one in (tensors[:3], tensors[3:]) if one[0] is not None])

    function = _FUNCTION(look)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    session = _open(feeds.keys(), [1, address, NUMBER, allowance.ctypes.data, *numbers])
    (statistics,) = run_session(session, None, Batch("b", feeds))
    np.testing.assert_array_equal(statistics, probe_array(feeds["written"]))
    return calls


def _bits_of(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _copy(address: int, dimensions: Any, rank: int) -> Array:
    shape = dimensions[:rank]
    flat = (ctypes.c_float * math.prod(shape)).from_address(address)
    return np.array(np.ctypeslib.as_array(flat)).reshape(shape)


def length_of(x: Array, axis: int, groups: int = 1) -> float:
    """The largest root of a sum of squares, of the channels of each group where there are groups."""
    wide = np.moveaxis(x.astype(np.float64), 0 if x.ndim == 1 else axis, 0)
    parts = np.split(wide, groups)
    return float(max(np.sqrt(np.square(part).sum(axis=0)).max(initial=0) for part in parts))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_it_calls_where_a_length_is_over_what_is_allowed(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=40))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = (rng.standard_normal(shape) * 10.0 ** data.draw(st.integers(-3, 4))).astype(np.float32)
    axis = data.draw(st.sampled_from([-1, -2, 1] if len(shape) > 1 else [-1, -2]))
    groups = data.draw(st.sampled_from([n for n in (1, 2, 3) if axis == 1 and shape[1] % n == 0] or [1]))
    exact = length_of(x, axis, groups)
    (called,) = watch(x, axis, groups=groups, allowed=(0, exact * (1 - 1e-6), 0))
    np.testing.assert_array_equal(called[0], x)
    assert watch(x, axis, groups=groups, allowed=(0, exact * (1 + 1e-4), 0)) == []


@pytest.mark.parametrize(
    ("shape", "axis", "groups"),
    [
        ((3, 70000), -1, 1),
        ((70000, 3), -2, 1),
        ((2, 6, 300, 301), 1, 3),
        ((5, 40000), -2, 1),
        ((1 << 16,), -2, 1),
    ],
)
def test_large_tensors_are_looked_at_by_many_threads(shape: tuple[int, ...], axis: int, groups: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    exact = length_of(x, axis, groups)
    assert len(watch(x, axis, groups=groups, allowed=(0, exact * (1 - 1e-6), 0))) == 1
    assert watch(x, axis, groups=groups, allowed=(0, exact * 1.01, 0)) == []


def write(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        write(),
        write(math.nan),
        write(3, -2, 0.5),
        write(-math.inf, 7e4, math.nan, 0),
        np.full((3, 70000), -2.5),
    ],
)
def test_it_tells_of_what_is_written_as_a_probe_does(written: Array, is_pair: bool, is_small: bool) -> None:
    feeds = {"written": written.astype(np.float32), "told": tell(1), "x": X}
    feeds |= {"told_y": tell(1), "y": Y} if is_pair else {}
    session = _open(feeds.keys(), [int(is_small), *[0] * 9])  # it has no function to call
    (statistics,) = run_session(session, None, Batch("b", feeds))
    expected = probe_array(feeds["written"])
    expected[2] = expected[2] if is_small else np.inf
    np.testing.assert_array_equal(statistics, expected)


X = np.array([[30.0, -40.0], [5, 6]], np.float32)  # lengths of 50 and 7.8
Y = np.array([[3.0, 0], [4, 1]], np.float32)  # of 5


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"allowed": (39.9, 49.9, 0)}, 1),
        ({"allowed": (40, 0, 0)}, 0),  # no magnitude is larger
        ({"allowed": (39.9, 50.1, 0)}, 0),  # no length is
        ({"allowed": (math.inf, 0, 0)}, 0),
        ({"allowed": (math.nan, math.nan, 0)}, 1),
        ({"written": write(65504, 1)}, 1),
        ({"written": write(1, 65504.004)}, 0),  # FP16 cannot hold the output
        ({"written": write(0, -65504.004)}, 0),
        ({"told": tell(65504.004)}, 0),
        ({"told": tell(0, -7e4)}, 1),  # of a tensor of which x may be a part
        ({"told": tell(math.nan, math.nan)}, 1),
        ({"written": write(math.nan, math.nan)}, 1),
        ({"allowed": (0, 0, 1), "grown": (0, 0, 0)}, 2),
        ({"allowed": (0, 0, 1), "grown": (40, 0, 0)}, 1),
        ({"allowed": (0, 0, 1), "grown": (0, 50.1, 0)}, 1),
    ],
)
def test_when_it_calls(settings: dict[str, Any], calls: int) -> None:
    assert len(watch(X, -1, **settings)) == calls


@pytest.mark.parametrize("shape", [(2, 3), (3, 1, 2, 2), (), (0, 2)])
def test_a_constant_is_shown_as_well(shape: tuple[int, ...]) -> None:
    constant = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    left, right = watch(X, -1, constant=constant)[0]
    np.testing.assert_array_equal(left, X)
    np.testing.assert_array_equal(right, constant, strict=True)
    assert watch(X, -1, constant=constant, allowed=(40, 0, 0)) == []


def test_of_a_pair_magnitudes_are_multiplied_with_the_number_of_terms() -> None:
    assert watch(X, -1, Y, allowed=(320, 0, 0)) == []
    left, right = watch(X, -1, Y, allowed=(319.9, 0, 0))[0]
    np.testing.assert_array_equal(left, X)
    np.testing.assert_array_equal(right, Y)


def test_of_a_pair_lengths_are_multiplied() -> None:
    assert watch(X, -1, Y, allowed=(0, 250.1, 0)) == []
    assert len(watch(X, -1, Y, allowed=(0, 249.9, 0))) == 1


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({"told": tell(160), "scale": 0.25, "allowed": (40.1, 0, 0)}, 0),
        ({"told": tell(160), "scale": 0.25, "allowed": (39.9, 49.9, 0)}, 1),
        ({"told": tell(10), "scale": 4, "allowed": (40.1, 0, 0)}, 0),
        ({"told": tell(7e4), "scale": 0.5, "allowed": (35001, 0, 0)}, 0),
        ({"told": tell(7e4), "scale": 0.5, "allowed": (34999, 0, 0)}, 1),
        ({"told": tell(4e4), "scale": 2, "allowed": (0, 0, 0)}, 0),  # x is over what FP16 can hold
        ({"told": tell(math.nan, math.nan), "scale": 2, "allowed": (math.inf, 0, 0)}, 1),
    ],
)
def test_what_is_told_is_multiplied_by_the_scale(settings: dict[str, Any], calls: int) -> None:
    assert len(watch(X, -1, **settings)) == calls


def test_a_product_that_is_rounded_up_is_not_taken_for_less() -> None:
    """0.1 x 0.7 in float32 is more than it is in float64."""
    told, scale = np.float32(0.1), np.float32(0.7)
    x = np.float32([[told * scale]])
    assert float(x[0, 0]) > float(told) * float(scale)
    exactly = (float(told) * float(scale), 0, 0)
    assert len(watch(x, -1, told=tell(float(told)), scale=float(scale), allowed=exactly)) == 1


def test_of_a_pair_each_has_a_scale() -> None:
    """Terms, and what is told of x and of y, times their scales: 2 x (20 x 2) x (40 x 0.1)."""
    settings: dict[str, Any] = {"told": tell(20), "scale": 2, "told_y": tell(40), "scale_y": 0.1}
    assert watch(X, -1, Y, **settings, allowed=(320.01, 0, 0)) == []
    assert len(watch(X, -1, Y, **settings, allowed=(319.9, 0, 0))) == 1
    over = {**settings, "scale_y": 65505 / 40}
    assert watch(X, -1, Y, **over) == []


def test_of_a_kernel_all_places_are_summed() -> None:
    """Weights [out, in of a group, height, width] of 3 x 2 places, of two groups."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 5, 5)).astype(np.float32)
    w = rng.standard_normal((6, 4, 3, 2)).astype(np.float32)
    kernel: dict[str, Any] = {"y": w, "is_kernel": True, "axis_y": 1, "groups": 2}
    most = float(np.abs(x).max()) * float(np.abs(w).max()) * 4 * 6
    assert watch(x, 1, **kernel, allowed=(most * 1.0001, 0, 0)) == []
    length = length_of(x, 1, 2) * length_of(w, 1) * 6
    assert watch(x, 1, **kernel, allowed=(most * 0.9999, length * 1.0001, 0)) == []
    assert len(watch(x, 1, **kernel, allowed=(most * 0.9999, length * 0.9999, 0))) == 1


def test_a_nan_leaves_its_row_out_and_an_infinity_calls() -> None:
    assert watch(np.array([[np.nan, 9e4], [3, 4]], np.float32), -1, allowed=(0, 5.01, 0), told=tell(4)) == []
    assert len(watch(np.array([[-np.inf, 1]], np.float32), -1, allowed=(0, 1e300, 0), told=tell(1))) == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_nothing_is_called_for_an_empty_tensor(shape: tuple[int, ...]) -> None:
    assert watch(np.zeros(shape, np.float32), -1) == []
    for allowed in ((0, 0, 0), (-1, -1, 1), (math.nan, math.nan, 0)):
        assert watch(np.zeros(shape, np.float32), -1, told=tell(math.nan), allowed=allowed) == []


def test_no_scale_counts_where_nothing_is_told() -> None:
    of_x, of_y = [-1, 1, _bits_of(1000)], [-2, _bits_of(1000), 0]
    feeds = {"written": np.zeros(1, np.float32), "x": X}
    largest = float(np.abs(X).max())
    assert _call(feeds, (largest, 0, 0), (0, 0, 0), [*of_x, *of_y]) == []
    assert len(_call(feeds, (largest * 0.999, 0, 0), (0, 0, 0), [*of_x, *of_y])) == 1
    pair = {**feeds, "y": Y}
    most = largest * float(np.abs(Y).max()) * X.shape[-1]
    assert _call(pair, (most * 1.0001, 0, 0), (0, 0, 0), [*of_x, *of_y]) == []
    assert len(_call(pair, (most * 0.999, 0, 0), (0, 0, 0), [*of_x, *of_y])) == 1

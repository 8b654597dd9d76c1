"""The operator Windows against sums of windows that are looked up place by place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from overflow_fixer.native import DOMAIN, LIBRARY
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")


@dataclass(frozen=True)
class Axis:
    """How windows lie along one dimension."""

    places: int
    step: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    @property
    def numbers(self) -> list[int]:
        return [self.places, self.step, self.dilation, self.before, self.after]

    def find_places(self, length: int) -> list[list[int]]:
        """Of each window those of its places that are not beyond an edge."""
        room = length + self.before + self.after - ((self.places - 1) * self.dilation + 1)
        count = 0 if room <= -self.step else int(room / self.step) + 1  # ONNX Runtime rounds towards 0
        begins = [i * self.step - self.before for i in range(count)]
        reached = [[begin + i * self.dilation for i in range(self.places)] for begin in begins]
        return [[place for place in window if 0 <= place < length] for window in reached]


@cache
def _session() -> Any:
    outputs = {"sum": TensorProto.FLOAT, "magnitudes": TensorProto.FLOAT, "statistics": TensorProto.DOUBLE}
    given = {"x": TensorProto.FLOAT, "form": TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node("Windows", list(given), list(outputs), domain=DOMAIN)],
        "g",
        [helper.make_tensor_value_info(name, elem_type, None) for name, elem_type in given.items()],
        [helper.make_tensor_value_info(name, elem_type, None) for name, elem_type in outputs.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return open_session(helper.make_model(graph, opset_imports=imports, ir_version=8), Path())


def tell(x: Array, *axes: Axis) -> Array:
    """What is told [2, 8] of the sums and of those of magnitudes."""
    form = np.array([number for axis in axes for number in axis.numbers], np.int64)
    *tensors, statistics = run_session(_session(), None, Batch("b", {"x": x, "form": form}))
    assert [tensor.shape for tensor in tensors] == [(0,), (0,)]
    assert statistics[16:].tolist() == [-np.inf, np.inf, np.inf, 0, 0, 0, 0, 0]
    return np.asarray(statistics[:16].reshape(2, 8))


def reckon(x: Array, *axes: Axis) -> Array:
    """The sums [2, window, ...] of windows, and of magnitudes, in float64."""
    lengths = x.shape[x.ndim - len(axes) :]
    found = [axis.find_places(length) for axis, length in zip(axes, lengths, strict=True)]
    wide = np.stack([x, np.abs(x)]).astype(np.float64)
    rank = len(axes)
    sums = [wide[(..., *np.ix_(*chosen))].sum(tuple(range(-rank, 0))) for chosen in itertools.product(*found)]
    return np.stack(sums, axis=1).reshape(2, -1) if sums else np.zeros((2, 0))


def assert_told(x: Array, *axes: Axis) -> None:
    with np.errstate(invalid="ignore"):
        expected = reckon(x, *axes)
    for told, sums in zip(tell(x, *axes), expected, strict=True):
        numbers = sums[~np.isnan(sums)]
        assert told[3:5].tolist() == [sums.size, sums.size - numbers.size]
        finite = np.abs(numbers[np.isfinite(numbers)])
        assert told[5:].tolist() == [
            np.count_nonzero(finite < 65520),
            finite.size,
            np.count_nonzero(numbers >= 65520),
        ]
        margin = 3e-6 * expected[1][np.isfinite(expected[1])].max(initial=0)
        right = [numbers.max(initial=-np.inf), numbers.min(initial=np.inf)]
        np.testing.assert_allclose(told[:2], right, rtol=0, atol=margin)


_AXES = st.builds(
    Axis,
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 4),
)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from(["any", "edges"]))
def test_windows_of_any_form(data: st.DataObject, rank: int, values: str) -> None:
    axes = data.draw(st.lists(_AXES, min_size=rank, max_size=rank))
    shape = (2, 3, *data.draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.standard_normal(shape).astype(np.float32)
    if values == "edges":
        x[rng.random(shape) < 0.05] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 7e4, -7e4]))
    assert_told(x, *axes)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 2, 20_000), [Axis(5, 3, 2, 4, 4)]),  # several strips
        ((1, 1, 9000), [Axis(100, 40, 41)]),  # a strip of one window
        ((1, 1, 4096), [Axis(4096)]),
        ((1, 1, 3, 9000), [Axis(2), Axis(3)]),
        ((3, 64, 56, 56), [Axis(3, 1, 1, 1, 1)] * 2),  # several threads
        ((1, 5, 224, 224), [Axis(224), Axis(224)]),
        ((2, 3, 8, 9, 10), [Axis(2, 2), Axis(3, 1, 1, 1, 2), Axis(2, 3)]),
        ((4, 6), [Axis(3), Axis(2)]),  # without images
        ((1, 1, 17, 242), [Axis(1), Axis(2)]),  # 4097 windows: one more than are looked at together
        ((1, 1, 16, 257), [Axis(1), Axis(2)]),
        ((2, 3, 40), [Axis(41, 2)]),  # one that reaches over the edge
    ],
)
def test_windows_that_are_many_or_far_apart(shape: tuple[int, ...], axes: list[Axis]) -> None:
    assert_told(np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 1, *axes)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((0, 2, 5), [Axis(2)]),
        ((2, 2, 0), [Axis(2)]),
        ((2, 2, 3), [Axis(4)]),
        ((3,), [Axis(1), Axis(1)]),
        ((2, 5000), [Axis(4097)]),
        ((2, 2), []),
    ],
)
def test_where_there_are_no_such_windows_nothing_is_told(shape: tuple[int, ...], axes: list[Axis]) -> None:
    assert tell(np.ones(shape, np.float32), *axes)[:, 3].tolist() == [0, 0]


@pytest.mark.parametrize("size", [64, 65, 1000, 4096])
@pytest.mark.parametrize("step", [1, 7])
def test_long_windows_of_equal_numbers_lose_nothing_either(size: int, step: int) -> None:
    told = tell(np.full((1, 2, 9000), -0.1, np.float32), Axis(size, step))
    expected = float(np.float32(0.1)) * size
    np.testing.assert_allclose(told[:, :2], [[-expected] * 2, [expected] * 2], rtol=3e-6)


@pytest.mark.parametrize("size", [2, 3, 16])
def test_sums_of_equal_numbers_lose_nothing_to_rounding(size: int) -> None:
    """Where each rounding goes the same way."""
    told = tell(np.full((1, 1, 40, 40), -0.1, np.float32), Axis(size), Axis(size))
    expected = float(np.float32(0.1)) * size * size
    np.testing.assert_allclose(told[:, :2], [[-expected] * 2, [expected] * 2], rtol=3e-6)

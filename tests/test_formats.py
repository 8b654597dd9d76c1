"""FP16's limits and rounding, against numpy's own float16."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer import formats


def test_the_limits_are_those_of_binary16() -> None:
    info = np.finfo(np.float16)
    assert float(info.max) == formats.FP16_MAX
    assert float(info.smallest_normal) == formats.FP16_MIN_NORMAL
    assert float(info.smallest_subnormal) == formats.FP16_MIN_SUBNORMAL


@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_and_underflow_begin_exactly_there(sign: int) -> None:
    over, under = np.float32(formats.FP16_OVERFLOW), np.float32(formats.FP16_UNDERFLOW)
    values = sign * np.array([over, np.nextafter(over, 0), under, np.nextafter(under, 1)], np.float32)
    assert formats.round_to_fp16(values).tolist() == [sign * math.inf, sign * 65504, 0, sign * 2.0**-24]


@given(st.floats(width=32))
def test_rounding_keeps_nan_and_signs(value: float) -> None:
    rounded = formats.round_to_fp16(np.float32([value]))[0]
    assert np.isnan(rounded) == math.isnan(value)
    if not math.isnan(value):
        assert np.signbit(rounded) == (math.copysign(1, value) < 0)


@pytest.mark.parametrize(
    ("max_abs", "bits"),
    [(65504, 0), (32752, 1), (131008, -1), (0, math.inf), (math.nan, math.inf), (math.inf, -math.inf)],
)
def test_headroom(max_abs: float, bits: float) -> None:
    assert formats.headroom_bits(max_abs) == bits


@given(st.lists(st.floats(2.0**-14, 32768, width=16)))
def test_steps_are_those_of_numpy(values: list[float]) -> None:
    steps = [float(np.spacing(np.float16(value))) for value in values]
    assert formats.step_at(np.array(values)).tolist() == steps
    assert [formats.step_at(value) for value in values] == steps


def test_steps_go_on_where_fp16_ends() -> None:
    assert formats.step_at(np.array([2.0**-24, 2.0**16])).tolist() == [2.0**-34, 64]

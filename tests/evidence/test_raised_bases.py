"""What rounding a computed base to FP16 makes of its powers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db, run_fp16
from hypothesis import given
from hypothesis import strategies as st
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.raised_bases import find_rounding_error
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.rules.lost_power import LARGEST_ERROR, find_lost_powers

RAISED = [node("Pow", "x t", "y")]


def _scan(folder: Path, nodes: list[onnx.NodeProto], exponent: Any, *bases: Any) -> tuple[Any, Any]:
    constants = {"t": exponent, "one": scalar(1), "half": scalar(0.5), "m1": scalar(0.159), "low": scalar(0)}
    model = make_model(nodes, {"x": None}, "y", constants)
    return scan(model, folder, *({"x": np.asarray(x, np.float32)} for x in bases))


@pytest.mark.parametrize(
    ("exponent", "bases", "is_found"),
    [
        (64.0, [[0.3, 1.0]], False),  # half a step below 1 is 2^-12, and 64 of them 1/64
        (64.1, [[0.3, 1.0]], True),
        (32.0, [[1.001]], False),  # above 1 it is twice as much
        (32.1, [[1.001]], True),
        (64.1, [[1.0000001]], True),  # a cosine of 1
        (-63.9, [[0.999, 2.0]], False),
        (-64.1, [[0.999, 2.0]], True),  # the largest power is of the least base: 0.999^-64
        (-40.0, [[1.001, 2.0]], True),
        (100.0, [1.001], True),  # 0-d
        (100.0, [[0.3], [1.001]], True),
        (100.0, [[1.001], []], True),
        (100.0, [[]], False),
        (100.0, [[0.0, 0.0]], False),
        (100.0, [[-1.001]], True),
        (2000.0, [[1.001, math.nan]], False),
        (2000.0, [[1.001, math.inf]], False),
        (2000.0, [[2.0]], False),  # an infinite power
        (2.0, [[3.1]], False),
        (math.nan, [[1.001]], False),
        (math.inf, [[0.9]], False),
    ],
)
def test_boundary(exponent: float, bases: list[Any], is_found: bool, tmp_path: Path) -> None:
    assert (
        pinned_by(find_lost_powers, *_scan(tmp_path, RAISED, scalar(exponent), *bases))
        == ["Pow_y"] * is_found
    )


def test_the_evidence(tmp_path: Path) -> None:
    (found,) = ask(find_lost_powers, *_scan(tmp_path, RAISED, scalar(360), [[1.003]], [[1.006]]))
    assert (found.node, found.tensor, found.batch, found.limit) == ("Pow_y", "x", "batch_1", 1 / 64)
    assert found.value == pytest.approx(360 * 2**-11 / 1.006, rel=1e-6)
    assert found.reason == (
        "Pow_y raises x, about 1.00600004, to up to 360: rounded to FP16, the power is off by up to 0.175 of the largest one"
    )


def test_compound_interest_is_right_with_the_pins(tmp_path: Path) -> None:
    """What is small beside the base, the rate, may be of FP16."""
    nodes = [node("Mul", "x half", "r"), node("Add", "one r", "b"), node("Pow", "b t", "y")]
    x = np.random.default_rng(0).uniform(0.002, 0.012, 64).astype(np.float32)
    graph, ranges = _scan(tmp_path, nodes, scalar(360), x)
    assert pinned_by(find_lost_powers, graph, ranges) == ["Add_b", "Pow_y"]
    assert measure_snr_db(tmp_path / "model.onnx", {"x": x}) < 25
    assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, {"b", "y"}) > 50


def test_what_a_quotient_is_made_of_stays_as_well(tmp_path: Path) -> None:
    """Of the curve of SMPTE ST 2084, by which screens show light: 27 dB, and 28 where only its last two nodes stay."""
    nodes = [
        node("Pow", "x m1", "p"),
        node("Mul", "c2 p", "a"),
        node("Add", "c1 a", "n"),
        node("Mul", "c3 p", "b"),
        node("Add", "one b", "d"),
        node("Div", "n d", "q"),
        node("Pow", "q t", "y"),
    ]
    constants = {
        name: scalar(value)
        for name, value in {
            "m1": 2610 / 16384,
            "c1": 3424 / 4096,
            "c2": 2413 / 128,
            "c3": 2392 / 128,
            "one": 1,
            "t": 2523 / 32,
        }.items()
    }
    x = np.random.default_rng(0).uniform(1e-4, 1, 4096).astype(np.float32)
    graph, ranges = scan(make_model(nodes, {"x": [4096]}, "y", constants), tmp_path, {"x": x})
    pins = pinned_by(find_lost_powers, graph, ranges)
    assert {"Mul_a", "Add_n", "Mul_b", "Add_d", "Div_q", "Pow_y"} <= {*pins}
    path = tmp_path / "model.onnx"
    assert measure_snr_db(path, {"x": x}) < measure_snr_db(path, {"x": x}, {"q", "y"}) < 30
    assert measure_snr_db(path, {"x": x}, {pin.split("_")[1] for pin in pins}) > 40


@pytest.mark.parametrize(
    ("nodes", "exponent"),
    [
        ([node("Cast", "x", "i", to=TensorProto.INT64), node("Cast", "i", "f", to=1), node("Pow", "f t", "y")], 90),
        ([node("Cast", "x", "d", to=11), node("Cast", "t", "e", to=11), node("Pow", "d e", "p"), node("Cast", "p", "y", to=1)], 90),
        ([node("Exp", "x", "e"), node("Pow", "e t", "y")], 3),
    ],
    ids=["integers", "doubles", "a cube"],
)  # fmt: skip
def test_others_are_left_alone(nodes: list[onnx.NodeProto], exponent: float, tmp_path: Path) -> None:
    assert ask(find_lost_powers, *_scan(tmp_path, nodes, scalar(exponent), [1.0, 2.0])) == []


def test_an_exponent_of_integers_counts_where_it_is_constant(tmp_path: Path) -> None:
    assert pinned_by(find_lost_powers, *_scan(tmp_path, RAISED, ints(128), [0.99])) == ["Pow_y"]
    model = make_model(RAISED, {"x": [1], "t": (TensorProto.INT64, [1])}, "y", {})
    assert ask(find_lost_powers, *scan(model, tmp_path, {"x": floats(0.99), "t": ints(128)})) == []


def test_powers_that_are_small_beside_the_largest_do_not_count(tmp_path: Path) -> None:
    """0.5^90 is off by most of itself, and by nothing of 0.5^0."""
    assert ask(find_lost_powers, *_scan(tmp_path, RAISED, floats(0, 90), [0.5, 0.5])) == []
    assert pinned_by(find_lost_powers, *_scan(tmp_path, RAISED, floats(0, 90), [0.999, 0.999])) == ["Pow_y"]


@given(
    base=st.floats(0.25, 4, width=32).filter(lambda base: not 1 - 2**-12 < base <= 1 + 2**-10),
    low=st.integers(-30, 30),
    count=st.integers(0, 60),
)
def test_no_power_is_off_by_more(base: float, low: int, count: int) -> None:
    """To first order, of a base as it is rounded."""
    exponents = np.arange(low, low + count + 1)
    powers = np.power(base, exponents)
    rounded = float(round_to_fp16(np.float64(base)))
    told = find_rounding_error(base, low, low + count, float(powers.max()))
    errors = np.abs(np.power(rounded, exponents) - powers) / powers.max()
    assert errors.max() <= told * (1 + 2 * told) + 1e-12


def test_of_a_base_of_one_all_exponents_count() -> None:
    assert find_rounding_error(1.0, -3.0, 100.0, 1.0) == pytest.approx(100 * 2**-12)
    assert find_rounding_error(1.0, 3.0, 64.0, 1.0) == LARGEST_ERROR


def test_zeros_are_no_base(tmp_path: Path) -> None:
    """cos^128 where it is bounded at 0: the largest counts, and zero is zero in FP16 too."""
    nodes = [node("Max", "x low", "b"), node("Pow", "b t", "y")]
    graph, ranges = _scan(tmp_path, nodes, scalar(128), [-0.5, 0.0, 0.99])
    assert pinned_by(find_lost_powers, graph, ranges) == ["Max_b", "Pow_y"]
    assert run_fp16(tmp_path / "model.onnx", {"x": floats(-0.5)})["y"] == 0


@pytest.mark.parametrize(
    ("product", "exponent", "is_found"),
    [("t l", 360, True), ("l t", 360, True), ("l t", 31, False), ("l l", 360, False), ("t m1", 360, False)],
)
def test_an_exp_of_a_logarithm_is_a_power(
    product: str, exponent: float, is_found: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Add", "one x", "b"),
        node("Log", "b", "l"),
        node("Mul", product, "m"),
        node("Exp", "m", "y"),
    ]
    x = np.random.default_rng(0).uniform(0.002, 0.006, 64).astype(np.float32)
    graph, ranges = _scan(tmp_path, nodes, scalar(exponent), x)
    pins = pinned_by(find_lost_powers, graph, ranges)
    assert pins == ["Add_b", "Log_l", "Mul_m", "Exp_y"] * is_found
    if is_found:
        assert measure_snr_db(tmp_path / "model.onnx", {"x": x}) < 25
        assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, {"b", "l", "m", "y"}) > 50

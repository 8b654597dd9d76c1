"""Powers of constants that FP16 rounds to others."""

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

from overflow_fixer.formats import round_to_fp16
from overflow_fixer.rules.lost_power import LARGEST_ERROR, find_errors, find_lost_powers

BASES = {"b": scalar(0.9999)}
CORRECTION = [node("Pow", "b t", "p"), node("Sub", "one p", "c"), node("Div", "x c", "y")]


def _scan(folder: Path, nodes: list[onnx.NodeProto], base: np.ndarray, *exponents: Any) -> tuple[Any, Any]:
    constants = {"b": base, "one": scalar(1), "first": ints(0)}
    model = make_model(nodes, {"t": None, "x": [4]}, "y", constants)
    x = floats(1, 2, 3, 4)
    return scan(model, folder, *({"t": np.asarray(t, np.float32), "x": x} for t in exponents))


def _pins(folder: Path, base: np.ndarray, *exponents: Any) -> list[str]:
    return pinned_by(find_lost_powers, *_scan(folder, [node("Pow", "b t", "y")], base, *exponents))


def test_a_bias_correction_is_right_with_the_pin_alone(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, CORRECTION, scalar(0.9999), [1000.0], [2000.0])
    assert pinned_by(find_lost_powers, graph, ranges) == ["Pow_p"]
    feeds = {"t": floats(1500), "x": floats(1, 2, 3, 4)}
    assert np.isinf(run_fp16(tmp_path / "model.onnx", feeds, set())["y"]).all()
    assert measure_snr_db(tmp_path / "model.onnx", feeds, {"p"}) > 50


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, CORRECTION, scalar(0.9999), [1.0], [2000.0], [30.0])
    (found,) = ask(find_lost_powers, graph, ranges)
    assert (found.node, found.tensor, found.batch, found.limit) == ("Pow_p", "b", "batch_1", 1 / 64)
    assert found.value == pytest.approx((1 - np.float64(np.float32(0.9999)) ** 2000) / 0.9999, rel=1e-6)
    assert found.reason.startswith(
        "b has 0.999899983, of which FP16 makes 1, and Pow_p raises it to up to 2000: "
    )


def _find_exponent_at(error: float) -> float:
    """How often 1.0001, which is 1 in FP16, is multiplied until that is off by the error of the power."""
    return -math.log1p(-error) / math.log(float(np.float32(1.0001)))


@pytest.mark.parametrize(
    ("base", "exponents", "is_found"),
    [
        (1.0001, [[_find_exponent_at(LARGEST_ERROR) * 0.999]], False),
        (1.0001, [[_find_exponent_at(LARGEST_ERROR) * 1.001]], True),
        (1.0001, [[1.0, -2.0]], False),
        (0.9999, [[-300.0]], True),
        (-0.9999, [[2000.0]], True),
        (0.9999, [2000.0], True),  # 0-d
        (0.9999, [[1.0], [2000.0]], True),
        (0.9999, [[1.0], []], False),
        (0.9999, [[]], False),
        (0.9999, [[2000.0, math.nan]], False),
        (0.9999, [[2000.0], [-math.inf]], False),  # an infinite power
        (0.9, [[0.0, 3000.0]], False),  # such powers are nothing beside the others
        (0.9, [[2990.0, 3000.0]], False),  # nor are they FP32 numbers
        (0.9, [[500.0, 520.0]], True),
        (0.99951, [[0.0, 1e6]], False),  # at most 2^-10 of 1, where it turns
        (0.9998, [[0.0, 1e6]], True),
        (1.0001, [[-1e6, 0.0], [0.0, 1.0]], True),
        (0.9999, [[0.0, 1e30]], True),  # FP16 has 1 where FP32 has 0
        (1.0001, [[-1e30, 0.0]], True),
        (0.5, [[100.0]], False),  # FP16 has it
        (0.0, [[100.0]], False),
        (1e-9, [[0.5]], False),  # zero in FP16
        (1e5, [[3.0]], False),  # infinite in FP16
        (math.nan, [[3.0]], False),
        (math.inf, [[-3.0]], False),
    ],
)
def test_boundary(base: float, exponents: list[Any], is_found: bool, tmp_path: Path) -> None:
    assert _pins(tmp_path, scalar(base), *exponents) == ["Pow_y"] * is_found


def test_one_base_of_many_counts(tmp_path: Path) -> None:
    assert (
        _pins(tmp_path, floats(0.5, 0.0, math.nan, 0.9999), [2000.0] * 4) == []
    )  # NaN is another rule's matter
    assert _pins(tmp_path, floats(0.5, 0.0, 0.9999, 1.0), [2000.0] * 4) == ["Pow_y"]
    assert _pins(tmp_path, floats(), np.zeros((0,))) == []


def test_what_moves_the_base_is_pinned_too(tmp_path: Path) -> None:
    nodes = [node("Identity", "b", "i"), node("Unsqueeze", "i first", "u"), node("Pow", "u t", "y")]
    graph, ranges = _scan(tmp_path, nodes, scalar(0.9999), [2000.0])
    assert pinned_by(find_lost_powers, graph, ranges) == ["Identity_i", "Unsqueeze_u", "Pow_y"]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Pow", "t b", "y")],
        [node("Mul", "b one", "m"), node("Pow", "m t", "y")],
        [node("Exp", "t", "e"), node("Pow", "e t", "y")],
    ],
    ids=["an exponent", "a base that is computed", "a base that is data"],
)
def test_others_are_left_alone(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert ask(find_lost_powers, *_scan(tmp_path, nodes, scalar(0.9999), [3.0])) == []


def test_a_constant_exponent_has_no_batch(tmp_path: Path) -> None:
    constants = {"b": scalar(0.9999), "t": scalar(3000)}
    model = make_model([node("Pow", "b t", "p"), node("Mul", "p x", "y")], {"x": [1]}, "y", constants)
    (found,) = ask(find_lost_powers, *scan(model, tmp_path, {"x": floats(1)}))
    assert (found.batch, found.action) == (None, "pin")


def test_doubles_and_integers_are_no_matter(tmp_path: Path) -> None:
    wide = make_model(
        [node("Pow", "b t", "p"), node("Cast", "p", "y", to=TensorProto.FLOAT)],
        {"t": [1]},
        "y",
        {"b": np.asarray(0.9999)},
    )
    assert ask(find_lost_powers, *scan(wide, tmp_path, {"t": floats(2000)})) == []
    whole = make_model([node("Pow", "b t", "y")], {"t": (TensorProto.INT64, [1])}, "y", BASES)
    assert ask(find_lost_powers, *scan(whole, tmp_path, {"t": ints(2000)})) == []  # integers are not measured


@given(
    base=st.floats(0.5, 2, width=32),
    low=st.integers(-300, 300),
    count=st.integers(0, 300),
)
def test_no_power_is_off_by_more(base: float, low: int, count: int) -> None:
    """And one is off by as much, but for where the worst exponent is none of the whole ones."""
    exponents = np.arange(low, low + count + 1)
    rounded = float(round_to_fp16(np.float64(base)))
    powers = np.power(base, exponents)
    largest = float(powers.max())
    errors = np.abs(np.power(rounded, exponents) - powers) / largest
    (told,) = find_errors(np.array([base]), np.array([rounded]), low, low + count, largest)
    assert errors.max() <= told * (1 + 1e-9) + 1e-12
    assert errors.max() >= 0.7 * told - 1e-12

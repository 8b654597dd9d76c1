"""Sines of angles that FP16 cannot hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.rules.lost_phase import LARGEST_ANGLE, find_lost_phases


@pytest.mark.parametrize(("largest", "is_under_30_db"), [(LARGEST_ANGLE, False), (2 * LARGEST_ANGLE, True)])
def test_where_rounding_leaves_a_sine_less_than_30_db(largest: float, is_under_30_db: bool) -> None:
    angles = np.linspace(largest / 2, largest, 200001)[:-1]
    right, found = np.sin(angles), np.sin(angles.astype(np.float16).astype(np.float64))
    snr_db = 10 * np.log10(np.square(right).sum() / np.square(right - found).sum())
    assert bool(snr_db < 30) == is_under_30_db


def _pins(folder: Path, op: str, values: list[float], **feeds: Any) -> list[str]:
    model = make_model([node("Mul", "x f", "a"), node(op, "a", "y")], {"x": [None]}, "y", {"f": scalar(0.75)})
    graph, ranges = scan(model, folder, {"x": floats(*values) / np.float32(0.75)})
    return pinned_by(find_lost_phases, graph, ranges)


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([127.9, 3.3], False),
        ([128.0, 3.3], False),
        ([128.0625, 3.3], True),
        ([-1000.1, 3.3], True),
        ([], False),
        ([math.nan, 1000.1], False),
    ],
)
@pytest.mark.parametrize("op", ["Sin", "Cos", "Tan"])
def test_boundary(op: str, values: list[float], is_found: bool, tmp_path: Path) -> None:
    assert _pins(tmp_path, op, values) == (["Mul_a", f"{op}_y"] if is_found else [])


def test_infinity_is_another_rules_matter(tmp_path: Path) -> None:
    """An angle of 0-d, infinite in every batch, is held: its sine is NaN before and after."""
    model = make_model([node("Sin", "x", "y")], {"x": []}, "y")
    graph, ranges = scan(model, tmp_path, {"x": scalar(math.inf)})
    assert ask(find_lost_phases, graph, ranges) == []


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model([node("Sin", "x", "y")], {"x": []}, "y")
    graph, ranges = scan(model, tmp_path, {"x": scalar(1)}, {"x": scalar(500.1)})
    (found,) = ask(find_lost_phases, graph, ranges)
    assert (found.node, found.tensor, found.batch) == ("Sin_y", "x", "batch_1")
    assert (found.value, found.limit) == (np.float32(500.1), 128)
    assert found.reason.startswith("Sin Sin_y takes angles of up to 500.1 radians from x")


@pytest.mark.parametrize(("turns", "is_found"), [(300.0, True), (10.0, False)])
def test_an_angle_that_mod_makes_small(turns: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x turns", "a"),
        node("Mod", "a circle", "m", fmod=1),
        node("Unsqueeze", "m first", "u"),
        node("Sin", "u", "y"),
    ]
    constants = {"turns": scalar(turns), "circle": scalar(2 * math.pi), "first": ints(0)}
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", constants), tmp_path, {"x": floats(0.123, 10.7)})
    found = ask(find_lost_phases, graph, ranges)
    assert [one.node for one in found] == ["Mul_a", "Mod_m", "Unsqueeze_u", "Sin_y"] * is_found
    assert {one.tensor for one in found} <= {"a"}


def test_an_angle_just_over_the_limit_is_told_from_it(tmp_path: Path) -> None:
    over = np.nextafter(np.float32(128), np.float32(129))
    graph, ranges = scan(make_model([node("Sin", "x", "y")], {"x": []}, "y"), tmp_path, {"x": scalar(over)})
    (found,) = ask(find_lost_phases, graph, ranges)
    assert "takes angles of up to 128.000015 radians from x; over 128," in found.reason


def test_integers_that_fp16_holds_are_angles_that_it_holds(tmp_path: Path) -> None:
    nodes = [node("Cast", "ids", "p", to=TensorProto.FLOAT), node("Sin", "p", "y")]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y")
    for largest, pins in ((2048, []), (2049, ["Cast_p", "Sin_y"])):
        (tmp_path / str(largest)).mkdir()
        graph, ranges = scan(model, tmp_path / str(largest), {"ids": ints(0, largest)})
        assert pinned_by(find_lost_phases, graph, ranges) == pins


def test_frequencies_computed_in_the_model_are_part_of_it_and_the_last_layer_is(tmp_path: Path) -> None:
    nodes = [
        node("Range", "zero eight one", "r"),
        node("Div", "r eight", "share"),
        node("Pow", "base share", "period"),
        node("Reciprocal", "period", "f"),
        node("Softmax", "x", "weights"),
        node("MatMul", "weights column", "place"),
        node("Mul", "place f", "a"),
        node("Cos", "a", "y"),
    ]
    constants = {
        "zero": scalar(0),
        "eight": scalar(8),
        "one": scalar(1),
        "base": scalar(10000),
        "column": np.full((4, 1), 900.3, np.float32),
    }
    graph, ranges = scan(
        make_model(nodes, {"x": [2, 4]}, "y", constants), tmp_path, {"x": np.ones((2, 4), np.float32)}
    )
    pins = ["Pow_period", "Reciprocal_f", "MatMul_place", "Mul_a", "Cos_y"]
    assert pinned_by(find_lost_phases, graph, ranges) == pins


def test_an_infinite_angle_among_others(tmp_path: Path) -> None:
    """What FP16 makes of 1000.1 is lost all the same; of infinity alone there is no finding."""
    assert _pins(tmp_path, "Sin", [1000.1, math.inf]) == ["Mul_a", "Sin_y"]


@pytest.mark.parametrize(("value", "is_found"), [(128.0, False), (128.0625, True), (math.nan, False)])
def test_the_boundary_of_one_number(value: float, is_found: bool, tmp_path: Path) -> None:
    model = make_model([node("Mul", "x f", "a"), node("Sin", "a", "y")], {"x": []}, "y", {"f": scalar(0.75)})
    feeds = [{"x": scalar(angle) / np.float32(0.75)} for angle in (1, value)]
    graph, ranges = scan(model, tmp_path, *feeds)
    assert pinned_by(find_lost_phases, graph, ranges) == (["Mul_a", "Sin_y"] if is_found else [])


def test_an_empty_batch_beside_another(tmp_path: Path) -> None:
    model = make_model([node("Sin", "x", "y")], {"x": [None]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(1, 500.1)})
    (found,) = ask(find_lost_phases, graph, ranges)
    assert (found.batch, found.value) == ("batch_1", np.float32(500.1))


@pytest.mark.parametrize(
    ("elem_type", "is_found"),
    [(TensorProto.FLOAT, True), (TensorProto.FLOAT16, False), (TensorProto.DOUBLE, False)],
)
def test_angles_of_other_precisions_are_not_looked_at(elem_type: int, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "narrow", to=elem_type),
        node("Add", "narrow narrow", "a"),
        node("Sin", "a", "s"),
        node("Cast", "s", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y"), tmp_path, {"x": floats(250.05, 0.3)})
    assert pinned_by(find_lost_phases, graph, ranges)[-1:] == (["Sin_s"] if is_found else [])


@pytest.mark.parametrize("opset", [9, 13])
def test_what_an_angle_is_padded_with_is_part_of_it(opset: int, tmp_path: Path) -> None:
    """1500.5 is 1500 in FP16; the integers beside it are held."""
    told = node("Pad", "p", "a", pads=[0, 2], value=1500.5) if opset < 11 else node("Pad", "p pads v", "a")
    constants = {} if opset < 11 else {"pads": ints(0, 2), "v": scalar(1500.5)}
    nodes = [node("Cast", "ids", "p", to=TensorProto.FLOAT), told, node("Cos", "a", "y")]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y", constants, opset)
    graph, ranges = scan(model, tmp_path, {"ids": ints(1000, 1001)})
    assert pinned_by(find_lost_phases, graph, ranges) == ["Pad_a", "Cos_y"]


@pytest.mark.parametrize("op", ["Mul", "ScatterElements", "ScatterND"])
def test_angles_that_a_scatter_multiplies(op: str, tmp_path: Path) -> None:
    """4001 / 4 is 1000.25, of which FP16 makes 1000."""
    places = ints(0, 1) if op == "ScatterElements" else ints(0, 1)[:, None]
    made = node("Mul", "h u", "a") if op == "Mul" else node(op, "h i u", "a", reduction="mul")
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Mul", "p half", "h"),
        made,
        node("Sin", "a", "y"),
    ]
    constants = {"half": scalar(0.5), "i": places, "u": floats(0.5, 0.5)}
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y", constants, opset=18)
    graph, ranges = scan(model, tmp_path, {"ids": ints(4001, 4003)})
    assert pinned_by(find_lost_phases, graph, ranges) == ["Cast_p", "Mul_h", f"{op}_a", "Sin_y"]


def test_coordinates_that_are_put_in_place_are_part_of_it_before_a_table_of_frequencies(
    tmp_path: Path,
) -> None:
    """points[..., 0] = points[..., 0] / width, as PyTorch exports it, and a Fourier mapping of that."""
    nodes = [
        node("Add", "x half", "a"),
        node("Div", "a width", "d"),
        node("ScatterND", "a at d", "s"),
        node("MatMul", "s f", "m"),
        node("Sin", "m", "y"),
    ]
    constants = {
        "half": scalar(0.5),
        "width": scalar(3),
        "at": ints([0], [1]),
        "f": 40 * np.eye(2, dtype=np.float32),
    }
    graph, ranges = scan(
        make_model(nodes, {"x": [2, 2]}, "y", constants), tmp_path, {"x": floats([9.25, 8.5], [7.75, 3.1])}
    )
    assert pinned_by(find_lost_phases, graph, ranges) == [
        "Add_a",
        "Div_d",
        "ScatterND_s",
        "MatMul_m",
        "Sin_y",
    ]

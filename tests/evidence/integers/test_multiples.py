"""Which tensors are of integers, or of multiples of a power of two, and which of those FP16 holds."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory_calibration import floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto, numpy_helper

from overflow_fixer.evidence.integers.multiples import EXACT_STEPS, find_multiples, step_of
from overflow_fixer.rules.lost_integer import find_lost_integers
from overflow_fixer.rules.lost_phase import find_lost_phases


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1.0, 2.0, 4096.0], 1),
        ([8.0, -24.0], 8),
        ([0.5, 3.0], 0.5),
        ([1e-45], 2.0**-149),
        ([-3.4028234663852886e38], 2.0**104),
        ([0.0, -0.0], math.inf),
        ([], math.inf),
        ([1.0, math.nan], None),
        ([1.0, -math.inf], None),
    ],
)
def test_steps(values: list[float], step: float | None) -> None:
    assert step_of(np.asarray(values, np.float32)) == step
    assert step_of(np.asarray(values, np.float32)[None]) == step


def test_the_step_of_a_large_constant_takes_little_memory() -> None:
    values = np.full((1 << 11, 1 << 11), 24, np.float32)
    values[-1, -1] = 0.375
    tracemalloc.start()
    try:
        assert step_of(values) == 0.125
        assert tracemalloc.get_traced_memory()[1] < values.nbytes
    finally:
        tracemalloc.stop()
    values[-1, -1] = math.nan
    assert step_of(values) is None


@given(st.lists(st.integers(-1000, 1000).filter(bool), min_size=1), st.integers(-20, 20))
def test_every_value_is_a_whole_number_of_steps_and_not_of_two(numbers: list[int], power: int) -> None:
    values = np.asarray(numbers, np.float64) * 2.0**power
    step = step_of(values)
    assert step is not None
    assert np.all(values % step == 0)
    assert not np.all(values % (2 * step) == 0)


@given(st.integers(-2048, 2048), st.integers(-14, 4))
def test_fp16_holds_so_many_steps(number: int, power: int) -> None:
    assert number * 2.0**power == np.float16(number * 2.0**power)
    assert EXACT_STEPS == 2048
    assert float(np.float16(2049)) == 2048


def test_what_operators_make_of_them(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Mul", "p eight", "pixels"),
        node("Add", "p half", "centres"),
        node("Sub", "pixels p", "d"),
        node("Div", "pixels four", "cells"),
        node("Div", "pixels three", "thirds"),
        node("Floor", "thirds", "whole"),
        node("Sigmoid", "p", "s"),
        node("Concat", "p pixels", "joined", axis=0),
        node("Split", "joined", "first second", axis=0),
        node("Where", "c pixels zero", "chosen"),
        node("Cast", "c", "flag", to=TensorProto.FLOAT),
        node("Range", "zero end two", "r"),
        node("ConstantOfShape", "shape", "filled", value=numpy_helper.from_array(floats(16))),
        node("Clip", "pixels - half", "clipped"),
        node("TopK", "pixels k", "top where"),
        node("Cast", "where", "places", to=TensorProto.FLOAT),
        node("Round", "p", "same"),
        node("MatMul", "pixels ones", "dot"),
    ]
    constants = {
        "eight": scalar(8),
        "half": scalar(0.5),
        "four": scalar(4),
        "three": scalar(3),
        "zero": scalar(0),
        "end": scalar(10),
        "two": scalar(2),
        "shape": ints(3),
        "k": ints(1),
        "ones": floats(1, 3, 5, 7),
    }
    inputs = {"ids": (TensorProto.INT64, [4]), "c": (TensorProto.BOOL, [4])}
    graph, ranges = scan(
        make_model(nodes, inputs, "s", constants),
        tmp_path,
        {"ids": np.arange(4), "c": np.asarray([True, False, True, True])},
    )
    known = find_multiples(graph, ranges)
    expected = {
        **dict.fromkeys("p d whole joined first second flag places same".split(), 1),
        **dict.fromkeys("pixels chosen dot top".split(), 8),
        **dict.fromkeys("centres clipped".split(), 0.5),
        **dict.fromkeys("thirds s".split()),
        "cells": 2,
        "r": 2,
        "filled": 16,
    }
    assert {name: known.step(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "is_held"),
    [
        ([2048.0, 3.0], True),
        ([2049.0, 3.0], False),
        ([2050.0], True),
        ([2050.0, 4098.0], False),
        ([4096.0, 2.0], True),
        ([0.1], False),
        ([0.5, 1024.0], True),
        ([], True),
        ([math.nan], False),
        ([math.inf], True),
    ],
)
def test_held_constants(values: list[float], is_held: bool, tmp_path: Path) -> None:
    model = make_model([node("Add", "x c", "y")], {"x": [1]}, "y", {"c": floats(*values)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1)})
    assert find_multiples(graph, ranges).is_held("c") == is_held


@pytest.mark.parametrize(
    ("values", "is_lost"),
    [
        ([0, 1, 2048], False),
        ([0, 1, 2049], True),
        ([2049, 2049], True),
        ([3000, 3000], False),
        ([0, 100001], False),
        ([7, 100001], True),
    ],
)
def test_lost_integers_that_are_fed(values: list[int], is_lost: bool, tmp_path: Path) -> None:
    """One magnitude over FP16's range is a mask, one that FP16 holds is no loss."""
    nodes = [node("Cast", "ids", "p", to=TensorProto.FLOAT), node("Neg", "p", "y")]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [None])}, "y")
    graph, ranges = scan(model, tmp_path, {"ids": np.asarray(values)})
    assert find_multiples(graph, ranges).is_lost("p") == is_lost


@pytest.mark.parametrize(
    ("values", "is_held"),
    [
        ([0, -4096], True),
        ([0, 4096, -4096], True),
        ([0, -4097], False),
        ([-1, -4096], False),
        ([0, math.nan, -4096], False),
        ([0, 0.1], False),
        (-4096, True),
        ([], True),
    ],
)
def test_one_magnitude_but_zero_is_looked_at_itself(values: Any, is_held: bool, tmp_path: Path) -> None:
    """A mask that is fed: of its one number it is known whether FP16 has it."""
    graph, ranges = scan(
        make_model([node("Neg", "x", "y")], {"x": None}, "y"), tmp_path, {"x": np.asarray(values, np.float32)}
    )
    assert find_multiples(graph, ranges).is_held("x") == is_held


def test_what_is_made_of_constants_is_looked_up(tmp_path: Path) -> None:
    """4096 by its range may be any even number; the values themselves are all held."""
    nodes = [node("Mul", "c two", "a"), node("Add", "x a", "y")]
    model = make_model(nodes, {"x": [2]}, "y", {"c": floats(1, 1025), "two": scalar(3)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 0)})
    assert not find_multiples(graph, ranges).is_held("a")
    model = make_model(nodes, {"x": [2]}, "y", {"c": floats(1, 1026), "two": scalar(3)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 0)})
    assert find_multiples(graph, ranges).is_held("a")


def test_inputs_of_integers_and_of_others(tmp_path: Path) -> None:
    nodes = [node("Sum", "x z small mixed", "y")]
    model = make_model(nodes, {name: [3] for name in ("x", "z", "small", "mixed")}, "y")
    fed = {
        "x": floats(1, 0, 3000),
        "z": floats(1, 7.5, 3000),
        "small": floats(1, 7, 20),
        "mixed": floats(1, 7.1, 20),
    }
    graph, ranges = scan(model, tmp_path, fed)
    known = find_multiples(graph, ranges)
    assert (known.is_lost("x"), known.is_lost("z")) == (True, False)
    assert (known.is_held("small"), known.is_held("mixed")) == (True, False)


def test_a_column_is_taken_for_integers_by_its_extremes_but_not_known_to_be_held(tmp_path: Path) -> None:
    nodes = [node("Gather", "x one", "c", axis=1), node("Mul", "c two", "y")]
    model = make_model(nodes, {"x": [3, 2]}, "y", {"one": ints(1), "two": scalar(2)})
    for largest, is_lost in ((20, False), (3000, True)):
        fed = np.asarray([[0.3, 1], [0.5, 2.5], [0.1, largest]], np.float32)
        graph, ranges = scan(model, tmp_path, {"x": fed})
        known = find_multiples(graph, ranges)
        assert [known.is_lost(name) for name in "cy"] == [is_lost, is_lost]
        assert [known.is_held(name) for name in "cy"] == [False, False]


def test_strings_are_no_numbers(tmp_path: Path) -> None:
    nodes = [
        node("Gather", "words i", "word"),
        node("Equal", "word word", "same"),
        node("Cast", "same", "y", to=TensorProto.FLOAT),
    ]
    constants = {"words": np.asarray(["a", "b"], object)}
    model = make_model(nodes, {"i": (TensorProto.INT64, [])}, "y", constants, opset=19)
    graph, ranges = scan(model, tmp_path, {"i": np.asarray(1)})
    known = find_multiples(graph, ranges)
    assert (known.step("words"), known.step("y")) == (None, 1)


@pytest.mark.parametrize(("divisors", "is_found"), [((4, 4), False), ((3, 4), True), ((4, 3), True)])
def test_a_quotient_by_what_varies_is_a_multiple_of_nothing(
    divisors: tuple[float, float], is_found: bool, tmp_path: Path
) -> None:
    """FP16 holds quarters up to 512, and no thirds."""
    ids = ints(1000, 1000)
    angles = ids / np.asarray(divisors)
    assert bool((angles.astype(np.float16) != angles).any()) == is_found
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Div", "p d", "a"),
        node("Sin", "a", "y"),
    ]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2]), "d": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"ids": ids, "d": floats(*divisors)})
    assert pinned_by(find_lost_phases, graph, ranges) == (["Div_a", "Sin_y"] if is_found else [])


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
@pytest.mark.parametrize(("stride", "is_lost"), [(8, False), (1, True)])
def test_what_is_whole_before_it_is_rounded_keeps_its_step(
    stride: int, is_lost: bool, op: str, tmp_path: Path
) -> None:
    ids = ints(3, 8191 // stride)
    pixels = ids * stride
    assert bool((pixels.astype(np.float16) != pixels).any()) == is_lost
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Mul", "p stride", "a"),
        node(op, "a", "y"),
    ]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y", {"stride": scalar(stride)})
    graph, ranges = scan(model, tmp_path, {"ids": ids})
    assert bool(pinned_by(find_lost_integers, graph, ranges)) == is_lost


def test_zeros_by_data_are_held(tmp_path: Path) -> None:
    """A part of an angle that was nothing but zeros needs no FP32."""
    nodes = [
        node("Mul", "x zero", "none"),
        node("Mul", "x f", "phase"),
        node("Add", "none phase", "a"),
        node("Sin", "a", "y"),
    ]
    model = make_model(nodes, {"x": [2]}, "y", {"zero": scalar(0), "f": scalar(1000.1)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.3, 0.7)})
    assert pinned_by(find_lost_phases, graph, ranges) == ["Mul_phase", "Add_a", "Sin_y"]


def _step(folder: Path, nodes: list[onnx.NodeProto], opset: int, ids: Any, **constants: Any) -> float | None:
    """The step of what nodes make of p, which is four times the ids; none that its values are no multiples of."""
    fours = [node("Cast", "ids", "whole", to=TensorProto.FLOAT), node("Mul", "whole four", "p")]
    constants["four"] = scalar(4)
    model = make_model([*fours, *nodes], {"ids": (TensorProto.INT64, None)}, "y", constants, opset)
    graph, ranges = scan(model, folder, {"ids": np.asarray(ids)})
    step = find_multiples(graph, ranges).step("y")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (values,) = session.run(None, {"ids": np.asarray(ids)})
    assert step is None or step == math.inf or not np.any(values.astype(np.float64) % step)
    return step


@pytest.mark.parametrize(("op", "extra"), [("Cast", {"to": TensorProto.BOOL}), ("CastLike", {})])
def test_a_flag_is_one_or_zero_whatever_it_is_made_of(op: str, extra: dict[str, Any], tmp_path: Path) -> None:
    nodes = [
        node(op, "p flags" if op == "CastLike" else "p", "is_there", **extra),
        node("CastLike", "is_there p", "ones"),
        node("CumSum", "ones axis", "y"),
    ]
    constants = {"flags": np.asarray([True]), "axis": np.asarray(0)}
    assert _step(tmp_path, nodes, 17, np.ones(5, np.int64), **constants) == 1


def test_a_narrow_float_stops_at_its_largest_number(tmp_path: Path) -> None:
    """1024 and 3072 are 448 in FLOAT8E4M3FN."""
    nodes = [
        node("Mul", "p k", "many"),
        node("Cast", "many", "narrow", to=TensorProto.FLOAT8E4M3FN),
        node("Cast", "narrow", "y", to=TensorProto.FLOAT),
    ]
    assert _step(tmp_path, nodes, 19, [1, 3], k=scalar(1024)) is None


@pytest.mark.parametrize(
    ("opset", "mode", "value", "step"),
    [
        (10, "constant", 1500.5, 0.5),
        (10, "constant", None, 4),
        (10, "edge", 1500.5, 4),
        (10, "constant", math.nan, None),
        (13, "constant", 1500.5, 0.5),
        (13, "constant", None, 4),
        (13, "reflect", 1500.5, 4),
    ],
)
def test_what_pads_is_an_attribute_or_an_input(
    opset: int, mode: str, value: float | None, step: float | None, tmp_path: Path
) -> None:
    if opset < 11:
        told = {} if value is None else {"value": value}
        padded, constants = node("Pad", "p", "y", pads=[0, 1], mode=mode, **told), {}
    else:
        constants = {"pads": ints(0, 1), **({} if value is None else {"v": scalar(value)})}
        padded = node("Pad", "p pads" if value is None else "p pads v", "y", mode=mode)
    assert _step(tmp_path, [padded], opset, [1, 2, 5], **constants) == step


@pytest.mark.parametrize(
    ("opset", "bounds", "step"),
    [
        (10, {"min": 6.0}, 2),
        (10, {"min": 6.0, "max": 12.5}, 0.5),
        (10, {}, 4),
        (10, {"max": math.inf}, None),
        (13, {"min": 6.0}, 2),
        (13, {"max": 12.5}, 0.5),
        (13, {}, 4),
    ],
)
def test_bounds_are_attributes_or_inputs(
    opset: int, bounds: dict[str, float], step: float | None, tmp_path: Path
) -> None:
    if opset < 11:
        clipped, constants = node("Clip", "p", "y", **bounds), {}
    else:
        names = " ".join(name if name in bounds else "-" for name in ("min", "max"))
        clipped = node("Clip", f"p {names}", "y")
        constants = {name: scalar(value) for name, value in bounds.items()}
    assert _step(tmp_path, [clipped], opset, [1, 2, 5], **constants) == step


@pytest.mark.parametrize(
    ("op", "opset", "reduction", "update", "step"),
    [
        ("Scatter", 9, None, 6, 2),
        ("ScatterElements", 13, None, 6, 2),
        ("ScatterND", 13, None, 6, 2),
        ("ScatterElements", 18, "none", 0.5, 0.5),
        ("ScatterND", 18, "add", 6, 2),
        ("ScatterElements", 18, "max", 6, 2),
        ("ScatterND", 18, "min", 6, 2),
        ("ScatterElements", 16, "mul", 6, 4),
        ("ScatterND", 18, "mul", 6, 4),
        ("ScatterElements", 18, "mul", 0.5, None),
        ("ScatterND", 16, "mul", 0.5, None),
        ("ScatterElements", 18, "mul", math.inf, None),
    ],
)
def test_what_a_scatter_makes_of_its_updates(
    op: str, opset: int, reduction: str | None, update: float, step: float | None, tmp_path: Path
) -> None:
    """One place is met twice, one never."""
    places = ints(0, 0, 1)[:, None] if op == "ScatterND" else ints(0, 0, 1)
    extra = {} if reduction is None else {"reduction": reduction}
    constants = {"i": places, "u": floats(update, update, update)}
    assert _step(tmp_path, [node(op, "p i u", "y", **extra)], opset, [1, 3, 5], **constants) == step

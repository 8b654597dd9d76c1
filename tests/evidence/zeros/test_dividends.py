"""What is divided by a value that FP16 rounds to zero, as the rule vanishing_divisor tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.rules.vanishing_divisor import find_vanishing_divisors

CONSTANTS = {
    "one": scalar(1),
    "ten": scalar(10),
    "hundred": scalar(100),
    "thousand": scalar(1e3),
    "thousandth": scalar(1e-3),
}
GRADIENT = np.float32(1e-6) * np.random.default_rng(7).normal(size=(4, 16)).astype(np.float32)
NORMALISED = [
    node("Sqrt", "v", "r"),
    node("Add", "r guard", "d"),
    node("Mul", "x one", "n"),
    node("Div", "n d", "y"),
]


def _normalise(folder: Path, scale: float, nodes: list[onnx.NodeProto]) -> tuple[Any, Any]:
    """A step of Adam: rows of gradients, over the root of their mean square. The first row is 1,000 times as large."""
    inputs = {"x": [4, 16], "v": [4, 1]}
    constants = {**CONSTANTS, "guard": scalar(1e-12)}
    return scan(make_model(nodes, inputs, "y", constants), folder, _feed(scale))


def _feed(scale: float) -> dict[str, np.ndarray]:
    x = np.float32(scale) * GRADIENT * np.float32([[1000], [1], [1], [1]])
    return {"x": x, "v": np.mean(x**2, axis=1, keepdims=True)}


@pytest.mark.parametrize(("scale", "is_found"), [(1, True), (30, False)])
def test_what_is_divided_by_as_little_stays_too(scale: float, is_found: bool, tmp_path: Path) -> None:
    """Of x up to 2e-6 FP16 has steps of a 30th of it; of v, 1e-12, it makes zero. 30 times that v is zero too, and x has digits."""
    graph, ranges = _normalise(tmp_path, scale, NORMALISED)
    found = {one.node: one for one in ask(find_vanishing_divisors, graph, ranges)}
    assert found.keys() == {"Sqrt_r", "Add_d", "Div_y"} | ({"Mul_n"} if is_found else set())
    if is_found:
        most = ranges.by_tensor["y"].max_abs * ranges.by_tensor["d"].min_nonzero_abs
        said = f"Div Div_y makes less of what it divides, which is {most:.3g} at most there"
        assert found["Mul_n"].reason.endswith(said)


def test_what_is_divided_is_traced_back_through_what_fp16_holds_badly(tmp_path: Path) -> None:
    nodes = [*NORMALISED[:2], node("Mul", "x one", "m"), node("Neg", "m", "n"), NORMALISED[3]]
    graph, ranges = _normalise(tmp_path, 1, nodes)
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Sqrt_r", "Add_d", "Mul_m", "Neg_n", "Div_y"]


def test_what_is_fed_or_constant_is_not_among_it(tmp_path: Path) -> None:
    """Nor is what divides itself."""
    constant = node("Constant", "", "k", value_float=1e-6)
    for dividend, second in (("x", "d"), ("thousandth", "d"), ("k", "d"), ("d", "d")):
        nodes = [constant, *NORMALISED[:2], node("Div", f"{dividend} {second}", "q"), node("Add", "q x", "y")]
        graph, ranges = _normalise(tmp_path, 1, nodes)
        assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Sqrt_r", "Add_d", "Div_q"]
        found = ask(find_vanishing_divisors, graph, ranges)
        assert not [one for one in found if "less of what it divides" in one.reason]


SCALED_UP = {
    "by a thousand": (0.01, [node("Mul", "x one", "k"), node("Mul", "k thousand", "n")]),
    "and down again": (
        1.0,
        [node("Mul", "x one", "k"), node("Mul", "k ten", "m"), node("Div", "m ten", "n")],
    ),
}


@pytest.mark.parametrize("form", SCALED_UP)
def test_what_is_scaled_up_before_it_is_divided_stays_too(form: str, tmp_path: Path) -> None:
    """Of 2e-5 FP16 has enough digits; of the k that this is made of, up to 2e-6 or 2e-8, few or none."""
    scale, made = SCALED_UP[form]
    graph, ranges = _normalise(tmp_path, scale, [*NORMALISED[:2], *made, NORMALISED[3]])
    pinned = pinned_by(find_vanishing_divisors, graph, ranges)
    assert pinned == [one.label for one in graph.nodes]
    fp32 = {name for one in graph.nodes for name in one.writes}
    right = run_fp32(tmp_path / "model.onnx", _feed(scale))["y"]
    for names, least, most in ((fp32 - {"k", "m", "n"}, 0.01, 1.0), (fp32, 0, 1e-6)):
        found = run_fp16(tmp_path / "model.onnx", _feed(scale), names)["y"]
        assert least <= float(np.max(np.abs(found - right)) / np.max(np.abs(right))) <= most


def test_what_is_scaled_up_on_two_ways_stays_on_both(tmp_path: Path) -> None:
    made = [
        node("Abs", "x", "k"),
        node("Mul", "k ten", "l"),
        node("Mul", "k ten", "m"),
        node("Concat", "l m", "n", axis=1),
    ]
    graph, ranges = _normalise(tmp_path, 1, [*NORMALISED[:2], *made, NORMALISED[3]])
    pinned = pinned_by(find_vanishing_divisors, graph, ranges)
    assert pinned == [one.label for one in graph.nodes]


def test_of_what_is_divided_the_normal_numbers_end_the_walk(tmp_path: Path) -> None:
    made = [node("Mul", "x one", "k"), node("Mul", "k hundred", "m"), node("Div", "m hundred", "n")]
    graph, ranges = _normalise(tmp_path, 1, [*NORMALISED[:2], *made, NORMALISED[3]])
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Sqrt_r", "Add_d", "Div_n", "Div_y"]


def test_what_is_divided_and_large_enough_is_left(tmp_path: Path) -> None:
    made = [node("Mul", "x one", "k"), node("Mul", "k ten", "n")]
    graph, ranges = _normalise(tmp_path, 2, [*NORMALISED[:2], *made, NORMALISED[3]])
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Sqrt_r", "Add_d", "Div_y"]


def test_where_zeros_are_divided_by_the_smallest_the_larger_are_left(tmp_path: Path) -> None:
    """Of an output the smallest but zero is taken."""
    nodes = [*NORMALISED[:2], node("Mul", "x one", "n"), NORMALISED[3]]
    constants = {**CONSTANTS, "guard": scalar(1e-12)}
    model = make_model(nodes, {"x": [2, 2], "v": [2, 1]}, "y n", constants)
    feeds = {"x": floats([1, 2], [0, 0]), "v": floats([1], [1e-14])}
    graph, ranges = scan(model, tmp_path, feeds)
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Sqrt_r", "Add_d", "Div_y"]


@pytest.mark.parametrize("outputs", ["y", "y n"])
@pytest.mark.parametrize(
    "guarded",
    [[node("Add", "c guard", "d")], [node("Add", "c less", "e"), node("Max", "e guard", "d")]],
    ids=["once", "twice"],
)
def test_zeros_that_are_divided_are_left(guarded: list[onnx.NodeProto], outputs: str, tmp_path: Path) -> None:
    """A masked mean of a row that is masked as a whole: the guard is all of the divisor.

    Of an output the smallest is taken, and is no smaller either.
    """
    nodes = [
        node("Mul", "x m", "p"),
        node("ReduceSum", "p one_axis", "n", keepdims=1),
        node("ReduceSum", "m one_axis", "c", keepdims=1),
        *guarded,
        node("Div", "n d", "y"),
    ]
    constants = {"guard": scalar(1e-9), "less": scalar(1e-12), "one_axis": ints(1)}
    model = make_model(nodes, {"x": [2, 4], "m": [2, 4]}, outputs, CONSTANTS | constants)
    x, m = np.abs(np.random.default_rng(8).normal(size=(2, 2, 4)).astype(np.float32))
    m = np.where([[True], [False]], 1, 0 * m).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": x, "m": m})
    assert "ReduceSum_n" not in pinned_by(find_vanishing_divisors, graph, ranges)


WINDOW = [
    node("Relu", "x", "r"),
    node("ReduceMin", "r", "least", axes=[1]),
    node("ReduceMax", "r", "most", axes=[1]),
    node("Sub", "most least", "d"),
]


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([node("Sub", "r least", "a"), node("Div", "a d", "y")], True),
        (
            [node("Sub", "r least", "a"), node("Transpose", "a", "t", perm=[0, 1]), node("Div", "t d", "y")],
            True,
        ),
        ([node("Sub", "r one", "a"), node("Div", "a d", "y")], False),
        ([node("Sub", "tiny one", "a"), node("Div", "a d", "y")], False),
    ],
)
def test_a_difference_that_is_divided_by_one_as_small_stays_too(
    nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path
) -> None:
    """At 80 FP16's steps are 1/16. Of the quiet row all is 0.03 at most; of what is divided by that it is told by the quotient."""
    x = np.random.default_rng(9).uniform(70, 90, (4, 16)).astype(np.float32)
    x[1] = np.linspace(80.01, 80.04, 16)
    model = make_model([*WINDOW, node("Mul", "x thousandth", "tiny"), *nodes], {"x": [4, 16]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": x})
    found = set(pinned_by(find_vanishing_divisors, graph, ranges))
    assert found == {one.name for one in WINDOW} | ({"Sub_a"} if is_found else set())
    if is_found:
        kept = {name for one in graph.nodes if one.label in found for name in one.writes}
        error = (
            run_fp16(tmp_path / "model.onnx", {"x": x}, kept)["y"]
            - run_fp32(tmp_path / "model.onnx", {"x": x})["y"]
        )
        assert np.abs(error).max() < 2e-3


OF_THE_DIVISOR = {
    "sin q / q": [node("Sin", "q", "a")],
    "tanh (q / 10) / q": [node("Div", "q ten", "b"), node("Tanh", "b", "a")],
}


@pytest.mark.parametrize("form", OF_THE_DIVISOR)
@pytest.mark.parametrize("guard", ["Clip", "Max", "Add"])
def test_what_is_made_of_the_divisor_and_divided_by_it_stays_too(
    form: str, guard: str, tmp_path: Path
) -> None:
    """Where a guard is all of the divisor, the quotient is no less than elsewhere."""
    nodes = [
        node("Abs", "x", "r"),
        node(guard, "r guard", "q"),
        *OF_THE_DIVISOR[form],
        node("Div", "a q", "y"),
    ]
    model = make_model(nodes, {"x": [4]}, "y", CONSTANTS | {"guard": scalar(1e-10)})
    feeds = {"x": floats(0, 0, 1, -2)}
    graph, ranges = scan(model, tmp_path, feeds)
    pinned = {*pinned_by(find_vanishing_divisors, graph, ranges)}
    assert {one.output[0] for one in OF_THE_DIVISOR[form]} <= {
        name for one in graph.nodes if one.label in pinned for name in one.writes
    }
    fp32 = {name for one in graph.nodes for name in one.writes} - {"r"}
    right = run_fp32(tmp_path / "model.onnx", feeds)["y"]
    np.testing.assert_allclose(run_fp16(tmp_path / "model.onnx", feeds, fp32)["y"], right, rtol=1e-3)

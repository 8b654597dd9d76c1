"""Values that FP16 rounds to zero, where they are divided by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from tensor_parts import PART_CONSTANTS, take_part
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.evidence.zeros.divisors import FEW_STEPS
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.nodes import Node
from overflow_fixer.rules.vanishing_divisor import find_vanishing_divisors

NEXT = float(np.nextafter(np.float32(FP16_UNDERFLOW), np.float32(1)))
CONSTANTS = {
    "one": scalar(1),
    "minus": scalar(-1),
    "two": scalar(2),
    "half": scalar(0.5),
    "axes": ints(0),
} | {
    "zero": scalar(0),
}
SCALES = {
    "ten": scalar(10),
    "thousand": scalar(1e3),
    "thousandth": scalar(1e-3),
    "both": floats(1e3, 2e3),
    "eye": np.eye(2, dtype=np.float32),
    "matrix": 1e3 * np.eye(2, dtype=np.float32),
}


def _pins(folder: Path, nodes: list[Any], values: Any) -> list[str]:
    model = make_model(nodes, {"x": None}, "y", CONSTANTS | SCALES)
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return pinned_by(find_vanishing_divisors, graph, ranges)


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([1, FP16_UNDERFLOW], True),
        ([1, -FP16_UNDERFLOW], True),
        ([1, NEXT], True),
        ([1, FEW_STEPS / 1.001], True),
        ([1, FEW_STEPS], False),
        ([1, 1e-45], True),
        ([1, 0], False),
        ([1e-9, math.nan], True),
        ([1e-9, math.inf], True),
        (1e-9, True),
        ([], False),
    ],
)
def test_boundary(values: Any, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Div", "one a", "y")]
    assert _pins(tmp_path, nodes, values) == (["Mul_a", "Div_y"] if is_found else [])


def test_what_is_a_few_steps_is_divided_by_as_well(tmp_path: Path) -> None:
    """Shares of squares of 3e-4 and less, as of a diffusion tensor's anisotropy: of their sum FP16 has seven steps at least."""
    nodes = [
        node("Mul", "x x", "q"),
        node("ReduceSum", "q last", "s", keepdims=1),
        node("Max", "s tiny", "m"),
        node("Div", "q m", "y"),
    ]
    constants = {"last": ints(-1), "tiny": scalar(1e-12)}
    x = np.float32([[2e-4, 3e-4, 5e-4], [3e-4, 5e-4, 1e-4], [6e-4, 2e-4, 3e-4], [3e-4, 3e-4, 3e-4]])
    graph, ranges = scan(make_model(nodes, {"x": [4, 3]}, "y", constants), tmp_path, {"x": x})
    assert FP16_UNDERFLOW < ranges.by_tensor["s"].min_nonzero_abs < FEW_STEPS
    found = ask(find_vanishing_divisors, graph, ranges)
    assert {one.node for one in found} == {"Mul_q", "ReduceSum_s", "Max_m", "Div_y"}
    told = "s is as small as 2.7e-07, which is 4.5 of FP16's steps, and Div Div_y makes another number of it"
    assert any(one.reason.startswith(told) for one in found)
    assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, set()) < 25
    assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, {"q", "s", "m", "y"}) > 60


@pytest.mark.parametrize(
    ("nodes", "least", "is_found"),
    [
        ([node("Add", "a guard", "s")], 0, False),
        ([node("Max", "a guard", "b"), node("Neg", "b", "s")], 0, False),
        ([node("Add", "a guard", "s")], 2e-7, True),
    ],
)
def test_a_guard_of_a_few_steps_is_all_beside_zeros(
    nodes: list[Any], least: float, is_found: bool, tmp_path: Path
) -> None:
    """As of rows that are masked as a whole: FP16 holds it."""
    constants = {"guard": scalar(1e-7), "one": scalar(1)}
    nodes = [node("Mul", "x one", "a"), *nodes, node("Div", "one s", "y")]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", constants), tmp_path, {"x": floats(least, 1)})
    assert bool(pinned_by(find_vanishing_divisors, graph, ranges)) is is_found


@pytest.mark.parametrize(
    ("op", "inputs", "is_found"),
    [
        ("Div", "one a", True),
        ("Div", "a one", False),
        ("Reciprocal", "a", True),
        ("Log", "a", True),
        ("Pow", "a minus", True),
        ("Pow", "a two", False),
        ("Sqrt", "a", False),
        ("Mul", "a one", False),
    ],
)
def test_what_divides(op: str, inputs: str, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x one", "a"),
        node(op, inputs, "b"),
        node("Sqrt", "a", "c"),
        node("Sum", "b c", "y"),
    ]
    assert _pins(tmp_path, nodes, [1, 1e-9]) == (["Mul_a", f"{op}_b"] if is_found else [])


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model([node("Abs", "x", "a"), node("Log", "a", "y")], {"x": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)}, {"x": floats(1, 1e-9)})
    first, second = ask(find_vanishing_divisors, graph, ranges)
    assert (first.node, second.node, second.tensor, second.batch) == ("Abs_a", "Log_y", "a", None)
    assert (second.value, second.limit, second.severity) == (np.float32(1e-9), FP16_UNDERFLOW, "high")
    assert second.reason == (
        "a is as small as 1e-09, which is zero in FP16, and Log Log_y makes infinity or NaN of it"
    )


@pytest.mark.parametrize(
    "reader",
    [
        node("Log", "x", "y"),
        node("Div", "one x", "y"),
        node("Reciprocal", "x", "y"),
        node("Pow", "x minus", "y"),
    ],
    ids=lambda reader: reader.op_type,
)
def test_an_input_that_is_divided_by(reader: onnx.NodeProto, tmp_path: Path) -> None:
    assert _pins(tmp_path, [reader], [1, 1.2e-8]) == [f"{reader.op_type}_y"]
    (tmp_path / "none").mkdir()
    assert _pins(tmp_path / "none", [reader], [1, 1e-3]) == []


@pytest.mark.parametrize(
    ("scaling", "is_found"),
    [
        (node("Div", "a thousandth", "b"), True),
        (node("Mul", "a thousand", "b"), True),
        (node("Mul", "thousand a", "b"), True),
        (node("Div", "a thousand", "b"), True),
        (node("Mul", "a both", "b"), False),
        (node("Add", "a half", "b"), False),
        (node("MatMul", "a matrix", "b"), False),
    ],
    ids=lambda given: f"{given.op_type} {given.input[1]}" if isinstance(given, onnx.NodeProto) else "",
)
def test_what_is_scaled_before_it_is_divided_by(
    scaling: onnx.NodeProto, is_found: bool, tmp_path: Path
) -> None:
    """Behind a layer, where the smallest of what is scaled is not taken, it follows from what the scaling gives."""
    layer = [node("MatMul", "x eye", "m"), node("Neg", "m", "a")]
    pins = _pins(tmp_path, [*layer, scaling, node("Reciprocal", "b", "y")], [[1, -2e-9]])
    assert ("Neg_a" in pins) == is_found
    assert is_found <= ("Reciprocal_y" in pins)
    (tmp_path / "large").mkdir()
    pins = _pins(tmp_path / "large", [*layer, scaling, node("Reciprocal", "b", "y")], [[1, -1e-3]])
    assert pins == []


def test_a_root_hides_it_and_an_epsilon_that_stays_saves_it(tmp_path: Path) -> None:
    """sqrt(1e-12) is 1e-6, which FP16 holds; but it is the root of 0."""
    start = [node("Mul", "x x", "q"), node("Abs", "q", "a")]
    for name, nodes, pins in (
        ("root", [node("Sqrt", "a", "r"), node("Div", "x r", "y")], ["Mul_q", "Abs_a", "Sqrt_r", "Div_y"]),
        ("power", [node("Pow", "a zero", "r"), node("Div", "x r", "y")], []),
        ("epsilon", [node("Add", "a half", "e"), node("Sqrt", "e", "r"), node("Div", "x r", "y")], []),
        ("sum", [node("Sqrt", "a", "r"), node("Add", "r half", "e"), node("Div", "x e", "y")], []),
    ):
        (tmp_path / name).mkdir()
        assert _pins(tmp_path / name, [*start, *nodes], [1, 1e-6]) == pins, name


@pytest.mark.parametrize(
    "op",
    """Sqrt Abs Neg Relu LeakyRelu PRelu Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf ReduceMin
    ReduceProd Mul Pow""".split(),
)
def test_a_function_makes_zero_of_zero(op: str, tmp_path: Path) -> None:
    """Of a small value, and of a small difference."""
    second = {"PRelu": "half", "Mul": "half", "Pow": "half"}.get(op, "")
    behind = [node(op, f"a {second}", "b"), node("Div", "one b", "y")]
    pins = _pins(tmp_path, [node("Mul", "x one", "a"), *behind], [0.5, 1e-9])
    assert pins == ["Mul_a", f"{op}_b", "Div_y"]
    pins = _pins(tmp_path, [node("Sigmoid", "x", "p"), node("Sub", "one p", "a"), *behind], [1, 10])
    assert pins == ["Sigmoid_p", "Sub_a", f"{op}_b", "Div_y"]


def test_what_a_quotient_is_read_by_is_not_among_it(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Div", "one a", "b"), node("Div", "one b", "y")]
    assert _pins(tmp_path, nodes, [1, 1e-9]) == ["Mul_a", "Div_b"]


def test_terms_of_a_sum_that_vanish_on_average(tmp_path: Path) -> None:
    """1000 squares of 1e-9 make 1e-6, which FP16 holds; it has 1000 zeros to add."""
    nodes = [
        node("Mul", "x x", "q"),
        node("ReduceSum", "q axes", "s"),
        node("Sqrt", "s", "n"),
        node("Div", "x n", "y"),
    ]
    model = make_model(nodes, {"x": [None]}, "y", CONSTANTS)
    value = np.float32(math.sqrt(1e-9))
    graph, ranges = scan(model, tmp_path, {"x": np.full(1000, value)}, {"x": np.full(1000, value)})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert [finding.node for finding in found] == ["Mul_q", "ReduceSum_s", "Sqrt_n", "Div_y"]
    assert {finding.severity for finding in found} == {"low"}
    assert found[0].value == pytest.approx(1e-9, rel=1e-5)
    assert "a sum of squares of 1e-09 on average, which are zero in FP16" in found[0].reason
    model = make_model(nodes, {"x": [None]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": np.full(1000, np.float32(2e-4))})
    assert ask(find_vanishing_divisors, graph, ranges) == []


NORMS: dict[str, tuple[list[Any], list[str]]] = {
    "LpNormalization": ([node("LpNormalization", "x", "y", axis=1, p=2)], ["LpNormalization_y"]),
    "LpNormalization, p = 1": ([node("LpNormalization", "x", "y", axis=1, p=1)], ["LpNormalization_y"]),
    "ReduceL2": (
        [node("ReduceL2", "x last", "a"), node("Div", "x a", "y")],
        ["ReduceL2_a", "Div_y"],
    ),
    "ReduceL2, guarded in vain": (
        [node("ReduceL2", "x last", "a"), node("Clip", "a tiny", "b"), node("Div", "x b", "y")],
        ["ReduceL2_a", "Clip_b", "Div_y"],
    ),
    "ReduceL2, guarded": (
        [node("ReduceL2", "x last", "a"), node("Max", "a held", "b"), node("Div", "x b", "y")],
        [],
    ),
    "ReduceL2, not divided by": ([node("ReduceL2", "x last", "y")], []),
    "GlobalLpPool": (
        [node("Unsqueeze", "x last", "r"), node("GlobalLpPool", "r", "a"), node("Reciprocal", "a", "y")],
        ["GlobalLpPool_a", "Reciprocal_y"],
    ),
}


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("share", "severity"), [(0.2, "high"), (0.9, "low"), (1.1, None)])
def test_a_norm_of_what_fp16_makes_zero_of(
    name: str, share: float, severity: str | None, probes: Probes, tmp_path: Path
) -> None:
    """A sum of four terms of which each is that share of 2^-25, beside a row of zeros, of which FP32 makes zero too."""
    nodes, pinned = NORMS[name]
    least = share * FP16_UNDERFLOW
    x = np.zeros((3, 4), np.float32)
    x[0], x[1] = 1, least if "p = 1" in name else np.sqrt(least)
    if "in vain" in name:  # of zeros FP32 makes what the guard is, and FP16 NaN
        x[2] = 1
    model = make_model(
        nodes, {"x": [3, 4]}, "y", {"last": ints(1), "tiny": scalar(1e-12), "held": scalar(1e-4)}, 18
    )
    with use_probes(probes):
        graph, ranges = scan(model, tmp_path, {"x": x}, {"x": 2 * x})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert [one.node for one in found] == (pinned if severity else [])
    for one in found:
        told = least if severity == "low" else 4 * least
        assert (one.value, one.severity) == (pytest.approx(told, rel=1e-5), severity)
        assert f"is as small as {4 * least:.3g}" in one.reason


def test_a_difference_is_pinned_and_what_it_is_made_of_is_not(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Sub", "r one", "a"), node("Mul", "a small", "b")]
    model = make_model(
        [*nodes, node("Div", "x b", "y")], {"x": [2]}, "y", {**CONSTANTS, "small": scalar(1e-6)}
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(2, 1.01)})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Mul_b", "Div_y"]


@pytest.mark.parametrize("number", [0.25, 0.5, 1])
def test_what_cancels_is_kept_however_small_the_difference(number: float, tmp_path: Path) -> None:
    """The difference may be under 2^-25 as well, and its term is rounded to the number before."""
    term = np.nextafter(np.float32(number), np.float32(0))
    nodes = [node("Mul", "x two", "p"), node("Sub", "c p", "d"), node("Log", "d", "y")]
    model = make_model(nodes, {"x": None}, "y", {"two": scalar(2), "c": scalar(number)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, number / 4, term / 2)})
    assert np.float16(term) == number
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Mul_p", "Sub_d", "Log_y"]


def test_terms_of_both_signs_and_constants_are_left(tmp_path: Path) -> None:
    """Of larger terms the sum would be a difference; a constant is typed by what reads it."""
    nodes = [
        node("Constant", "", "eps", value_float=1e-12),
        node("Mul", "x x", "q"),
        node("Mul", "z one", "signed"),
        node("Sum", "q eps signed", "a"),
        node("Div", "one a", "y"),
    ]
    model = make_model(nodes, {"x": [3], "z": [3]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(3e-5, 1, 2), "z": floats(0, 0.5, -0.5)})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Mul_q", "Sum_a", "Div_y"]


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(
    ("low", "is_found"), [(None, True), (1e-12, True), (FP16_UNDERFLOW, True), (1e-3, False)]
)
def test_a_clip_guards_where_fp16_holds_its_bound(
    low: float | None, is_found: bool, opset: int, tmp_path: Path
) -> None:
    if opset == 10:
        clip = node("Clip", "a", "b", max=1.0, **({} if low is None else {"min": low}))
    else:
        clip = node("Clip", f"a {'-' if low is None else 'low'} one", "b")
    nodes = [node("Mul", "x one", "a"), clip, node("Div", "one b", "y")]
    model = make_model(nodes, {"x": [2]}, "y", {**CONSTANTS, "low": scalar(low or 0)}, opset)
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 1e-9)})
    pins = pinned_by(find_vanishing_divisors, graph, ranges)
    assert pins == (["Mul_a", "Clip_b", "Div_y"] if is_found else [])


@pytest.mark.parametrize(
    ("exponent", "values"), [(2.0, [1.58e-4, 1.58e-4, 1.58e-4, 1.58e-4]), (3.0, [0.1, -0.1, 4.6e-3, 0])]
)
def test_a_sum_of_powers_is_of_terms_as_small_where_they_are_squares(
    exponent: float, values: list[float], tmp_path: Path
) -> None:
    """Cubes cancel: their sum is as small, and a few steps of FP16, of terms that FP16 holds."""
    terms = np.asarray(values) ** exponent
    are_lost = not terms.astype(np.float16).any()
    assert FP16_UNDERFLOW < terms.sum() < 4 * FP16_UNDERFLOW
    nodes = [node("Pow", "x e", "p"), node("ReduceSum", "p axes", "s"), node("Div", "x s", "y")]
    model = make_model(nodes, {"x": [4]}, "y", {**CONSTANTS, "e": scalar(exponent)})
    graph, ranges = scan(model, tmp_path, {"x": floats(*values)})
    pins = pinned_by(find_vanishing_divisors, graph, ranges)
    assert pins == [*(["Pow_p"] if are_lost else []), "ReduceSum_s", "Div_y"]


def test_a_small_dot_product_is_of_terms_that_count_whatever_their_sign(tmp_path: Path) -> None:
    """The step of a solver that has converged, |r|^2 over p . q: all terms are small, and some of them negative."""
    nodes = [node("Mul", "x z", "p"), node("ReduceSum", "p axes", "s"), node("Div", "one s", "y")]
    model = make_model(nodes, {"x": [None], "z": [None]}, "y", CONSTANTS)
    feeds = {"x": floats(1e-4, 1e-4, 1e-4, -1e-4), "z": floats(1e-4, 2e-4, 3e-5, 4e-5)}
    graph, ranges = scan(model, tmp_path, feeds)
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Mul_p", "ReduceSum_s", "Div_y"]
    large = {"x": floats(1e-1, 1e-1), "z": floats(1e-1, -1e-1 + 2e-7)}
    graph, ranges = scan(model, tmp_path, large)
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["ReduceSum_s", "Div_y"]


def test_an_empty_batch_beside_another(tmp_path: Path) -> None:
    model = make_model([node("Abs", "x", "a"), node("Log", "a", "y")], {"x": [None]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(1, 1e-9)})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["Abs_a", "Log_y"]


@pytest.mark.parametrize(
    ("value", "is_found"), [(FP16_UNDERFLOW, True), (FEW_STEPS, False), (0, False), (math.nan, False)]
)
def test_one_number(value: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Reciprocal", "a", "y")]
    assert _pins(tmp_path, nodes, value) == (["Mul_a", "Reciprocal_y"] if is_found else [])


def test_a_sum_of_no_squares(tmp_path: Path) -> None:
    """It is zero, as FP32 has it; and of no sums nothing is known."""
    nodes = [node("Mul", "x x", "q"), node("ReduceSum", "q axes", "s"), node("Log", "s", "y")]
    for name, shape in (("sum", (0, 3)), ("none", (3, 0))):
        (tmp_path / name).mkdir()
        assert _pins(tmp_path / name, nodes, np.zeros(shape)) == []


@pytest.mark.parametrize(("largest", "is_found"), [(7, False), (12, True)])
def test_a_probability_that_is_1_in_fp16_is_taken_from_1(
    largest: float, is_found: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Sigmoid", "x", "p"),
        node("Sub", "one p", "a"),
        node("Reshape", "a axis", "q"),
        node("Log", "q", "y"),
    ]
    p = (1 / (1 + np.exp(-np.linspace(-largest, largest, 9)))).astype(np.float16)
    assert bool(np.any(1 - p == 0)) == is_found
    model = make_model(nodes, {"x": None}, "y", {**CONSTANTS, "axis": ints(-1)})
    graph, ranges = scan(model, tmp_path, {"x": np.linspace(-largest, largest, 9, dtype=np.float32)})
    pins = pinned_by(find_vanishing_divisors, graph, ranges)
    assert pins == (["Sigmoid_p", "Sub_a", "Reshape_q", "Log_y"] if is_found else [])


GUARDS = {
    "Add": [node("Add", "q guard", "g")],
    "Max": [node("Max", "guard q", "g")],
    "Clip": [node("Clip", "q guard", "g")],
}


@pytest.mark.parametrize("form", GUARDS)
@pytest.mark.parametrize(("guard", "is_found"), [(1e-6, True), (2.0**-12, True), (2.0**-11, False)])
def test_a_guard_of_less_than_is_rounded_away_is_what_is_left(
    form: str, guard: float, is_found: bool, tmp_path: Path
) -> None:
    nodes = [node("Sigmoid", "x", "p"), node("Sub", "one p", "q"), *GUARDS[form], node("Log", "g", "y")]
    constants = {"one": scalar(1), "guard": scalar(guard)}
    graph, ranges = scan(make_model(nodes, {"x": [3]}, "y", constants), tmp_path, {"x": floats(1, 5, 10)})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert [one.node for one in found] == [one.label for one in graph.nodes] * is_found
    for one in found:
        assert one.reason.endswith(
            f"Log_y makes something else of it, as the guard of {guard:.3g} is all that is left"
        )


def test_beside_a_guard_that_fp16_makes_zero_of_nothing_is_left(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "p"), node("Sub", "one p", "q"), *GUARDS["Add"], node("Log", "g", "y")]
    constants = {"one": scalar(1), "guard": scalar(1e-9)}
    graph, ranges = scan(make_model(nodes, {"x": [3]}, "y", constants), tmp_path, {"x": floats(1, 5, 10)})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert [one.node for one in found] == [one.label for one in graph.nodes]
    for one in found:
        assert one.reason.endswith("Log_y makes infinity or NaN of it")


def test_a_difference_that_nothing_divides_by_may_vanish(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "p"), node("Sub", "one p", "a"), node("Exp", "a", "y")]
    assert _pins(tmp_path, nodes, [-12, 12]) == []


def test_a_difference_of_two_computed_terms(tmp_path: Path) -> None:
    """log(x + 2) - log(x) is 0.0005 where these are 8.3, of which FP16's steps are 1/128; at 1 and more, 1/1024.

    On its way to the logarithm it is well in FP16, unless it is below the normal numbers there.
    """
    nodes = [
        node("Relu", "x", "r"),
        node("Add", "r two", "b"),
        node("Log", "b", "log_b"),
        node("Log", "r", "log_r"),
        node("Sub", "log_b log_r", "d"),
        node("Mul", "d half", "m"),
        node("Log", "m", "y"),
    ]
    far, near = [4.1, 4100.3], [4.1, 11.3]
    assert _pins(tmp_path, nodes, far) == [one.name for one in nodes[:5]]
    assert _pins(tmp_path, nodes, near) == []
    assert _pins(tmp_path, [*nodes[:-1], node("Exp", "m", "y")], far) == []
    nodes[5] = node("Mul", "d thousandth", "m")
    assert _pins(tmp_path, nodes, far) == [one.name for one in nodes]


def test_the_evidence_of_a_difference_of_two(tmp_path: Path) -> None:
    """0.9994 and 0.9997 are neighbours in FP16, or one number."""
    nodes = [
        node("Add", "x one", "a"),
        node("Mul", "x half", "h"),
        node("Sub", "a h", "d"),
        node("Reciprocal", "d", "y"),
    ]
    values = {"x": floats(-1.9993, -1.9994)}
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", CONSTANTS), tmp_path, values)
    found = {one.node: one for one in ask(find_vanishing_divisors, graph, ranges)}
    assert found["Sub_d"].reason == (
        f"d is as small as {ranges.by_tensor['d'].min_nonzero_abs:.3g}, a difference of a and h, of 0.99965 and more, which is zero or "
        "a step in FP16, and Reciprocal Reciprocal_y makes infinity or another number of it"
    )


def test_the_evidence_of_a_difference(tmp_path: Path) -> None:
    nodes = [node("Sub", "x one", "a"), node("Reciprocal", "a", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": None}, "y", CONSTANTS), tmp_path, {"x": floats(3, 1 + 2.0**-12)}
    )
    (found,) = {each.tensor: each for each in ask(find_vanishing_divisors, graph, ranges)}.values()
    assert (found.value, found.limit) == (2.0**-12, float(np.spacing(np.float16(1))) / 2)
    assert found.reason == (
        "a is as small as 0.000244, a difference from 1, which is zero in FP16, and Reciprocal Reciprocal_y makes "
        "infinity or NaN of it"
    )


THOUSAND: dict[str, tuple[list[Any], str]] = {
    "softmax": (
        [node("Exp", "m", "e"), node("ReduceSum", "e last", "s"), node("Div", "e s", "y")],
        "Exp_e ReduceSum_s Div_y",
    ),
    "logarithm of a sum": (
        [node("Exp", "m", "e"), node("ReduceSum", "e last", "s", keepdims=0), node("Log", "s", "y")],
        "Exp_e ReduceSum_s Log_y",
    ),
    "ReduceLogSum": (
        [node("Exp", "m", "e"), node("ReduceLogSum", "e last", "y")],
        "Exp_e ReduceLogSum_y",
    ),
    "moved": (
        [
            node("Exp", "m", "e"),
            node("ReduceL1", "e last", "s", keepdims=0),
            node("Unsqueeze", "s last", "u"),
            node("Div", "e u", "y"),
        ],
        "Exp_e ReduceL1_s Unsqueeze_u Div_y",
    ),
    "MatMul": (
        [node("Exp", "m", "e"), node("MatMul", "e ones", "s"), node("Div", "e s", "y")],
        "Exp_e MatMul_s Div_y",
    ),
    "the last of partial sums": (
        [
            node("Exp", "m", "e"),
            node("CumSum", "e one", "c"),
            node("Slice", "c last end last", "s"),
            node("Div", "e s", "y"),
        ],
        "Exp_e CumSum_c Slice_s Div_y",
    ),
}


@pytest.mark.parametrize("name", THOUSAND)
def test_a_thousand_exponentials_that_fp16_makes_zero_of(name: str, tmp_path: Path) -> None:
    """Beside a batch that it holds, which alone asks for nothing."""
    nodes, pinned = THOUSAND[name]
    constants = {
        "last": ints(-1),
        "end": ints(1 << 20),
        "one": np.asarray(1, np.int64),
        "ones": np.ones((1000, 1), np.float32),
        "shift": scalar(0.5),
    }
    model = make_model([node("Mul", "x shift", "m"), *nodes], {"x": [None, 1000]}, "y", constants, 18)
    loud = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": loud}, {"x": loud - 41})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == pinned.split()
    (tmp_path / "loud").mkdir()
    graph, ranges = scan(model, tmp_path / "loud", {"x": loud}, {"x": loud + 1})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == []


QUIET: dict[str, tuple[list[Any], float, str]] = {
    "peak": (
        [node("Abs", "m", "a"), node("ReduceMax", "a last", "s"), node("Div", "m s", "y")],
        1e-9,
        "MatMul_m Abs_a ReduceMax_s Div_y",
    ),
    "ReduceL2": (
        [node("ReduceL2", "m last", "s"), node("Div", "m s", "y")],
        1e-9,
        "MatMul_m ReduceL2_s Div_y",
    ),
    "ReduceL2 of what FP16 holds": (
        [node("ReduceL2", "m last", "s"), node("Div", "m s", "y")],
        1e-5,
        "ReduceL2_s Div_y",
    ),
    "LpNormalization": ([node("LpNormalization", "m", "y")], 1e-9, "MatMul_m LpNormalization_y"),
    "log-mel": (
        [
            node("Mul", "m m", "q"),
            node("MatMul", "bank q", "f"),
            node("Clip", "f tiny", "c"),
            node("Log", "c", "y"),
        ],
        1e-5,
        "Mul_q MatMul_f Clip_c Log_y",
    ),
    "log-mel, held but for its squares": (
        [
            node("Mul", "m m", "q"),
            node("MatMul", "bank q", "f"),
            node("Clip", "f tiny", "c"),
            node("Log", "c", "y"),
        ],
        3e-5,
        "Mul_q MatMul_f Clip_c Log_y",
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_a_quiet_batch(name: str, tmp_path: Path) -> None:
    nodes, scale, pinned = QUIET[name]
    constants = {
        "last": ints(-1),
        "eye": np.eye(64, dtype=np.float32),
        "bank": np.ones((4, 64), np.float32),
        "tiny": scalar(1e-10),
    }
    model = make_model([node("MatMul", "x eye", "m"), *nodes], {"x": [64, 64]}, "y", constants, 18)
    loud = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": loud}, {"x": loud * np.float32(scale)})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == pinned.split()
    (tmp_path / "loud").mkdir()
    graph, ranges = scan(model, tmp_path / "loud", {"x": loud}, {"x": loud * np.float32(0.5)})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == []


def test_a_part_of_which_the_smallest_is_held_is_left(tmp_path: Path) -> None:
    """A count of ones is zero in a row; the mask that it counts has nothing between 0 and 1."""
    nodes = [
        node("Greater", "x one", "b"),
        node("Cast", "b", "m", to=onnx.TensorProto.FLOAT),
        node("ReduceSum", "m axes", "c"),
        node("Add", "c tiny", "d"),
        node("Div", "x d", "y"),
    ]
    model = make_model(nodes, {"x": [2, 2]}, "y", CONSTANTS | {"tiny": scalar(1e-8)})
    graph, ranges = scan(model, tmp_path, {"x": np.float32([[0, 2], [0.5, 2]])})
    assert pinned_by(find_vanishing_divisors, graph, ranges) == ["ReduceSum_c", "Add_d", "Div_y"]


@pytest.mark.parametrize(("left", "is_found"), [(1e-7, True), (1e-5, True), (1e-3, False)])
def test_a_bound_that_fp16_rounds_onto_a_pole(left: float, is_found: bool, tmp_path: Path) -> None:
    constants = {"eye": np.eye(4, dtype=np.float32), "low": scalar(left - 1), "high": scalar(1 - left)}
    nodes = [node("MatMul", "x eye", "m"), node("Clip", "m low high", "c"), node("Atanh", "c", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": [4]}, "y", constants), tmp_path, {"x": floats(-3, 0, 0.5, 3)}
    )
    found = ask(find_vanishing_divisors, graph, ranges)
    assert [one.node for one in found] == (["MatMul_m", "Clip_c", "Atanh_y"] if is_found else [])
    if found:
        told = 1 - float(np.float32(1 - left))
        assert (found[0].value, found[0].limit, found[0].severity) == (told, 2.0**-12, "high")
        assert found[0].reason == (
            f"1 - |c| is as small as {told:.3g}, which is zero in FP16, and Atanh Atanh_y makes infinity of it"
        )


PARTS = {name: [one] for name, one in take_part("v", "a").items()} | {
    "root": [node("Sqrt", "v", "r"), take_part("r", "a")["Slice"]],
    "moved": [node("Neg", "v", "r"), take_part("r", "s")["Gather"], node("Neg", "s", "a")],
}


def _part_pins(folder: Path, part: list[onnx.NodeProto], values: Any) -> list[str]:
    nodes = [node("Mul", "x one", "v"), *part, node("Div", "one a", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": None}, "y", CONSTANTS | PART_CONSTANTS), folder, {"x": floats(*values)}
    )
    return pinned_by(find_vanishing_divisors, graph, ranges)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("least", [1e-11, FP16_UNDERFLOW])
def test_a_part_that_holds_the_smallest_is_divided_by(
    part: list[onnx.NodeProto], least: float, tmp_path: Path
) -> None:
    expected = ["Mul_v", *(one.name for one in part), "Div_y"]
    assert _part_pins(tmp_path, part, [1, 1, least, 1]) == expected
    assert _part_pins(tmp_path, part, [1e-12, 1, least, 1]) == expected


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("kept", [1, FEW_STEPS, 0, math.nan])
def test_a_part_that_does_not_is_no_divisor_as_small(
    part: list[onnx.NodeProto], kept: float, tmp_path: Path
) -> None:
    if kept == FEW_STEPS and part[0].op_type == "Sqrt":
        pytest.skip("FP32 rounds the root, so that nobody knows")
    assert _part_pins(tmp_path, part, [1e-11, 1, kept, 1]) == []


def test_a_part_of_both_signs_of_which_nobody_took_the_smallest_may_hold_it(tmp_path: Path) -> None:
    part = [node("Slice", "v from to axis", "s"), node("Abs", "s", "a")]
    nodes = [node("Sin", "x", "v"), node("Div", "one v", "z"), *part, node("Div", "one a", "y")]
    model = make_model(nodes, {"x": None}, "y z", CONSTANTS | PART_CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 1, -1, 1e-11)})
    assert ranges.by_tensor["s"].min_nonzero_abs == -math.inf
    expected = ["Sin_v", "Div_z", "Slice_s", "Abs_a", "Div_y"]
    assert pinned_by(find_vanishing_divisors, graph, ranges) == expected


def test_a_part_tells_of_its_own_smallest(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "v"), *PARTS["Slice"], node("Div", "one a", "y")]
    model = make_model(nodes, {"x": None}, "y", CONSTANTS | PART_CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(1e-11, 1, 2e-9, 1)})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert {(one.node, one.tensor, round(one.value, 12)) for one in found} == {
        (label, "a", 2e-9) for label in ("Mul_v", "Slice_a", "Div_y")
    }


def test_a_difference_of_which_a_part_is_taken(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "p"), node("Sub", "one p", "v"), *PARTS["Slice"], node("Log", "a", "y")]
    model = make_model(nodes, {"x": None}, "y", CONSTANTS | PART_CONSTANTS)
    for values, expected in (
        ([0.5, 0.5, 0.9999, 0.5], ["Mul_p", "Sub_v", "Slice_a", "Log_y"]),
        ([0.9999, 0.5, 0.5, 0.5], []),
    ):
        graph, ranges = scan(model, tmp_path, {"x": floats(*values)})
        assert pinned_by(find_vanishing_divisors, graph, ranges) == expected


def test_a_part_of_sums_of_terms_as_small(tmp_path: Path) -> None:
    """A thousand terms of 1e-9 are 1e-6 in the part, and zero in FP16; the other sum is of fewer."""
    constants = {
        "bank": np.array([[1, 1e-4]] * 1000, np.float32),
        "axis": ints(1),
        "from": ints(0),
        "to": ints(1),
    }
    nodes = [
        node("Exp", "x", "e"),
        node("MatMul", "e bank", "s"),
        node("Slice", "s from to axis", "a"),
        node("Div", "one a", "y"),
    ]
    model = make_model(nodes, {"x": [None, 1000]}, "y", CONSTANTS | constants)
    for shift, expected in ((-20.7, ["Exp_e", "MatMul_s", "Slice_a", "Div_y"]), (-12, [])):
        graph, ranges = scan(model, tmp_path, {"x": np.full((2, 1000), shift, np.float32)})
        assert pinned_by(find_vanishing_divisors, graph, ranges) == expected


NEAR_1 = {
    "gumbel": ([node("Log", "m", "a"), node("Neg", "a", "b"), node("Log", "b", "y")], 0.9999),
    "cloglog": (
        [node("Sub", "one m", "q"), node("Log", "q", "a"), node("Neg", "a", "b"), node("Log", "b", "y")],
        1e-4,
    ),
    "reciprocal": ([node("Log", "m", "a"), node("Reciprocal", "a", "y")], 1.0002),
    "quotient": ([node("Log", "m", "a"), node("Mul", "a two", "b"), node("Div", "one b", "y")], 1.0004),
    "sine of an angle": ([node("Acos", "m", "a"), node("Sin", "a", "b"), node("Div", "one b", "y")], 0.9999),
    "Acosh": ([node("Acosh", "m", "a"), node("Div", "one a", "y")], 1.0004),
}


@pytest.mark.parametrize("name", NEAR_1)
def test_what_is_zero_at_1_where_fp16_rounds_to_1(name: str, tmp_path: Path) -> None:
    """Beside values on the same side of 1, and on the other where that is told by the smallest alone."""
    nodes, value = NEAR_1[name]
    nodes = [node("Mul", "x one", "m"), *nodes]
    beside = {"cloglog": 0.3, "Acosh": 3, "reciprocal": 0.3, "quotient": 3}.get(name, 0.5)
    expected = [one.name for one in nodes if not (name == "cloglog" and one.name == "Mul_m")]
    assert _pins(tmp_path, nodes, [beside, value]) == expected
    assert _pins(tmp_path, nodes, [beside, 1 + 8 * (value - 1) if value > 0.5 else 8 * value]) == []


def test_a_logarithm_that_nothing_divides_by_stays(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x one", "m"),
        node("Log", "m", "a"),
        node("Exp", "a", "b"),
        node("Div", "one b", "y"),
    ]
    assert _pins(tmp_path, nodes, [0.5, 0.9999]) == []


def test_an_epsilon_under_an_angle(tmp_path: Path) -> None:
    nodes = [node("Acos", "x", "a"), node("Add", "a c", "b"), node("Div", "one b", "y")]
    for guard, is_found in ((1e-6, True), (0.01, True), (0.02, False)):
        model = make_model(nodes, {"x": None}, "y", CONSTANTS | {"c": scalar(guard)})
        graph, ranges = scan(model, tmp_path, {"x": floats(0.9999, 0.5)})
        assert bool(pinned_by(find_vanishing_divisors, graph, ranges)) == is_found


SHARP = np.float32([[0, 19, 1], [-2, 24, 3]])
ENTROPIES = {
    "negated behind the sum": [
        node("Mul", "p l", "t"),
        node("ReduceSum", "t last", "s"),
        node("Neg", "s", "h"),
        node("Log", "h", "y"),
    ],
    "negated before it": [
        node("Neg", "l", "n"),
        node("Mul", "p n", "t"),
        node("ReduceSum", "t last", "h"),
        node("Log", "h", "y"),
    ],
}


@pytest.mark.parametrize("form", ENTROPIES)
def test_an_entropy_under_a_logarithm_stays_with_what_it_is_made_of(form: str, tmp_path: Path) -> None:
    nodes = [node("LogSoftmax", "x", "l"), node("Exp", "l", "p"), *ENTROPIES[form]]
    model = make_model(nodes, {"x": [2, 3]}, "y", {"last": ints(1)})
    graph, ranges = scan(model, tmp_path, {"x": SHARP})
    assert {"Exp_p", "Mul_t"} <= set(pinned_by(find_vanishing_divisors, graph, ranges))


@pytest.mark.parametrize("op", ["Neg", "Tanh"])
def test_each_node_of_a_long_chain_is_told_of_what_is_near(op: str, tmp_path: Path) -> None:
    """However long the chain is, and whether or not what is small is told of what is behind it."""
    counts = []
    for length in (100, 200):
        nodes = [node(op, f"t{i}", f"t{i + 1}") for i in range(length)]
        nodes += [node("Div", f"x t{i + 1}", f"q{i}") for i in range(0, length, 10)]
        model = make_model([*nodes, node("Log", f"t{length}", "y")], {"x": [1], "t0": [1]}, "y")
        graph, ranges = scan(model, tmp_path, {"x": floats(1), "t0": floats(1e-9)})
        found = ask(find_vanishing_divisors, graph, ranges)
        assert {one.node for one in found} == {one.label for one in graph.nodes}
        counts.append(len(found))
    assert counts[1] < 2.5 * counts[0]


def test_no_ways_are_followed_from_what_nothing_divides_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long chain of small tensors each would go through all behind it."""

    def follow(*args: object) -> tuple[Node, ...]:
        raise AssertionError("Expected no way to be followed.")

    monkeypatch.setattr("overflow_fixer.rules.vanishing_divisor.find_ways", follow)
    nodes = [node("Tanh", f"t{i}", f"t{i + 1}") for i in range(9)]
    model = make_model([*nodes, node("Exp", "t9", "y")], {"t0": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"t0": floats(1e-9)})
    assert not ask(find_vanishing_divisors, graph, ranges)


def test_a_way_that_ends_before_another_small_tensor_tells_what_divides_by_that(tmp_path: Path) -> None:
    nodes = [node("Tanh", f"t{i}", f"t{i + 1}") for i in range(40)]
    model = make_model([*nodes, node("Log", "t40", "y")], {"t0": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"t0": floats(1e-9)})
    found = ask(find_vanishing_divisors, graph, ranges)
    assert "Log_y" not in {one.node for one in found if one.tensor == "t1"}
    assert all("Log Log_y makes infinity or NaN of it" in one.reason for one in found)


def test_sums_of_small_terms_that_are_divided_by_one_by_one(tmp_path: Path) -> None:
    """Zero does not come through a sum, but a small sum is of small terms: each is told of by what divides by it."""
    counts = []
    for length in (100, 200):
        nodes = [node("Add", f"t{i} x", f"t{i + 1}") for i in range(length)]
        nodes += [node("Reciprocal", f"t{i}", f"q{i}") for i in range(1, length)]
        model = make_model([*nodes, node("Reciprocal", f"t{length}", "y")], {"x": [1], "t0": [1]}, "y")
        graph, ranges = scan(model, tmp_path, {"x": floats(1e-12), "t0": floats(1e-12)})
        found = ask(find_vanishing_divisors, graph, ranges)
        assert {one.node for one in found} == {one.label for one in graph.nodes}
        counts.append(len(found))
    assert counts[1] < 2.5 * counts[0]


def test_of_differences_of_differences_each_node_is_told_of_a_few(tmp_path: Path) -> None:
    """And not of all that follow: each is made of those before it, and as small."""
    near = 100 + np.random.default_rng(9).random(4, np.float32)
    feeds = {"x": near + np.float32(2e-3), "z": near, "w": near + np.float32(1e-3)}
    counts = []
    for length in (40, 80):
        nodes = [node("Add", "x w", "t0")]
        for i in range(length):
            nodes += [node("Sub", f"t{i} w", f"s{i}"), node("Sub", f"s{i} z", f"d{i}")]
            nodes += [node("Add", f"s{i} w", f"t{i + 1}"), node("Reciprocal", f"d{i}", f"q{i}")]
        nodes.append(node("Sum", " ".join(f"q{i}" for i in range(length)), "y"))
        graph, ranges = scan(make_model(nodes, {"x": [4], "z": [4], "w": [4]}, "y"), tmp_path, feeds)
        found = ask(find_vanishing_divisors, graph, ranges)
        differences = {f"Sub_{kind}{i}" for kind in "sd" for i in range(length)}
        assert {one.node for one in found} >= differences
        counts.append(len(found))
    assert counts[1] < 2.5 * counts[0]


NOISE = np.random.default_rng(8).normal(size=(1, 256)).astype(np.float32)
BESIDE_A_ROOT = {
    "Add": [node("Add", "guard root", "g")],
    "Add, moved": [
        node("Unsqueeze", "root axes", "u"),
        node("Add", "u guard", "v"),
        node("Squeeze", "v axes", "g"),
    ],
    "Max": [node("Max", "root guard", "g")],
    "Clip": [node("Clip", "root guard", "g")],
}


@pytest.mark.parametrize("form", BESIDE_A_ROOT)
@pytest.mark.parametrize(
    ("deviation", "guard", "is_found"),
    [(1e-4, 1e-5, True), (1e-4, 1e-4, False), (3e-4, 1e-5, True), (1e-3, 1e-5, False), (1e-4, 0.1, False)],
)
def test_a_guard_beside_a_root_hides_nothing_where_the_root_is_larger(
    form: str, deviation: float, guard: float, is_found: bool, tmp_path: Path
) -> None:
    """Of quiet sound over its deviation and 1e-5 FP16 has the 1e-5 alone: the square of 1e-4 is zero, and of 3e-4 one step."""
    nodes = [
        node("Mul", "x x", "square"),
        node("ReduceMean", "square", "mean", axes=[-1], keepdims=1),
        node("Sqrt", "mean", "root"),
        *BESIDE_A_ROOT[form],
        node("Div", "x g", "y"),
    ]
    constants = {"axes": CONSTANTS["axes"], "guard": scalar(guard)}
    loud, quiet = {"x": 0.1 * NOISE}, {"x": deviation * NOISE}
    model = make_model(
        nodes,
        {"x": [None, 256]},
        "y",
        {k: v for k, v in constants.items() if any(k in n.input for n in nodes)},
    )
    graph, ranges = scan(model, tmp_path, loud, quiet)
    found = ask(find_vanishing_divisors, graph, ranges)
    assert bool(found) == is_found
    if found:
        told = {one.node for one in found}
        assert {"ReduceMean_mean", "Sqrt_root", "Div_y"} <= told
        assert f"the guard of {guard:.3g} is all that is left" in found[-1].reason
        fp32 = {name for one in graph.nodes if one.label in told for name in one.writes}
        assert measure_snr_db(tmp_path / "model.onnx", quiet, set()) < 25
        assert measure_snr_db(tmp_path / "model.onnx", quiet, fp32) > 45


def test_the_same_guard_under_the_root_is_all_that_counts(tmp_path: Path) -> None:
    """As a LayerNorm has it: 1e-8 beside 1e-5 is nothing in FP32 either."""
    nodes = [
        node("Mul", "x x", "square"),
        node("ReduceMean", "square", "mean", axes=[-1], keepdims=1),
        node("Add", "mean guard", "g"),
        node("Sqrt", "g", "root"),
        node("Div", "x root", "y"),
    ]
    model = make_model(nodes, {"x": [None, 256]}, "y", {"guard": scalar(1e-5)})
    graph, ranges = scan(model, tmp_path, {"x": 0.1 * NOISE}, {"x": 1e-4 * NOISE})
    assert ask(find_vanishing_divisors, graph, ranges) == []

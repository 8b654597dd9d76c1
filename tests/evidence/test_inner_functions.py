"""Values that follow from a range, against numpy in float64; each row of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, scalar, scan
from onnx import TensorProto, helper

from overflow_fixer.errors import ModelError
from overflow_fixer.evidence.inner_functions import _FUNCTIONS
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.records import Array, PlanPolicy
from overflow_fixer.rules.inner_value import find_large_inner_values

X = (np.random.default_rng(3).standard_normal((1, 2, 6, 8)) * 3 + 4).astype(np.float32)
WIDE = X.astype(np.float64)


def _windows(x: Array, size: tuple[int, int], pads: tuple[int, int] = (0, 0)) -> Array:
    """[window, element], zeros over the edge."""
    padded = np.pad(x, ((0, 0), (0, 0), *((pad, pad) for pad in pads)))
    spans = [range(n - s + 1) for n, s in zip(padded.shape[2:], size, strict=True)]
    found = [
        padded[n, c, i : i + size[0], j : j + size[1]].ravel()
        for n, c in product(*map(range, x.shape[:2]))
        for i, j in product(*spans)
    ]
    return np.array(found)


@dataclass(frozen=True)
class Case:
    op: str
    value: float
    text: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = "x"
    opset: int = 17

    def model(self, constants: Mapping[str, Array] | None = None) -> Any:
        at = node(self.op, self.inputs, "y", **self.attributes)
        return make_model([at], {"x": [None] * 4}, "y", {**_CONSTANTS, **(constants or {})}, self.opset)


_CONSTANTS: Mapping[str, Array] = {
    "axes": ints(1, -1),
    "scale": np.ones(8, np.float32),
    "minus_two": scalar(-2),
}
_SQUARES = (WIDE * WIDE).sum((1, 3)).max()
_POOLED = _windows(WIDE, (2, 3))
CASES = [
    Case("Gelu", np.abs(WIDE).max() ** 3, "x^3", {"approximate": "tanh"}, opset=20),
    Case("Pow", (WIDE * WIDE).max(), "|x|^2, of which it is one over", {}, "x minus_two"),
    Case("Mish", np.exp(WIDE).max(), "e^x", opset=18),
    Case("Softplus", np.exp(WIDE).max(), "e^x"),
    Case("Softplus", np.exp(WIDE).max(), "e^x", opset=22),
    Case("RMSNormalization", (WIDE * WIDE).max(), "x^2", {}, "x scale", 23),
    Case("SimplifiedLayerNormalization", (WIDE * WIDE).max(), "x^2", {}, "x scale"),
    Case("LRN", (WIDE * WIDE).max(), "x^2", {"size": 3}),
    Case("ReduceLogSumExp", np.exp(WIDE).sum((1, 3)).max(), "the sum that a logarithm", {"axes": [1, 3]}),
    Case("ReduceLogSumExp", np.exp(WIDE).sum((1, 3)).max(), "the sum that", {"keepdims": 0}, "x axes", 18),
    Case("ReduceLogSum", WIDE.sum((1, 3)).max(), "the sum that a logarithm", {"axes": [1, 3]}),
    Case("ReduceLogSum", WIDE.sum((1, 3)).max(), "the sum that a logarithm", {}, "x axes", 18),
    Case("ReduceL2", _SQUARES, "the sum of squares", {"axes": [1, -1], "keepdims": 0}, opset=13),
    Case("ReduceL2", _SQUARES, "the sum of squares", {}, "x axes", 18),
    Case("LpPool", (_POOLED * _POOLED).sum(1).max(), "the sum of squares", {"kernel_shape": [2, 3]}),
    Case(
        "LpPool",
        (np.abs(_POOLED) ** 3).sum(1).max(),
        "the sum of |x|^3",
        {"kernel_shape": [2, 3], "p": 3},
        opset=22,
    ),
    Case("GlobalLpPool", (WIDE * WIDE).sum((2, 3)).max(), "the sum of squares"),
    Case("GlobalLpPool", np.abs(WIDE).sum((2, 3)).max(), "the sum of |x|^1", {"p": 1}),
    Case("AveragePool", np.abs(_POOLED.sum(1)).max(), "the sum before", {"kernel_shape": [2, 3]}),
    Case(
        "AveragePool",
        np.abs(_windows(WIDE, (2, 3), (1, 1)).sum(1)).max(),
        "the sum before",
        {"kernel_shape": [2, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        opset=19,
    ),
    Case("Mean", 3 * np.abs(WIDE).max(), "the sum before", {}, "x x x"),
]


def _by_text(case: Case, folder: Path, threshold: float, *feeds: Array) -> list[Any]:
    graph, ranges = scan(case.model(), folder, *({"x": x} for x in feeds))
    found = ask(find_large_inner_values, graph, ranges, PlanPolicy(threshold=threshold))
    return [one for one in found if one.reason.startswith(f"inside, {case.text}")]


def test_every_row_of_the_table_has_a_case() -> None:
    assert {case.op for case in CASES} == _FUNCTIONS.keys() - {
        "LogSoftmax",  # of which the least counts
        "RoiAlign",  # reads boxes
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.opset} {dict(case.attributes)}")
def test_the_value_is_right_and_the_threshold_itself_is_not_over_it(case: Case, tmp_path: Path) -> None:
    (found,) = _by_text(case, tmp_path, 1e-3, X)
    assert found.value == pytest.approx(case.value, rel=1e-5)
    assert (found.rule, found.node, found.limit) == ("inner_value", f"{case.op}_y", 1e-3)
    assert (found.severity, found.action, found.batch) == ("high", "pin", "batch_0")
    x = X if found.value < FP16_MAX else X / 2  # no threshold is larger
    (found,) = _by_text(case, tmp_path, 1e-3, x)
    assert not _by_text(case, tmp_path, found.value, x)
    assert _by_text(case, tmp_path, np.nextafter(found.value, 0), x)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.opset} {dict(case.attributes)}")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_is_said_of_what_is_not_finite(case: Case, bad: float, tmp_path: Path) -> None:
    x = X.copy()
    x[0, 0, -1, -1] = bad
    is_told = case.op == "ReduceLogSumExp" and bad == -np.inf  # e^-inf is 0, and the output finite
    assert len(_by_text(case, tmp_path, 1e-3, X, x)) == is_told


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.opset}")
@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_precisions_are_not_looked_into(case: Case, elem_type: int, tmp_path: Path) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    model = case.model({"scale": np.ones(8, dtype)})
    nodes = [node("Cast", "x", "narrow", to=elem_type), model.graph.node[0], node("Cast", "y", "z", to=1)]
    for i, name in enumerate(nodes[1].input):
        nodes[1].input[i] = "narrow" if name == "x" else name
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output[0].name = "z"
    try:
        graph, ranges = scan(model, tmp_path, {"x": X})
    except ModelError:
        pytest.skip(f"ONNX Runtime has no {case.op} of this type")
    assert not ask(find_large_inner_values, graph, ranges, PlanPolicy(threshold=1e-3))


@pytest.mark.parametrize("exponent", [2.0, 0.0, 0.5])
def test_a_power_that_shows_in_the_output_is_no_inner_value(exponent: float, tmp_path: Path) -> None:
    model = make_model([node("Pow", "x p", "y")], {"x": [None] * 4}, "y", {"p": scalar(exponent)})
    graph, ranges = scan(model, tmp_path, {"x": 100 * X})
    assert not ask(find_large_inner_values, graph, ranges)


def test_gelu_by_erf_has_no_cube(tmp_path: Path) -> None:
    graph, ranges = scan(Case("Gelu", 0, "", {}, opset=20).model(), tmp_path, {"x": 100 * X})
    assert not ask(find_large_inner_values, graph, ranges)


@pytest.mark.parametrize("attributes", [{"pads": [1, 1, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"ceil_mode": 1}])
def test_where_windows_are_cut_the_sum_of_an_average_is_measured(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    """Once, and held against the threshold."""
    case = Case("AveragePool", 0, "the sum before", {"kernel_shape": [2, 2], "strides": [2, 2], **attributes})
    full = np.full((1, 1, 5, 5), 2500, np.float32)
    (found,) = _by_text(case, tmp_path, 10000, full * np.float32(1.001))
    assert found.value == pytest.approx(10010, rel=1e-5)
    assert (found.limit, found.severity, found.action) == (10000, "high", "pin")
    assert not _by_text(case, tmp_path, 10000, full)


def test_a_norm_that_adds_nothing_has_no_squares(tmp_path: Path) -> None:
    model = make_model([node("ReduceL2", "x", "y", noop_with_empty_axes=1)], {"x": [2]}, "y", opset=18)
    graph, ranges = scan(model, tmp_path, {"x": floats(600, 700)})
    assert ask(find_large_inner_values, graph, ranges) == []


@pytest.mark.parametrize(
    ("attributes", "is_known"),
    [({"sampling_ratio": 8}, True), ({}, False), ({"sampling_ratio": 8, "mode": "max"}, False)],
)
def test_the_samples_of_a_box(attributes: dict[str, Any], is_known: bool, tmp_path: Path) -> None:
    """One sample a pixel."""
    x = np.random.default_rng(0).uniform(100, 300, (1, 2, 8, 8)).astype(np.float32)
    constants = {"boxes": np.array([[0, 0, 8, 8]], np.float32), "images": ints(0)}
    at = node("RoiAlign", "x boxes images", "y", output_height=1, output_width=1, **attributes)
    graph, ranges = scan(make_model([at], {"x": [1, 2, 8, 8]}, "y", constants, 16), tmp_path, {"x": x})
    found = ask(find_large_inner_values, graph, ranges)
    expected = x.astype(np.float64).sum((2, 3)).max()
    assert [one.value for one in found] == [pytest.approx(expected, rel=1e-5)] * is_known


def test_squares_across_channels_are_bounded(tmp_path: Path) -> None:
    case = Case("LRN", 0, "a bound of the sum of squares", {"size": 5})
    x = np.zeros_like(X)
    x[0, 0, 0, 0] = np.sqrt(65504 / 5)
    (found,) = _by_text(case, tmp_path, 65504, np.nextafter(x, np.inf, dtype=np.float32))
    assert found.value == pytest.approx(65504, rel=1e-5)
    assert (found.limit, found.severity) == (65504, "low")
    assert not _by_text(case, tmp_path, 65504, np.nextafter(x, 0, dtype=np.float32))
    assert not _by_text(case, tmp_path, 1e4, np.nextafter(x, np.inf, dtype=np.float32))  # x^2 is sure


@pytest.mark.parametrize(
    ("least", "is_lost"), [(-17.0, False), (-17.32, False), (-17.4, True), (-1000, True)]
)
def test_a_probability_that_fp16_rounds_to_zero(least: float, is_lost: bool, tmp_path: Path) -> None:
    """2^-25 is e^-17.33."""
    graph, ranges = scan(
        make_model([node("LogSoftmax", "x", "y")], {"x": [1, 2]}, "y"),
        tmp_path,
        {"x": floats(0, least)[None]},
    )
    found = ask(find_large_inner_values, graph, ranges)
    assert [one.limit for one in found] == ([2.0**-25] if is_lost else [])
    if is_lost:
        assert found[0].value == pytest.approx(np.exp(np.float64(least)), rel=1e-4)
        assert found[0].reason.startswith("inside, the least probability is ")


@pytest.mark.parametrize(
    ("op", "opset"), [("ReduceLogSumExp", 13), ("ReduceLogSumExp", 18), ("ReduceLogSum", 18)]
)
@pytest.mark.parametrize(
    ("terms", "severity"), [(2.0**-26.1, "high"), (2.0**-25.5, "low"), (2.0**-25, "low"), (2.0**-24.9, None)]
)
def test_a_sum_under_a_logarithm_that_fp16_makes_zero_of(
    op: str, opset: int, terms: float, severity: str | None, tmp_path: Path
) -> None:
    """Two terms: FP16 may hold what they add up to, and makes zero of each."""
    value = np.full((3, 2), terms if op == "ReduceLogSum" else np.log(terms), np.float32)
    value[0] += 1
    axes = {"axes": [1]} if opset < 18 else {}
    nodes = [node(op, "x" if axes else "x last", "y", **axes)]
    model = make_model(nodes, {"x": [3, 2]}, "y", {} if axes else {"last": ints(1)}, opset)
    graph, ranges = scan(model, tmp_path, {"x": value})
    found = ask(find_large_inner_values, graph, ranges)
    assert [one.severity for one in found] == ([] if severity is None else [severity])
    if found:
        told = terms if severity == "low" else 2 * terms
        assert found[0].value == pytest.approx(told, rel=1e-5)
        assert found[0].reason.startswith("inside, the sum that a logarithm is taken of is ")


@pytest.mark.parametrize("made", ["Cast", "Neg"])
def test_an_exponent_that_is_computed_from_constants(made: str, tmp_path: Path) -> None:
    at = node("Cast", "minus", "p", to=TensorProto.FLOAT) if made == "Cast" else node("Neg", "two", "p")
    constants = {"minus": np.asarray(-2), "two": scalar(2)}
    model = make_model([at, node("Pow", "x p", "y")], {"x": [None] * 4}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": 100 * X})
    (found,) = ask(find_large_inner_values, graph, ranges)
    assert (found.value, found.severity) == (pytest.approx(1e4 * (WIDE * WIDE).max(), rel=1e-5), "high")


@pytest.mark.parametrize(("exponents", "severity"), [((-2, -2), "high"), ((-1, -2), "low"), ((2, 0), None)])
def test_exponents_of_several_elements(
    exponents: tuple[float, float], severity: str | None, tmp_path: Path
) -> None:
    """Where they differ, the largest element need not be that of the least."""
    model = make_model([node("Pow", "x p", "y")], {"x": [None, 2]}, "y", {"p": floats(*exponents)})
    graph, ranges = scan(model, tmp_path, {"x": floats(300, 5)[None]})
    found = ask(find_large_inner_values, graph, ranges)
    assert [(one.value, one.severity) for one in found] == ([] if severity is None else [(90000, severity)])


def test_the_least_probability_is_right(tmp_path: Path) -> None:
    graph, ranges = scan(
        make_model([node("LogSoftmax", "x", "y")], {"x": [1, 2, 6, 8]}, "y"), tmp_path, {"x": 4 * X}
    )
    (found,) = ask(find_large_inner_values, graph, ranges)
    spread = np.exp(4 * WIDE)
    assert found.value == pytest.approx((spread / spread.sum(-1, keepdims=True)).min(), rel=1e-5)


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [("ReduceL2", 200, 40000), ("Mean", 9000, 18000), ("Softplus", 10, np.exp(10))],
)
def test_a_number_is_a_tensor_too(op: str, value: float, expected: float, tmp_path: Path) -> None:
    inputs = "x x" if op == "Mean" else "x"
    graph, ranges = scan(
        make_model([node(op, inputs, "y")], {"x": []}, "y"), tmp_path, {"x": np.asarray(value, np.float32)}
    )
    (found,) = ask(find_large_inner_values, graph, ranges)
    assert found.value == pytest.approx(expected, rel=1e-5)


_ALIKE = np.full((2, 3, 240, 250), 0.7, np.float32)
_ALIKE[1, 1, 120, 60] = 1


@pytest.mark.parametrize(
    ("op", "attributes", "text", "inside"),
    [
        ("ReduceLogSum", {"axes": [2, 3]}, "the sum that", lambda x: x.sum((2, 3))),
        ("ReduceLogSumExp", {"axes": [2, 3]}, "the sum that", lambda x: np.exp(x).sum((2, 3))),
        ("LpPool", {"kernel_shape": [240, 250]}, "the sum of squares", lambda x: (x * x).sum((2, 3))),
        ("LpPool", {"kernel_shape": [240, 250], "p": 3}, "the sum of |x|^3", lambda x: (x**3).sum((2, 3))),
        ("GlobalLpPool", {"p": 1}, "the sum of |x|^1", lambda x: x.sum((2, 3))),
        ("GlobalLpPool", {"p": 3}, "the sum of |x|^3", lambda x: (x**3).sum((2, 3))),
    ],
)
def test_a_sum_of_many_takes_no_digits_from_the_output(
    op: str, attributes: dict[str, Any], text: str, inside: Callable[[Array], Array], tmp_path: Path
) -> None:
    """ONNX Runtime's output of 60,000 numbers that are alike is off by up to 6e-4."""
    case = Case(op, 0, text, attributes)
    (found,) = _by_text(case, tmp_path, 1, 0.9 * _ALIKE, _ALIKE)
    assert found.value == pytest.approx(inside(_ALIKE.astype(np.float64)).max(), rel=1e-5)
    assert (found.tensor, found.batch) == ("y", "batch_1")


def test_nothing_is_said_of_a_tensor_without_elements(tmp_path: Path) -> None:
    model = make_model([node("Softplus", "x", "y")], {"x": ["n"]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats()})
    assert not ask(find_large_inner_values, graph, ranges)


def test_more_than_a_float_holds_is_infinite(tmp_path: Path) -> None:
    model = make_model([node("Softplus", "x", "y")], {"x": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(9000)})
    (found,) = ask(find_large_inner_values, graph, ranges)
    assert found.value == np.inf


@pytest.mark.parametrize(("value", "is_over"), [(100, False), (100.01, True)])
def test_the_boundary_of_one_number(value: float, is_over: bool, tmp_path: Path) -> None:
    """The square under a root, of a 0-d tensor; the threshold itself is within."""
    model = make_model([node("ReduceL2", "x", "y")], {"x": []}, "y")
    graph, ranges = scan(model, tmp_path, {"x": np.asarray(value, np.float32)})
    found = ask(find_large_inner_values, graph, ranges)
    assert [f.value for f in found] == ([pytest.approx(value * value, rel=1e-5)] if is_over else [])


@pytest.mark.parametrize(("others", "batch"), [(0, "batch_1"), (19, "batch_1"), (30, None)])
def test_the_batch_of_the_least_sum_is_named_where_it_is_known(
    others: float, batch: str | None, tmp_path: Path
) -> None:
    """A range tells in which batch the largest magnitude was: at e^-20 that of the least, beside e^30 not."""
    model = make_model([node("ReduceLogSumExp", "x", "y", axes=[1])], {"x": [None, 1]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(others, 1)[:, None]}, {"x": floats(-20, 1)[:, None]})
    found = ask(find_large_inner_values, graph, ranges)
    (least,) = [one for one in found if "the logarithm of 0" in one.reason]
    assert (least.value, least.batch) == (pytest.approx(np.exp(-20), rel=1e-5), batch)

"""Extremes that follow from others', held against real runs; and what must not be derived."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, make_model, save
from onnx import NodeProto, TensorProto, helper, numpy_helper
from scan_cases import run_marked, save_model, value_info
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.derivations import (
    Derivation,
    derive,
    find_derivations,
    order_steps,
    tally,
)
from overflow_fixer.ranges.monotone import Values
from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.summaries import no_summaries, summarize
from overflow_fixer.records import Array

node = helper.make_node
DERIVED = {
    "Relu": node("Relu", ["x"], ["y"]),
    "LeakyRelu": node("LeakyRelu", ["x"], ["y"]),
    "LeakyRelu steep": node("LeakyRelu", ["x"], ["y"], alpha=3.7),
    "Neg": node("Neg", ["x"], ["y"]),
    "Add": node("Add", ["x", "third"], ["y"]),
    "Add first": node("Add", ["third", "x"], ["y"]),
    "Sub": node("Sub", ["x", "third"], ["y"]),
    "Sub from": node("Sub", ["third", "x"], ["y"]),
    "Mul": node("Mul", ["x", "third"], ["y"]),
    "Mul negative": node("Mul", ["x", "minus"], ["y"]),
    "Mul zero": node("Mul", ["zero", "x"], ["y"]),
    "Div": node("Div", ["x", "third"], ["y"]),
    "Div negative": node("Div", ["x", "minus"], ["y"]),
    "Concat": node("Concat", ["x", "z"], ["y"], axis=0),
    "Clip": node("Clip", ["x", "low", "six"], ["y"]),
    "Clip below": node("Clip", ["x", "third"], ["y"]),
    "Clip above": node("Clip", ["x", "", "six"], ["y"]),
    "Clip at the largest": node("Clip", ["x", "", "largest"], ["y"]),
    "Max": node("Max", ["x", "third"], ["y"]),
    "Min": node("Min", ["six", "x"], ["y"]),
    "DequantizeLinear": node("DequantizeLinear", ["q8", "third", "at_7"], ["y"]),
    "DequantizeLinear of another": node("DequantizeLinear", ["q8", "six"], ["y"]),
    "DequantizeLinear of 16 bits": node("DequantizeLinear", ["q16", "third", "at_9"], ["y"]),
}
NOT_DERIVED = {
    "Sigmoid": node("Sigmoid", ["x"], ["y"]),
    "Sqrt": node("Sqrt", ["x"], ["y"]),
    "Abs": node("Abs", ["x"], ["y"]),
    "LeakyRelu falling": node("LeakyRelu", ["x"], ["y"], alpha=-0.5),
    "Div by it": node("Div", ["third", "x"], ["y"]),
    "Div by zero": node("Div", ["x", "zero"], ["y"]),
    "Add of many": node("Add", ["x", "many"], ["y"]),
    "Add of infinity": node("Add", ["x", "infinite"], ["y"]),
    "Add of live": node("Add", ["x", "z"], ["y"]),
    "Add of a default": node("Add", ["x", "default"], ["y"]),
    "Concat with a constant": node("Concat", ["x", "many"], ["y"], axis=0),
    "Clip by it": node("Clip", ["third", "x"], ["y"]),
    "Clip by a default": node("Clip", ["x", "default"], ["y"]),
    "Clip of nothing between": node("Clip", ["x", "six", "third"], ["y"]),
    "Clip over what FP16 holds": node("Clip", ["x", "", "large"], ["y"]),
    "Max of three": node("Max", ["x", "third", "six"], ["y"]),
    "Max of many": node("Max", ["x", "many"], ["y"]),
    "Min over what FP16 holds": node("Min", ["x", "large"], ["y"]),
    "DequantizeLinear of what is fed": node("DequantizeLinear", ["fed", "third", "at_7"], ["y"]),
    "DequantizeLinear by negative steps": node("DequantizeLinear", ["q8", "minus_0d", "at_7"], ["y"]),
    "DequantizeLinear by a default": node("DequantizeLinear", ["q8", "default"], ["y"]),
    "DequantizeLinear over what FP16 holds": node("DequantizeLinear", ["q16", "six"], ["y"]),
    "DequantizeLinear of what was divided in FP16": node("DequantizeLinear", ["rough", "third"], ["y"]),
    "DequantizeLinear of a foreign one's": node("DequantizeLinear", ["foreign", "third", "at_7"], ["y"]),
    "DequantizeLinear of channels": node("DequantizeLinear", ["channels", "third"], ["y"]),
}
QUANTIZED = [
    node("QuantizeLinear", ["x", "third", "at_7"], ["q8"]),
    node("QuantizeLinear", ["x", "six", "at_9"], ["q16"]),
    node("QuantizeLinear", ["x", "tiny"], ["fine"]),
    node("QuantizeLinear", ["x", "third", "at_7"], ["rough"], precision=TensorProto.FLOAT16),
    node("QuantizeLinear", ["x", "third", "at_7"], ["foreign"], domain="com.microsoft"),
    node("QuantizeLinear", ["pair", "thirds"], ["channels"], axis=0),
]
CONSTANTS = {
    "third": np.float32(1 / 3),
    "minus": np.float32([[-1.7e-3]]),
    "zero": np.float32([0]),
    "many": np.float32([1, 2]),
    "infinite": np.float32(np.inf),
    "low": np.float32(-0.5),
    "six": np.float32(6),
    "largest": np.float32(65504),
    "large": np.float32(65505),
    "minus_0d": np.float32(-0.1),
    "thirds": np.float32([1 / 3, 2 / 3]),
    "pair": np.float32([1, 2]),
    "tiny": np.float32(3e-5),
    "at_7": np.int8(7),
    "at_9": np.uint16(9),
    "default": np.float32([1]),
}


def graph_of(path: Path, made: NodeProto, opset: int = 21) -> Graph:
    inputs = [value_info("x", dims=["n"]), value_info("z", dims=["m"]), value_info("default", dims=[1])]
    inputs.append(value_info("fed", TensorProto.INT8, ["n"]))
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items()]
    quantized = [one for one in QUANTIZED if one.output[0] in made.input]
    nodes, outputs, domains = [*quantized, made], [value_info("y")], ["com.microsoft"]
    return save_model(path, nodes, inputs, outputs, weights, opset=opset, ir_version=10, domains=domains)


def derivations(graph: Graph) -> list[Derivation]:
    return list(find_derivations(graph, find_sources(graph, ["x", "z", "y"])))


@pytest.mark.parametrize("name", DERIVED)
@settings(max_examples=25, deadline=None)
@given(
    x=st.lists(st.floats(-7e4, 7e4, width=32), min_size=1, max_size=40),
    z=st.lists(st.floats(-7e4, 7e4, width=32), max_size=3),
)
def test_extremes_are_those_of_a_run(
    name: str, x: list[float], z: list[float], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("derivations") / "m.onnx"
    graph = graph_of(path, DERIVED[name])
    (found,) = derivations(graph)
    rows = {"x": 0, "z": 1, "y": 2}
    feeds = {"x": np.float32(x), "z": np.float32(z)}
    ends = np.float32(
        [[np.min(feeds[t], initial=np.inf) for t in "xz"], [np.max(feeds[t], initial=-np.inf) for t in "xz"]]
    )
    ends = np.column_stack([np.where(np.isinf(ends), np.nan, ends), np.full((2, 1), np.nan, np.float32)])
    is_plain = np.append(~(np.abs(ends[:, :2]) >= 65520).any(axis=0), True)
    counts = np.array([len(x), len(z), 0])
    derive(order_steps([found], rows), ends, counts, is_plain, np.zeros(3, np.bool_))
    assert counts[2] == sum(counts[rows[source]] for source in found.sources)
    fed = {"default": np.float32([1]), "fed": np.zeros(len(x), np.int8)}
    y = run_marked(path, ["y"], {**feeds, **fed})["y"]
    if is_plain[2]:
        np.testing.assert_array_equal(ends[:, 2], [y.min(), y.max()], strict=False)
        assert np.abs(y).max() < 65520
    else:
        assert max(map(abs, (*x, *z, *y.ravel().tolist()))) >= 65520


@pytest.mark.parametrize("name", NOT_DERIVED)
def test_what_is_not_exact_is_not_derived(tmp_path: Path, name: str) -> None:
    graph = graph_of(tmp_path / "m.onnx", NOT_DERIVED[name], opset=23)
    assert derivations(graph) == []


@pytest.mark.parametrize(
    ("bounds", "numbers"),
    [
        ({"min": 0.0, "max": 6.0}, (0, 6)),
        ({"max": 6.0}, (-float(np.finfo(np.float32).max), 6)),
        ({"min": -np.inf, "max": 6.0}, None),
        ({"min": np.nan}, None),
    ],
)
def test_a_clip_has_its_bounds_as_attributes_below_opset_11(
    bounds: dict[str, float], numbers: tuple[float, float] | None, tmp_path: Path
) -> None:
    made = [node("Clip", ["x"], ["y"], **bounds)]
    graph = save_model(tmp_path / "m.onnx", made, [value_info("x", dims=["n"])], [value_info("y")], opset=9)
    assert [one.numbers for one in derivations(graph)] == ([] if numbers is None else [numbers])


@pytest.mark.parametrize("stored", [{"raw_data": b"\xff"}, {"int32_data": [-1]}, {"int32_data": [255]}])
def test_a_zero_point_is_read_as_onnx_runtime_reads_it(stored: dict[str, Any], tmp_path: Path) -> None:
    """Of 32 bits that hold more than the type, the lowest eight."""
    zero = TensorProto(name="zero", data_type=TensorProto.INT8, **stored)
    made = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ]
    held = [zero, numpy_helper.from_array(np.float32(0.5), "step")]
    graph = save_model(tmp_path / "m.onnx", made, [value_info("x", dims=["n"])], [value_info("y")], held)
    (one,) = derivations(graph)
    assert one.numbers == (0.5, -127, 128, 0, 0.5)
    assert run_marked(graph.path, ["y"], {"x": np.float32([-100, 100])})["y"].tolist() == [-63.5, 64]


def test_quantised_weights_of_a_constant_node_are_not_derived(tmp_path: Path) -> None:
    """It reads nothing, of which the type was asked."""
    weights = numpy_helper.from_array(np.int8([1, -2]))
    made = [
        node("Constant", [], ["q"], value=weights),
        node("DequantizeLinear", ["q", "step"], ["w"]),
        node("Mul", ["x", "w"], ["y"]),
    ]
    held = [numpy_helper.from_array(np.float32(0.5), "step")]
    graph = save_model(tmp_path / "m.onnx", made, [value_info("x", dims=["n"])], [value_info("y")], held)
    assert list(find_derivations(graph, find_sources(graph, ["x", "w"]))) == []


def test_other_types_than_float_are_not_derived(tmp_path: Path) -> None:
    made = [node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Relu", ["h"], ["y"])]
    outputs = [value_info("y", TensorProto.FLOAT16)]
    graph = save_model(tmp_path / "m.onnx", made, [value_info("x", dims=["n"])], outputs)
    assert list(find_derivations(graph, find_sources(graph, ["x", "h", "y"]))) == []


def test_what_overflows_or_turns_to_nan_is_not_plain() -> None:
    ends = np.float32([[-1, np.nan, np.nan], [1, np.nan, np.nan]])
    is_plain = np.array([True, True, True])
    made = [
        Derivation("large", ("x",), lambda values, numbers: values * numbers[0], (7e4,)),
        Derivation("none", ("x",), lambda values, numbers: np.sqrt(values)),
    ]
    steps, has_nan = order_steps(made, {"x": 0, "large": 1, "none": 2}), np.zeros(3, np.bool_)
    derive(steps, ends, np.ones(3, np.int64), is_plain, has_nan)
    assert is_plain.tolist() == [True, False, False]


@pytest.mark.parametrize("added", [20.0, -20.0])
@pytest.mark.parametrize(("largest", "is_within"), [(65499.0, True), (65500.0, False)])
def test_what_fp16_makes_infinity_of_is_not_plain(added: float, largest: float, is_within: bool) -> None:
    """65520 itself, of either sign: it is to be counted."""
    value = float(np.copysign(largest, added))
    ends, is_plain = np.float32([[value, np.nan], [value, np.nan]]), np.array([True, False])
    made = Derivation("y", ("x",), lambda values, numbers: values + numbers[0], (added,))
    derive(order_steps([made], {"x": 0, "y": 1}), ends, np.ones(2, np.int64), is_plain, np.zeros(2, np.bool_))
    assert ends[0, 1] == value + added
    assert is_plain[1] == is_within


def test_of_quotients_that_an_int32_does_not_hold_nothing_is_told(tmp_path: Path) -> None:
    """CUDA's kernel makes another number of them than the CPU's."""
    graph = graph_of(tmp_path / "m.onnx", node("DequantizeLinear", ["fine", "third"], ["y"]))
    steps = order_steps(derivations(graph), {"x": 0, "y": 1})
    for largest, is_told in ((64000.0, True), (65000.0, False)):
        ends, is_plain = np.float32([[0, 0], [largest, 0]]), np.array([True, False])
        derive(steps, ends, np.array([2, 0]), is_plain, np.zeros(2, np.bool_))
        assert is_plain[1] == is_told


def test_what_can_be_made_at_once_is_one_step() -> None:
    """Each of its own sources, numbers and guard; what is made of another comes behind it."""

    def scale(values: Values, numbers: Values) -> Values:
        return values * numbers[0]

    def keep(values: Values, numbers: Values) -> Values:
        return values

    made = [
        Derivation("a", ("x",), scale, (2.0,)),
        Derivation("b", ("x", "z"), keep, element_count=7),
        Derivation("c", ("z",), scale, (-3.0,), guard="unsafe"),
        Derivation("d", ("a", "c"), keep),
        Derivation("e", ("d",), scale, (0.5,)),
    ]
    row_of = {name: row for row, name in enumerate(["x", "z", "unsafe", "a", "b", "c", "d", "e"])}
    steps = order_steps(made, row_of)
    assert [one.rows.tolist() for one in steps] == [[3, 5], [4], [6], [7]]
    ends = np.full((2, 8), np.nan, np.float32)
    ends[:, :2] = [[-1, 2], [4, 3]]
    counts, is_plain = np.array([3, 2, 1, 0, 0, 0, 0, 0]), np.array([True, True, False, *[False] * 5])
    derive(steps, ends, counts, is_plain, np.arange(8) == row_of["unsafe"])
    assert ends[:, 3:].T.tolist() == [[-2, 8], [-1, 4], [-9, -6], [-9, 8], [-4.5, 4]]
    assert counts[3:].tolist() == [3, 7, 2, 5, 5]
    assert is_plain[3:].tolist() == [True, True, False, False, False]


def test_an_empty_source_tells_nothing_of_what_is_made_of_others_too() -> None:
    made = [Derivation("y", ("x", "empty"), lambda values, numbers: values)]
    ends = np.float32([[-1, np.nan, 0], [1, np.nan, 0]])
    counts, is_plain = np.array([3, 0, 9]), np.array([True, True, False])
    derive(order_steps(made, {"x": 0, "empty": 1, "y": 2}), ends, counts, is_plain, np.zeros(3, np.bool_))
    assert (ends[:, 2].tolist(), counts[2], is_plain[2]) == ([-1, 1], 3, True)


_COUNTS = {
    **dict.fromkeys(["Concat", "Neg", "Clip"], ()),
    **dict.fromkeys(
        ["Clip below", "Clip above", "Clip at the largest"], (65520,)
    ),  # an infinity becomes the largest float
    **dict.fromkeys(["Relu", "Max", "Min"], (65520, np.inf)),
}
"""Over which limits there must be values on one side alone, for it to be told of how many of them are left."""
_COUNTED = st.lists(
    st.sampled_from([0.0, 1.0, -3.0, 65504.0, 65519.0, 65520.0, -65520.0, -7e4, np.inf, -np.inf, np.nan]),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(x=_COUNTED, z=_COUNTED, name=st.sampled_from(sorted(_COUNTS)), is_known=st.booleans())
def test_what_is_counted_in_the_sources_is_counted_in_what_is_made_of_them(
    x: list[float], z: list[float], name: str, is_known: bool
) -> None:
    """Or nothing is told: of what a Clip leaves of a NaN, and where both sides are out of range, of how many nobody knows."""
    made = DERIVED[name]
    given = {"x": np.float32(x), "z": np.float32(z)}
    rows = {"x": 0, "z": 1, "y": 2}
    with TemporaryDirectory() as folder:
        graph = graph_of(Path(folder) / "m.onnx", made)
        (one,) = find_derivations(graph, find_sources(graph, ["x", "z", "y"]))
        fed = {"default": np.float32([1]), "fed": np.zeros(len(x), np.int8)}
        expected = run_marked(graph.path, ["y"], {**given, **fed})["y"]
    seen = no_summaries(3)
    seen[:2] = [summarize(given["x"]), summarize(given["z"])]
    steps = order_steps([one], rows)
    ends = np.stack([seen["min"], seen["max"]]).astype(np.float32)
    derive(steps, ends, seen["element_count"], np.full(3, False), np.full(3, False))
    is_counted = np.array([True, True, False])
    highs = [_count_high(values) if is_known else np.nan for values in given.values()]
    high = np.array([*highs, np.nan])
    tally(steps, seen, high, is_counted)
    limits = [limit for limit in _COUNTS[name] if limit == np.inf or not is_known]
    is_one_sided = all(min(x) > -limit or max(x) < limit for limit in limits)
    can_tell = name in ("Concat", "Neg") or (not np.isnan(x).any() and is_one_sided)
    assert is_counted[2] == can_tell
    if can_tell and is_known:
        assert high[2] == _count_high(expected)
    if can_tell and not np.isnan(expected).all():
        np.testing.assert_array_equal(ends[:, 2], [np.nanmin(expected), np.nanmax(expected)])
    for field in ("nan_count", "inf_count", "over_fp16_count"):
        assert seen[field][2] == (summarize(expected)[field] if can_tell else 0)


def _count_high(values: Array) -> int:
    return int((values >= 65520).sum())


def test_of_a_source_that_is_not_counted_nothing_is_told(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "m.onnx", DERIVED["Concat"])
    (one,) = find_derivations(graph, find_sources(graph, ["x", "z", "y"]))
    seen = no_summaries(3)
    seen["over_fp16_count"][:2] = 1
    is_counted = np.array([True, False, False])
    tally(order_steps([one], {"x": 0, "z": 1, "y": 2}), seen, np.full(3, np.nan), is_counted)
    assert not is_counted[2]
    assert seen["over_fp16_count"][2] == 0


@pytest.mark.parametrize("opset", [10, 12, 22])
@pytest.mark.parametrize(
    ("op", "size", "attributes"),
    [
        ("MaxPool", 9, {"kernel_shape": [2], "strides": [3], "ceil_mode": 1}),
        ("AveragePool", 11, {"kernel_shape": [2], "strides": [3], "pads": [0, 1], "ceil_mode": 1}),
        ("AveragePool", 8, {"kernel_shape": [1], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}),
        ("MaxPool", 10, {"kernel_shape": [3], "strides": [4], "auto_pad": "SAME_LOWER", "dilations": [2]}),
    ],
)
def test_elements_behind_a_pool_are_those_that_onnx_runtime_makes(
    op: str, size: int, attributes: dict[str, Any], opset: int, tmp_path: Path
) -> None:
    """Where ONNX's own inference says another number, of fixed dimensions too."""
    nodes = [node(op, ["x"], ["p"], **attributes), node("Relu", ["p"], ["y"]), node("Neg", ["p"], ["z"])]
    graph = save(make_model(nodes, {"x": [1, 1, size]}, "y z", opset=opset), tmp_path)
    x = np.random.default_rng(0).normal(size=(1, 1, size)).astype(np.float32)
    scan_each_way(graph, InMemoryCalibration(({"x": x},)))

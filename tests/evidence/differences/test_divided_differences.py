"""Differences of nearly equal numbers that are divided by, and what is divided by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.differences.divided_differences import find_divided
from overflow_fixer.evidence.differences.small_differences import SmallLoss
from overflow_fixer.evidence.paths import find_ways
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

X = np.random.default_rng(15).normal(size=(4, 64)).astype(np.float32)
EPSILON = {"eps": scalar(1e-5)}
VARIANCE = [
    node("Mul", "x x", "q"),
    node("ReduceMean", "q", "mq", axes=[-1]),
    node("ReduceMean", "x", "mu", axes=[-1]),
    node("Mul", "mu mu", "m2"),
    node("Sub", "mq m2", "v"),
    node("Add", "v eps", "ve"),
]
NORMALISED = [*VARIANCE, node("Sqrt", "ve", "sd"), node("Sub", "x mu", "xm"), node("Div", "xm sd", "y")]
MINMAX = [
    node("ReduceMin", "x", "mn", axes=[-1]),
    node("ReduceMax", "x", "mx", axes=[-1]),
    node("Sub", "x mn", "a"),
    node("Sub", "mx mn", "d"),
]


def _find(model: onnx.ModelProto, tmp_path: Path, *batches: np.ndarray) -> dict[str, SmallLoss]:
    """By the difference's tensor."""
    graph, ranges = scan(model, tmp_path, *({"x": batch} for batch in batches))
    return {one.difference.node.outputs[0]: one for one in find_divided(graph, ranges, {})}


def _labels(found: SmallLoss) -> set[str]:
    return {one.label for one in found.nodes}


def _measure(tmp_path: Path, batch: np.ndarray, fp32_nodes: set[str]) -> float:
    """SNR in dB of y, where the nodes that write these tensors are FP32."""
    return measure_snr_db(tmp_path / "model.onnx", {"x": batch}, fp32_nodes)


@pytest.mark.parametrize(
    ("nodes", "batch", "expected"),
    [
        (NORMALISED, X * 0.05 + 8, {"v", "xm"}),
        (NORMALISED, X * 0.1 + 12, {"v", "xm"}),
        ([*VARIANCE, node("Sqrt", "ve", "sd"), node("Div", "x sd", "y")], X * 0.3 + 30, {"v"}),
        ([*MINMAX, node("Div", "a d", "y")], X * 0.1 + 800, {"a", "d"}),
        ([*MINMAX, node("Add", "d eps", "de"), node("Div", "a de", "y")], X * 0.1 + 800, {"a", "d"}),
    ],
)
def test_what_is_found_comes_out_right(
    nodes: list[onnx.NodeProto], batch: np.ndarray, expected: set[str], tmp_path: Path
) -> None:
    found = _find(make_model(nodes, {"x": [None, 64]}, "y", EPSILON), tmp_path, X, batch)
    assert found.keys() == expected
    assert {one.difference.batch for one in found.values()} == {1}
    kept = {name for one in found.values() for at in one.nodes for name in at.outputs}
    assert not _measure(tmp_path, batch, set()) > 5
    assert _measure(tmp_path, batch, kept) > 60
    differences = {one.difference.node.outputs[0] for one in found.values()}
    assert all(not _measure(tmp_path, batch, kept - {name}) > 30.5 for name in differences)


@pytest.mark.parametrize("std", [1, 0.3])
def test_a_variance_that_is_not_small_is_well(std: float, tmp_path: Path) -> None:
    model = make_model(NORMALISED, {"x": [None, 64]}, "y", EPSILON)
    assert _find(model, tmp_path, X * std + 1) == {}
    assert _measure(tmp_path, X * std + 1, set()) > 40


DEVIATION = [node("ReduceMean", "x", "mu", axes=[-1]), node("Sub", "x mu", "d"), node("Mul", "d d", "q")]
TWINS = {
    "LayerNorm": [
        *DEVIATION,
        node("ReduceMean", "q", "v", axes=[-1]),
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "d sd", "y"),
    ],
    "batch norm in training": [
        node("ReduceMean", "x", "mu", axes=[0]),
        node("Sub", "x mu", "d"),
        node("Mul", "d d", "q"),
        node("ReduceMean", "q", "v", axes=[0]),
        node("Add", "v eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Reciprocal", "sd", "r"),
        node("Mul", "d r", "y"),
    ],
    "softmax": [
        node("ReduceMax", "x", "mx", axes=[-1]),
        node("Sub", "x mx", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e last", "s"),
        node("Div", "e s", "y"),
    ],
    "cosine similarity": [
        node("Neg", "x", "b"),
        node("ReduceL2", "x", "nx", axes=[-1]),
        node("ReduceL2", "b", "nb", axes=[-1]),
        node("Mul", "nx nb", "n"),
        node("Mul", "x b", "xb"),
        node("Div", "xb n", "y"),
    ],
    "instance norm": [node("Unsqueeze", "x last", "u"), node("InstanceNormalization", "u four four", "y")],
    "residual": [node("Mul", "x near", "b"), node("Sub", "x b", "y")],
}


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("scale", [1, 100])
def test_healthy_networks_have_none(name: str, scale: float, tmp_path: Path) -> None:
    constants = EPSILON | {"last": ints(-1), "four": np.ones(64, np.float32), "near": scalar(1.0001)}
    model = make_model(TWINS[name], {"x": [None, 64]}, "y", constants)
    assert _find(model, tmp_path, X * scale, X[:2] * scale + 0.5) == {}


@pytest.mark.parametrize(
    "op",
    """Sqrt Mul Abs Neg Relu Sin Tan Asin Atan Sinh Asinh Atanh Tanh Erf ReduceSum ReduceMean ReduceL1 ReduceL2
    ReduceSumSquare ReduceMax ReduceMin TopK MaxPool GlobalMaxPool AveragePool GlobalAveragePool""".split(),
)
def test_a_function_that_is_zero_at_zero_is_followed(op: str, tmp_path: Path) -> None:
    second = {"Mul": "half", "TopK": "two"}.get(op, "")
    written = "b places" if op == "TopK" else "b"
    attributes = {"kernel_shape": [2, 2]} if op in ("MaxPool", "AveragePool") else {}
    nodes = [
        node("Sub", "x far", "d"),
        node(op, f"d {second}", written, **attributes),
        node("Reciprocal", "b", "y"),
    ]
    constants = {"far": scalar(600), "half": scalar(0.5), "two": ints(2)}
    model = make_model(nodes, {"x": [1, 1, 4, 4]}, "y", constants)
    near = np.random.default_rng(8).uniform(600.01, 600.3, (1, 1, 4, 4)).astype(np.float32)
    assert _find(model, tmp_path, near).keys() == {"d"}


NEAR = floats(600.25, 600.3, 600.5)
"""Less their least: 0, 0.05 and 0.25."""
CONSTANTS = {
    "one": scalar(1),
    "quarter": scalar(0.25),
    "more": scalar(0.2501),
    "zero": scalar(0),
    "minus": scalar(-0.5),
    "below": scalar(-3),
    "half": scalar(0.5),
    "tiny": scalar(1e-4),
    "column": ints(3, 1),
    "first": ints(0),
    "quarter1": floats(0.25),
    "many": floats(0.001, 0.2, 0.25),
    "steps": scalar(8),
    "over": scalar(8.01),
}


def _find_behind(nodes: list[onnx.NodeProto], tmp_path: Path, opset: int = 17) -> SmallLoss | None:
    """The difference d of x and its least, if it is found, in a model of `nodes` that make y of it."""
    difference = [node("ReduceMin", "x", "least"), node("Sub", "x least", "d")]
    model = make_model([*difference, *nodes], {"x": [3]}, "y", CONSTANTS, opset)
    return _find(model, tmp_path, NEAR).get("d")


@pytest.mark.parametrize(
    ("op", "inputs", "verb"),
    [
        ("Div", "one d", "divides by it"),
        ("Div", "x d", "divides by it"),
        ("Reciprocal", "d", "divides by it"),
        ("Log", "d", "takes its logarithm"),
        ("Pow", "d minus", "divides by it"),
        ("Pow", "d half", None),
        ("Div", "d x", None),
        ("Sqrt", "d", None),
        ("Exp", "d", None),
        ("Mul", "d x", None),
        ("Add", "d x", None),
    ],
)
def test_what_divides(op: str, inputs: str, verb: str | None, tmp_path: Path) -> None:
    found = _find_behind([node(op, inputs, "y")], tmp_path)
    assert (found and found.made) == (verb and f"{op} {op}_y {verb}")


@pytest.mark.parametrize(
    ("op", "inputs", "is_found"),
    [
        ("Sqrt", "d", True),
        ("Relu", "d", True),
        ("Abs", "d", True),
        ("Neg", "d", True),
        ("Mul", "x d", True),
        ("Mul", "d d", True),
        ("Div", "d x", True),
        ("Pow", "d half", True),
        ("Reshape", "d column", True),
        ("Unsqueeze", "d first", True),
        ("ReduceMean", "d", True),
        ("ReduceL2", "d", True),
        ("Clip", "d", True),
        ("Clip", "d quarter", True),
        ("Clip", "d more", False),
        ("Clip", "d - one", True),
        ("Clip", "d below", True),
        ("Max", "d zero quarter", True),
        ("Max", "more d", False),
        ("Add", "quarter d", True),
        ("Add", "d many", True),
        ("Add", "d steps", True),
        ("Add", "d over", False),
        ("Add", "d x", False),
        ("Sum", "d quarter zero", True),
        ("Sum", "zero steps d", True),
        ("Sum", "d over zero", False),
        ("Add", "d d", True),
        ("Concat", "quarter1 d", True),
        ("Concat", "d x", False),
        ("Min", "d one", False),
        ("Sigmoid", "d", False),
    ],
)
def test_what_is_small_with_it(op: str, inputs: str, is_found: bool, tmp_path: Path) -> None:
    """The largest of d is 1/4; what is put beside it or bounds it must not be over that, what is added not over 16 steps at 600."""
    found = _find_behind(
        [node(op, inputs, "m", **({"axis": 0} if op == "Concat" else {})), node("Reciprocal", "m", "y")],
        tmp_path,
    )
    assert (found is not None) is is_found


@pytest.mark.parametrize(("bound", "is_found"), [(0.25, True), (0.251, False), (None, True)])
def test_bounds_as_attributes(bound: float | None, is_found: bool, tmp_path: Path) -> None:
    bounds = {} if bound is None else {"min": bound}
    nodes = [node("Clip", "d", "m", **bounds), node("Reciprocal", "m", "y")]
    assert (_find_behind(nodes, tmp_path, opset=10) is not None) is is_found


@pytest.mark.parametrize(("other", "is_found"), [(0.2, True), (0.3, False)])
def test_a_distance_is_lost_where_its_larger_side_is(other: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "d d", "q"),
        node("Mul", "side side", "s"),
        node("Add", "q s", "t"),
        node("Sqrt", "t", "m"),
        node("Div", "one m", "y"),
    ]
    difference = [node("ReduceMin", "x", "least"), node("Sub", "x least", "d")]
    model = make_model([*difference, *nodes], {"x": [3], "side": [1]}, "y", {"one": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": NEAR, "side": floats(other)})
    assert bool(list(find_divided(graph, ranges, {}))) is is_found


def test_a_square_is_guarded_by_less(tmp_path: Path) -> None:
    """A guard counts beside what it is added to: 1/4 is over the largest square, 1/16."""
    nodes = [node("Mul", "d d", "q"), node("Add", "q quarter", "m"), node("Reciprocal", "m", "y")]
    assert _find_behind(nodes, tmp_path) is None


def test_an_epsilon_of_few_steps_hides_no_variance(tmp_path: Path) -> None:
    """The epsilon is 1/4000, a variance at most 1/20000, and FP16's steps at E[x²] are 1/1024."""
    nodes = [*VARIANCE[:-1], node("Relu", "v", "r"), node("Add", "r eps", "ve"), node("Sqrt", "ve", "sd")]
    nodes += [node("Sub", "x mu", "xm"), node("Div", "xm sd", "y")]
    batch = X * 0.006 + 1
    found = _find(make_model(nodes, {"x": [None, 64]}, "y", {"eps": scalar(1 / 4000)}), tmp_path, batch)
    assert found.keys() == {"v", "xm"}
    assert not _measure(tmp_path, batch, set()) > 15
    assert (
        _measure(tmp_path, batch, {name for one in found.values() for at in one.nodes for name in at.outputs})
        > 60
    )


def test_the_way_stays_where_it_is_below_the_normal_numbers(tmp_path: Path) -> None:
    """1/4 times 1e-4 is 2.5e-5, and FP16's least normal number 6.1e-5; 1/4 itself is well in FP16, once it is right."""
    tiny = _find_behind([node("Mul", "d tiny", "m"), node("Reciprocal", "m", "y")], tmp_path)
    well = _find_behind([node("Mul", "d half", "m"), node("Reciprocal", "m", "y")], tmp_path)
    assert tiny is not None
    assert well is not None
    assert _labels(tiny) == {"ReduceMin_least", "Sub_d", "Mul_m", "Reciprocal_y"}
    assert _labels(well) == {"ReduceMin_least", "Sub_d"}


def test_what_computes_the_terms_stays_as_far_as_its_rounding_matters(tmp_path: Path) -> None:
    """What FP16 takes from 6.0025 is under a 64th of the difference, 1/4; not so of 600.25, and it holds the least, 606."""
    nodes = [
        node("Mul", "x one", "part"),
        node("Mul", "x hundred", "large"),
        node("Add", "part large", "sum"),
        node("ReduceMin", "sum", "least"),
        node("Sub", "sum least", "d"),
        node("Div", "one d", "y"),
    ]
    model = make_model(nodes, {"x": [3]}, "y", {"one": scalar(1), "hundred": scalar(100)})
    found = _find(model, tmp_path, floats(6, 6.001, 6.0025))["d"]
    assert _labels(found) == {"Mul_large", "Add_sum", "Sub_d"}


def test_a_guard_holds_in_the_batch_where_nothing_is_left(tmp_path: Path) -> None:
    """Of rows that do not vary, rounding leaves 1e-4, which the guard of 0.01 is over; another batch shows the loss."""
    nodes = [*MINMAX, node("Add", "d guard", "de"), node("Div", "a de", "y")]
    model = make_model(nodes, {"x": [None, 64]}, "y", {"guard": scalar(0.01)})
    found = _find(model, tmp_path, X * 0 + 800 + np.arange(64, dtype=np.float32) * 1e-6, X * 0.1 + 800)
    assert {one.difference.batch for one in found.values()} == {1}
    assert found.keys() == {"a", "d"}


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([node("Reciprocal", "d", "r"), node("Mul", "a r", "y")], True),
        ([node("Div", "one d", "r"), node("Mul", "r a", "y")], True),
        (
            [
                node("Pow", "d minus", "r"),
                node("Mul", "gain r", "g"),
                node("Squeeze", "g last", "s"),
                node("Unsqueeze", "s last", "u"),
                node("Mul", "a u", "y"),
            ],
            True,
        ),
        ([node("Transpose", "a", "t"), node("Transpose", "t", "t2"), node("Div", "t2 d", "y")], True),
        ([node("Log", "d", "r"), node("Mul", "a r", "y")], False),
        ([node("Reciprocal", "d", "r"), node("Add", "a r", "y")], False),
        ([node("Reciprocal", "d", "r"), node("Add", "r one", "s"), node("Mul", "a s", "y")], False),
    ],
)
def test_what_is_divided_by_as_little(nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    constants = {"one": scalar(1), "minus": scalar(-1), "gain": scalar(3), "last": ints(-1)}
    model = make_model([*MINMAX, *nodes], {"x": [None, 64]}, "y", constants)
    found = _find(model, tmp_path, X * 0.1 + 800)
    assert "d" in found
    assert ("a" in found) is is_found


@pytest.mark.parametrize(("offset", "is_found"), [(799.5, True), (700, False)])
def test_what_is_divided_is_lost_up_to_64_steps(offset: float, is_found: bool, tmp_path: Path) -> None:
    """64 steps are 32 from 512 up to 1024."""
    nodes = [
        node("Mul", "offset one", "o"),
        node("Sub", "x o", "a"),
        *MINMAX[:2],
        MINMAX[3],
        node("Div", "a d", "y"),
    ]
    model = make_model(nodes, {"x": [None, 64], "offset": [1]}, "y", {"one": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": X * 0.1 + 800, "offset": floats(offset + 0.1)})
    found = {one.difference.node.outputs[0] for one in find_divided(graph, ranges, {})}
    assert found == ({"a", "d"} if is_found else {"d"})


def test_one_that_divides_itself_is_told_once(tmp_path: Path) -> None:
    nodes = [node("ReduceL2", "d", "n"), node("Div", "d n", "y")]
    found = _find_behind(nodes, tmp_path)
    assert found is not None
    assert found.made == "Div Div_y divides by it"


STANDARDISED = [
    node("Sub", "x center", "d"),
    node("Mul", "d d", "q"),
    node("ReduceMean", "q", "v", axes=[-1]),
    node("Sqrt", "v", "sd"),
    node("Div", "d sd", "y"),
]


@pytest.mark.parametrize("center", [scalar(64), np.full(64, 64, np.float32)])
def test_a_constant_mean_counts_as_any_other(center: np.ndarray, tmp_path: Path) -> None:
    model = make_model([node("Abs", "x0", "x"), *STANDARDISED], {"x0": [4, 64]}, "y", {"center": center})
    graph, ranges = scan(model, tmp_path, {"x0": X * 0.02 + 64})
    (found,) = find_divided(graph, ranges, {})
    assert _labels(found) >= {"Abs_x", "Sub_d"}


@pytest.mark.parametrize("slots", ["c v one", "c one v"])
def test_a_where_that_puts_a_number_in_place_of_zero_guards_nothing_else(slots: str, tmp_path: Path) -> None:
    nodes = [*VARIANCE[:5], node("Greater", "v eps", "c"), node("Where", slots, "w"), node("Sqrt", "w", "sd")]
    constants = {"eps": scalar(-1e9 if slots == "c v one" else 1e9), "one": scalar(1)}
    model = make_model([*nodes, node("Div", "x sd", "y")], {"x": [4, 64]}, "y", constants)
    assert "v" in _find(model, tmp_path, X * 0.05 + 8)


def test_what_is_divided_may_be_scaled_before(tmp_path: Path) -> None:
    nodes = [*VARIANCE, node("Sqrt", "ve", "sd"), node("Sub", "x mu", "xm"), node("Mul", "xm gamma", "g")]
    constants = {**EPSILON, "gamma": np.linspace(0.5, 2, 64, dtype=np.float32)}
    model = make_model([*nodes, node("Div", "g sd", "y")], {"x": [4, 64]}, "y", constants)
    assert set(_find(model, tmp_path, X * 0.05 + 8)) == {"v", "xm"}


POSTERIOR = [
    node("Gather", "steps t", "a"),
    node("Gather", "before t", "b"),
    node("Div", "a b", "r"),
    node("Sub", "one r", "beta"),
    node("Sub", "one a", "d"),
    node("Sub", "one b", "g"),
    node("Sqrt", "b", "sb"),
    node("Sqrt", "r", "sr"),
    node("Mul", "sb beta", "u"),
    node("Div", "u d", "cu"),
    node("Mul", "cu x0", "y0"),
    node("Mul", "sr g", "v"),
    node("Div", "v d", "cv"),
    node("Mul", "cv x", "y1"),
    node("Add", "y0 y1", "y"),
]


def test_what_is_divided_may_be_a_factor(tmp_path: Path) -> None:
    """The mean of a diffusion's posterior, √ᾱ β / (1 − ᾱ) x0 + √α (1 − ᾱ') / (1 − ᾱ) x, in one of its last steps."""
    steps = np.cumprod(1 - np.linspace(0.0003, 0.02, 100)).astype(np.float32)
    constants = {"steps": steps, "before": np.append(np.float32(1), steps[:-1]), "one": scalar(1)}
    inputs = {"x0": [16], "x": [16], "t": (TensorProto.INT64, [1])}
    model = make_model(POSTERIOR, inputs, "y", constants)
    feeds = {"x0": X[0, :16], "x": X[1, :16], "t": ints(2)}
    graph, ranges = scan(model, tmp_path, feeds)
    found = {one.difference.node.outputs[0]: one for one in find_divided(graph, ranges, {})}
    assert found.keys() == {"d", "beta", "g"}
    kept = {name for one in found.values() for at in one.nodes for name in at.outputs}
    for fp32_nodes, least, most in ((kept - {"beta", "g"}, 0, 30), (kept, 60, 90)):
        assert least < measure_snr_db(tmp_path / "model.onnx", feeds, fp32_nodes) < most


def test_integers_on_the_way_are_not_small(tmp_path: Path) -> None:
    """The indices of a MaxPool."""
    pool = onnx.helper.make_node("MaxPool", ["d4"], ["p", "i"], name="MaxPool_p", kernel_shape=[1, 1])
    nodes = [
        *MINMAX,
        node("Unsqueeze", "d at", "d4"),
        pool,
        node("Squeeze", "p at", "s"),
        node("Div", "a s", "y"),
    ]
    model = make_model(nodes, {"x": [4, 64]}, "y", {"at": ints(0, 1)}, opset=17)
    found = _find(model, tmp_path, X * 0.1 + 800)
    assert "MaxPool_p" not in _labels(found["d"])


def test_many_batches_are_not_all_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(graph: Graph, tensor: str, *known: Any) -> tuple[Node, ...]:
        asked.append(tensor)
        return find_ways(graph, tensor, *known)

    monkeypatch.setattr("overflow_fixer.evidence.differences.divided_differences.find_ways", note)
    model = make_model(
        [*MINMAX, node("Add", "d far", "e"), node("Div", "a e", "y")], {"x": [4, 64]}, "y", {"far": scalar(9)}
    )
    assert _find(model, tmp_path, *[X * 0.1 + 800] * 40) == {}
    assert asked == ["d"] * 8


def test_no_ways_are_followed_from_what_nothing_divides_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long chain of logarithms near 1 each would go through all behind it."""

    def follow(*args: object) -> tuple[Node, ...]:
        raise AssertionError("Expected no way to be followed.")

    monkeypatch.setattr("overflow_fixer.evidence.differences.divided_differences.find_ways", follow)
    nodes = [node("Log", "x", "m0")]
    nodes += [
        one for i in range(9) for one in (node("Log", "x", f"l{i}"), node("Max", f"m{i} l{i}", f"m{i + 1}"))
    ]
    model = make_model([*nodes, node("Exp", "m9", "y")], {"x": [4]}, "y")
    assert not _find(model, tmp_path, np.asarray([1.001, 1.0005, 1.002, 1.0015], np.float32))

"""Constants that FP16 rounds to zero, where zero matters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_UNDERFLOW
from overflow_fixer.records import PlanPolicy
from overflow_fixer.rules.vanishing_constant import find_vanishing_constants

EPS = scalar(1e-12)
X = np.asarray([[0, 0, 0], [3, 4, 5]], np.float32)
"""A row of zeros, which an epsilon guards."""


def _pins(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], opset: int = 17) -> list[str]:
    model = make_model(nodes, {"x": [2, 3]}, nodes[-1].output[0], constants, opset)
    graph, ranges = scan(model, folder, {"x": X})
    return pinned_by(find_vanishing_constants, graph, ranges)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("Sqrt", "a"), ("Log", "a"), ("Reciprocal", "a"), ("Div", "x a"), ("Pow", "a half"), ("Pow", "a live")],
)
@pytest.mark.parametrize("guard", ["Add", "Max", "Sum", "Sub"])
def test_an_epsilon_is_pinned_with_what_it_guards(guard: str, op: str, inputs: str, tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "live"),
        node(guard, "x eps", "a"),
        node(op, inputs, "b"),
        node("Tanh", "b", "y"),
    ]
    assert _pins(tmp_path, nodes, {"eps": EPS, "half": scalar(0.5)}) == [f"{guard}_a", f"{op}_b"]


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model([node("Add", "x eps", "a"), node("Log", "a", "y")], {"x": [2, 3]}, "y", {"eps": EPS})
    graph, ranges = scan(model, tmp_path, {"x": X})
    add, log = ask(find_vanishing_constants, graph, ranges)
    assert (add.node, log.node, add.tensor, add.batch) == ("Add_a", "Log_y", "eps", None)
    assert (add.value, add.limit) == (pytest.approx(1e-12), FP16_UNDERFLOW)
    assert add.reason == "eps = 1e-12 rounds to zero in FP16, so that it no longer keeps zero from Log"


@pytest.mark.parametrize(
    ("eps", "vanishes"),
    [
        (1e-5, False),
        (6e-8, False),
        (float(np.nextafter(np.float32(2**-25), np.float32(1))), False),
        (2**-25, True),
        (-(2**-25), True),
        (1e-45, True),
        (0, False),
    ],
)
def test_vanishing_ends_where_fp16_rounds_up(eps: float, vanishes: bool, tmp_path: Path) -> None:
    assert bool(np.float32(eps).astype(np.float16) == 0 and eps != 0) == vanishes
    pins = _pins(tmp_path, [node("Add", "x eps", "a"), node("Log", "a", "y")], {"eps": scalar(eps)})
    assert pins == (["Add_a", "Log_y"] if vanishes else [])


LEAST = FP16_MIN_NORMAL
BELOW = float(np.nextafter(np.float32(LEAST), np.float32(0)))


@pytest.mark.parametrize(
    ("values", "is_pinned"),
    [
        ([LEAST, 1], False),
        ([BELOW, 1], True),
        ([0, 1], True),
        ([-LEAST, -1], False),
        ([-BELOW, -1], True),
        ([-1, 1], True),
        ([1, math.nan], True),
        ([1, math.inf], True),
        (1, False),
        (0, True),
        ([], True),
    ],
)
def test_a_guard_that_the_data_never_come_near_is_no_matter(
    values: Any, is_pinned: bool, tmp_path: Path
) -> None:
    nodes = [node("Add", "x eps", "a"), node("Div", "one a", "y")]
    model = make_model(nodes, {"x": None}, "y", {"eps": EPS, "one": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": np.asarray(values, np.float32)})
    found = ask(find_vanishing_constants, graph, ranges)
    expected = [("Add_a", "pin"), ("Div_y", "pin")] if is_pinned else [("Add_a", "none")]
    assert [(f.node, f.action) for f in found] == expected


@pytest.mark.parametrize(
    ("nodes", "rounding"),
    [
        ([node("Sub", "x z", "d")], 2.0**-10),
        ([node("Sub", "x z", "s"), node("Neg", "s", "d")], 2.0**-10),
        ([node("Add", "x z", "d")], 0),
        ([node("Neg", "z", "n"), node("Add", "x n", "d")], 2.0**-10),
        ([node("Sub", "x half", "d")], 0),
        ([node("Sub", "x z", "s"), node("Div", "s one", "d")], 2.0**-10),
        ([node("Sub", "x z", "s"), node("Mul", "s hundred", "d")], 100 * 2.0**-10),
        ([node("Sub", "x z", "s"), node("Mul", "hundred s", "d")], 100 * 2.0**-10),
        ([node("Sub", "x z", "s"), node("Abs", "s", "p"), node("Relu", "p", "d")], 2.0**-10),
        ([node("Mul", "x z", "d")], 0),
    ],
    ids=lambda given: " ".join(n.op_type for n in given) if isinstance(given, list) else "",
)
@pytest.mark.parametrize("share", [0.8, 1.25])
def test_a_difference_that_fp16_may_make_zero_is_guarded(
    nodes: list[onnx.NodeProto], rounding: float, share: float, tmp_path: Path
) -> None:
    """Of terms up to 1, whatever was measured."""
    terms = np.array([[1.0, 0.5], [0.0, 0.5]], np.float32)
    constants = {"eps": EPS, "one": scalar(1), "half": scalar(-0.5), "hundred": scalar(100)}
    nodes = [*nodes, node("Abs", "d", "m"), node("Add", "m eps", "a"), node("Log", "a", "y")]
    gain = 100 if any("hundred" in n.input for n in nodes) else 1
    terms[1] = terms[0] - np.float32(share * rounding / gain if rounding else 0.25)
    inputs = {name: [2] for name in "xz" if any(name in n.input for n in nodes)}
    feeds = {name: terms[at] for at, name in enumerate("xz") if name in inputs}
    graph, ranges = scan(make_model(nodes, inputs, "y", constants), tmp_path, feeds)
    pins = pinned_by(find_vanishing_constants, graph, ranges)
    assert ("Add_a" in pins) == (bool(rounding) and share < 1)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "s s", "d")],
        [node("Pow", "s two", "d")],
        [node("Pow", "s two", "q"), node("ReduceSum", "q axes", "d")],
        [node("Pow", "s two", "q"), node("ReduceMean", "q", "d", axes=[-1])],
        [node("Mul", "s s", "q"), node("Sqrt", "q", "d")],
    ],
    ids=lambda given: " ".join(n.op_type for n in given),
)
@pytest.mark.parametrize(("share", "is_pinned"), [(0.8, True), (1.25, False)])
def test_squares_of_such_a_difference(
    nodes: list[onnx.NodeProto], share: float, is_pinned: bool, tmp_path: Path
) -> None:
    """Of terms up to 100, of which FP16 rounds up to 0.1 away: the squares of that are 0.0095, and far over 2^-14."""
    terms = np.array([[100.0, 99.0], [0.0, 99.0]], np.float32)
    terms[1] = terms[0] - np.float32(share * 100 * 2.0**-10)
    constants = {"eps": EPS, "two": scalar(2), "axes": ints(-1)}
    nodes = [node("Sub", "x z", "s"), *nodes, node("Add", "d eps", "a"), node("Log", "a", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": [2], "z": [2]}, "y", constants), tmp_path, {"x": terms[0], "z": terms[1]}
    )
    assert ("Add_a" in pinned_by(find_vanishing_constants, graph, ranges)) == is_pinned


def test_a_high_power_of_a_difference_that_is_rounded_away_as_a_whole(tmp_path: Path) -> None:
    """Of terms of 6e4, of which FP16 rounds up to 58 away, and a difference of 0.004."""
    nodes = [
        node("Sub", "x z", "s"),
        node("Pow", "s high", "p"),
        node("Add", "p eps", "a"),
        node("Log", "a", "y"),
    ]
    constants = {"eps": EPS, "high": scalar(120)}
    x = np.array([60000, 60000], np.float32)
    feeds = {"x": x, "z": np.nextafter(x, np.float32(0))}
    graph, ranges = scan(make_model(nodes, {"x": [2], "z": [2]}, "y", constants), tmp_path, feeds)
    assert "Add_a" in pinned_by(find_vanishing_constants, graph, ranges)


@pytest.mark.parametrize(
    ("guard", "inputs", "eps", "sign", "is_pinned"),
    [
        ("Sum", "x eps", 1e-12, 1, False),
        ("Sub", "x eps", 1e-12, 1, False),
        ("Sub", "eps x", 1e-12, 1, False),
        ("Max", "x eps", 1e-12, 1, False),
        ("Max", "x eps", 1e-12, -1, True),
        ("Min", "x eps", 1e-12, 1, True),
        ("Min", "x eps", -1e-12, -1, False),
        ("Clip", "x eps", 1e-12, 1, False),
        ("Clip", "x eps", 1e-12, -1, True),
        ("Clip", "x - eps", 1e-12, 1, True),
        ("Where", "is_zero eps x", 1e-12, 1, False),
        ("Where", "is_one eps x", 1e-12, 1, True),
    ],
)
def test_what_a_guard_gives_out_tells(
    guard: str, inputs: str, eps: float, sign: int, is_pinned: bool, tmp_path: Path
) -> None:
    """A bound that is chosen is zero in FP16, however large what it is chosen in place of."""
    nodes = [
        node("Equal", "x zero", "is_zero"),
        node("Equal", "x one", "is_one"),
        node(guard, inputs, "a"),
        node("Reciprocal", "a", "y"),
    ]
    constants = {"eps": scalar(eps), "zero": scalar(0), "one": scalar(1)}
    graph, ranges = scan(
        make_model(nodes, {"x": [2]}, "y", constants), tmp_path, {"x": floats(sign, sign * 2)}
    )
    pins = pinned_by(find_vanishing_constants, graph, ranges)
    assert pins == ([f"{guard}_a", "Reciprocal_y"] if is_pinned else [])


def test_the_evidence_of_a_guard_with_nothing_to_do(tmp_path: Path) -> None:
    """One batch that comes near zero is enough."""
    model = make_model([node("Add", "x eps", "a"), node("Log", "a", "y")], {"x": [2]}, "y", {"eps": EPS})
    batches = {"x": floats(0.75, 2)}, {"x": floats(0.25, 1)}, {"x": floats(0, 1)}
    graph, ranges = scan(model, tmp_path, *batches[:2])
    (found,) = ask(find_vanishing_constants, graph, ranges)
    assert (found.node, found.action, found.tensor) == ("Add_a", "none", "eps")
    assert found.reason == (
        "eps = 1e-12 rounds to zero in FP16, so that it no longer keeps zero from Log; but what it guards was never "
        "below 0.25"
    )
    graph, ranges = scan(model, tmp_path, *batches)
    assert pinned_by(find_vanishing_constants, graph, ranges) == ["Add_a", "Log_y"]


def test_one_epsilon_for_two_guards(tmp_path: Path) -> None:
    """What brings it, and what both lead to, is pinned for the one that needs it."""
    nodes = [
        node("Unsqueeze", "eps axes", "e"),
        node("Add", "x e", "idle"),
        node("Mul", "x zero", "none"),
        node("Add", "none e", "busy"),
        node("Mul", "idle busy", "product"),
        node("Reciprocal", "product", "y"),
    ]
    constants = {"eps": EPS, "axes": ints(0), "zero": scalar(0)}
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", constants), tmp_path, {"x": floats(1, 2)})
    pins = pinned_by(find_vanishing_constants, graph, ranges)
    assert pins == ["Unsqueeze_e", "Add_busy", "Mul_product", "Reciprocal_y"]
    told = [f for f in ask(find_vanishing_constants, graph, ranges) if f.action == "none"]
    assert [f.node for f in told] == ["Add_idle"]


def test_a_constant_that_divides_or_multiplies_is_judged_as_before(tmp_path: Path) -> None:
    nodes = [node("Div", "x eps", "a"), node("Mul", "a eps", "y")]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", {"eps": EPS}), tmp_path, {"x": floats(0.75, 2)})
    assert pinned_by(find_vanishing_constants, graph, ranges) == ["Div_a", "Mul_y"]


def test_a_constant_without_elements(tmp_path: Path) -> None:
    nodes = [node("Add", "x eps", "a"), node("Log", "a", "y")]
    model = make_model(nodes, {"x": [0]}, "y", {"eps": floats()})
    graph, ranges = scan(model, tmp_path, {"x": floats()})
    assert ask(find_vanishing_constants, graph, ranges) == []


def test_without_a_sensitive_reader_it_is_no_matter(tmp_path: Path) -> None:
    nodes = [
        node("Add", "x eps", "a"),
        node("Div", "a x", "b"),
        node("Pow", "b two", "d"),
        node("Relu", "d", "y"),
    ]
    assert _pins(tmp_path, nodes, {"eps": EPS, "two": scalar(2)}) == []


def test_through_moves_on_both_sides(tmp_path: Path) -> None:
    nodes = [
        node("Unsqueeze", "eps axes", "e1"),
        node("Expand", "e1 shape", "e2"),
        node("Add", "x e2", "a"),
        node("Transpose", "a", "b"),
        node("Identity", "b", "d"),
        node("Transpose", "a", "elsewhere", name="elsewhere"),
        node("Log", "d", "e"),
        node("MatMul", "x e", "f"),
        node("MatMul", "x elsewhere", "g"),
        node("Add", "f g", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"eps": EPS, "axes": ints(0), "shape": ints(3)})
    assert pins == ["Unsqueeze_e1", "Expand_e2", "Add_a", "Transpose_b", "Identity_d", "Log_e"]


def test_constant_nodes_and_casts_from_float64(tmp_path: Path) -> None:
    double = onnx.numpy_helper.from_array(np.asarray(1e-12))
    nodes = [
        node("Constant", "", "eps", value=double),
        node("Cast", "eps", "e", to=TensorProto.FLOAT),
        node("Add", "x e", "a"),
        node("Sqrt", "a", "y"),
    ]
    assert _pins(tmp_path, nodes, {}) == ["Cast_e", "Add_a", "Sqrt_y"]


def test_normalize_as_pytorch_exports_it(tmp_path: Path) -> None:
    """x / max(|x|, 1e-12): ReduceL2, Clip(min), Expand, Div."""
    nodes = [
        node("ReduceL2", "x", "norm", axes=[1], keepdims=1),
        node("Clip", "norm eps", "safe"),
        node("Expand", "safe shape", "wide"),
        node("Div", "x wide", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"eps": EPS, "shape": ints(2, 3)})
    assert pins == ["Clip_safe", "Expand_wide", "Div_y"]


def test_clip_by_attribute_below_opset_11(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x", "safe", min=1e-12),
        node("Div", "x safe", "b"),
        node("Clip", "b", "y", max=6.0),
    ]
    model = make_model(nodes, {"x": [2, 3]}, "y", opset=10)
    graph, ranges = scan(model, tmp_path, {"x": X})
    assert pinned_by(find_vanishing_constants, graph, ranges) == ["Clip_safe", "Div_b"]
    assert "the min of Clip_safe = 1e-12" in ask(find_vanishing_constants, graph, ranges)[0].reason


def test_where_and_a_product_of_guarded_norms(tmp_path: Path) -> None:
    nodes = [
        node("Equal", "x zero", "is_zero"),
        node("Where", "is_zero eps x", "a"),
        node("Mul", "a x", "product"),
        node("Div", "x product", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"eps": EPS, "zero": scalar(0)})
    assert pins == ["Where_a", "Mul_product", "Div_y"]


@pytest.mark.parametrize(("eps", "is_div_pinned"), [(1e-12, False), (2.0**-50, True), (1e-20, True)])
def test_behind_sqrt_its_root_counts(eps: float, is_div_pinned: bool, tmp_path: Path) -> None:
    """sqrt(1e-12) = 1e-6 is no zero in FP16; sqrt(2^-50) is."""
    nodes = [node("Add", "x eps", "a"), node("Sqrt", "a", "b"), node("Div", "x b", "y")]
    pins = _pins(tmp_path, nodes, {"eps": scalar(eps)})
    assert pins == ["Add_a", "Sqrt_b", *(["Div_y"] if is_div_pinned else [])]


@pytest.mark.parametrize(
    ("exponent", "pins"), [(0.5, True), (-0.5, True), (-2, True), (2, False), (3, False)]
)
def test_a_power_that_takes_zero_well_is_no_matter(exponent: float, pins: bool, tmp_path: Path) -> None:
    nodes = [node("Add", "x eps", "a"), node("Pow", "a e", "y")]
    found = _pins(tmp_path, nodes, {"eps": EPS, "e": scalar(exponent)})
    assert found == (["Add_a", "Pow_y"] if pins else [])


@pytest.mark.parametrize(
    ("exponent", "eps", "pins"),
    [
        (2.0, 1e-12, ["Add_a", "Pow_p", "Div_y"]),
        (0.5, 1e-12, ["Add_a", "Pow_p"]),
        (0.5, 2.0**-50, ["Add_a", "Pow_p", "Div_y"]),
    ],
)
def test_behind_a_power_what_it_makes_of_the_epsilon_counts(
    exponent: float, eps: float, pins: list[str], tmp_path: Path
) -> None:
    assert (np.float16(eps**exponent) == 0) == ("Div_y" in pins)
    nodes = [node("Add", "x eps", "a"), node("Pow", "a e", "p"), node("Div", "x p", "y")]
    assert _pins(tmp_path, nodes, {"eps": scalar(eps), "e": scalar(exponent)}) == pins


@pytest.mark.parametrize(
    ("op", "inputs", "pins"),
    [
        ("Div", "x eps", True),
        ("Reciprocal", "eps", True),
        ("Log", "eps", True),
        ("Pow", "eps x", True),
        ("Add", "x eps", False),
        ("Greater", "x eps", False),
    ],
)
def test_direct_readers(op: str, inputs: str, pins: bool, tmp_path: Path) -> None:
    nodes = [node(op, inputs, "a")]
    nodes += [node("Cast", "a", "b", to=TensorProto.FLOAT), node("Add", "b x", "y")]
    assert _pins(tmp_path, nodes, {"eps": EPS}) == ([f"{op}_a"] if pins else [])


def test_epsilons_by_channel(tmp_path: Path) -> None:
    """One that vanishes among epsilons matters; one tiny bias among biases of any size does not."""
    nodes = [node("Add", "x eps", "a"), node("Sqrt", "a", "y")]
    for name, eps, expected in (
        ("all", floats(1e-12, 1e-9, 1e-10), ["Add_a", "Sqrt_y"]),
        ("one", floats(1e-5, 1e-12, 1e-5), ["Add_a", "Sqrt_y"]),
        ("none", floats(1e-5, 1e-4, 0), []),
        ("bias", floats(0.5, 1e-12, -0.25), []),
    ):
        (tmp_path / name).mkdir()
        assert _pins(tmp_path / name, nodes, {"eps": eps}) == expected, name
    (tmp_path / "div").mkdir()
    assert _pins(tmp_path / "div", [node("Div", "x s", "y")], {"s": floats(0.5, 1e-12, 2)}) == ["Div_y"]


@pytest.mark.parametrize(
    ("op", "inputs", "scale", "pins"),
    [
        ("Mul", "big f", 1e4, True),
        ("Mul", "f big", 1e4, True),
        ("Mul", "x f", 1.0, False),
        ("Div", "f small", 1e-4, True),
        ("MatMul", "big w", 1e4, True),
        ("MatMul", "x w", 1.0, False),
    ],
)
def test_a_factor_matters_if_fp16_could_hold_the_product(
    op: str, inputs: str, scale: float, pins: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Mul", "x up", "big", name="up"),
        node("Mul", "x down", "small", name="down"),
        node(op, inputs, "a"),
        node("MatMul", "small eye", "b"),
        node("Relu", "a", "d"),
        node("Add", "d b", "e"),
        node("MatMul", "big eye", "g"),
        node("Add", "e g", "y"),
    ]
    constants = {
        "f": scalar(1e-9),
        "w": np.full((3, 3), 1e-9, np.float32),
        "up": scalar(1e4),
        "down": scalar(1e-4),
        "eye": np.eye(3, dtype=np.float32),
    }
    assert _pins(tmp_path, nodes, constants) == ([f"{op}_a"] if pins else [])


@pytest.mark.parametrize(
    ("op", "largest", "is_pinned"),
    [
        ("Mul", 2.0**15, False),
        ("Mul", 2.0**15 + 1, True),
        ("MatMul", 2.0**13, False),
        ("MatMul", 2.0**13 + 1, True),
        ("Mul", math.inf, True),
        ("MatMul", math.nan, False),
    ],
)
def test_a_factor_beside_others_matters_if_fp16_could_hold_what_is_made_of_it(
    op: str, largest: float, is_pinned: bool, tmp_path: Path
) -> None:
    """The cosine of 90 degrees, 6e-17 in FP32, is an element of a rotation; of four, all may be added up."""
    nodes = [node("Concat", "tiny others", "r", axis=0), node(op, "x r", "y")]
    constants = {"tiny": floats(2.0**-40), "others": floats(1, 0, 1)}
    x = floats(largest, 3, 4, 5)
    graph, ranges = scan(make_model(nodes, {"x": [4]}, "y", constants), tmp_path, {"x": x})
    assert pinned_by(find_vanishing_constants, graph, ranges) == (
        ["Concat_r", f"{op}_y"] if is_pinned else []
    )


def test_weights_with_some_tiny_elements_are_no_matter(tmp_path: Path) -> None:
    weight = np.asarray([[1, 1e-12, 2], [3, 4, 1e-20], [0, 0, 1]], np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Mul", "a s", "y")]
    assert _pins(tmp_path, nodes, {"w": weight, "s": floats(1, 1e-12, 1)}) == []


def test_a_long_chain_of_movers_is_followed_without_recursion(tmp_path: Path) -> None:
    chain = [node("Identity", f"e{i}", f"e{i + 1}") for i in range(1500)]
    nodes = [*chain, node("Add", "x e1500", "a"), node("Sqrt", "a", "y")]
    pins = _pins(tmp_path, nodes, {"e0": EPS})
    assert len(pins) == 1502
    assert {"Identity_e1", "Identity_e1500", "Add_a", "Sqrt_y"} <= set(pins)


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attributes", "is_found"),
    [
        ("InstanceNormalization", 17, "x one one", {"epsilon": 1e-12}, True),
        ("InstanceNormalization", 17, "x one one", {"epsilon": 2.0**-25}, True),
        ("InstanceNormalization", 17, "x one one", {"epsilon": 1e-5}, False),
        ("InstanceNormalization", 17, "x one one", {}, False),
        ("InstanceNormalization", 17, "x one one", {"epsilon": 0.0}, False),
        ("MeanVarianceNormalization", 17, "x", {}, True),
        ("LayerNormalization", 17, "x scale", {"epsilon": 1e-12}, False),
        ("GroupNormalization", 18, "x one one", {"epsilon": 1e-12, "num_groups": 1}, True),
        ("GroupNormalization", 21, "x one one", {"epsilon": 1e-12, "num_groups": 1}, False),
        ("RMSNormalization", 23, "x scale", {"epsilon": 1e-12}, True),
    ],
)
def test_the_epsilon_of_a_normalisation(
    op: str, opset: int, inputs: str, attributes: dict[str, Any], is_found: bool, tmp_path: Path
) -> None:
    """Not where ONNX asks for a variance in FP32 (stash_type)."""
    constants = {"one": floats(1), "scale": floats(1, 1, 1)}
    model = make_model([node(op, inputs, "y", **attributes)], {"x": [1, 1, 2, 3]}, "y", constants, opset)
    graph, ranges = scan(model, tmp_path, {"x": X[None, None]})
    assert pinned_by(find_vanishing_constants, graph, ranges) == ([f"{op}_y"] if is_found else [])
    policy = PlanPolicy(protected={op: "in FP32 by itself"})
    for found in ask(find_vanishing_constants, graph, ranges, policy):
        assert found.action == "protected"
        assert found.reason.endswith("division inside; in FP32 by itself")


@pytest.mark.parametrize(
    ("stash_type", "is_found"),
    [(TensorProto.FLOAT, False), (TensorProto.FLOAT16, True), (TensorProto.BFLOAT16, True)],
)
def test_an_epsilon_that_is_told_to_be_added_in_less_than_fp32(
    stash_type: int, is_found: bool, tmp_path: Path
) -> None:
    nodes = [node("LayerNormalization", "x scale", "y", epsilon=1e-12, stash_type=stash_type)]
    pins = _pins(tmp_path, nodes, {"scale": floats(1, 1, 1)})
    assert pins == (["LayerNormalization_y"] if is_found else [])


@pytest.mark.parametrize(
    ("variance", "epsilon", "is_found"),
    [
        (1e-12, 1e-5, False),
        (1.0, 1e-12, False),
        (1e-9, 1e-9, True),
        (1e-7, 1e-12, True),
        (0.0, 1e-12, True),
        (0.0, 1e-5, False),
        (0.0, 0.0, False),
        (2.0**-14, 1e-12, False),
    ],
)
def test_variances_of_a_batch_normalization(
    variance: float, epsilon: float, is_found: bool, tmp_path: Path
) -> None:
    nodes = [node("BatchNormalization", "x one zero zero v", "y", epsilon=epsilon)]
    constants = {"one": floats(1, 1, 1), "zero": floats(0, 0, 0), "v": floats(1, variance, 1)}
    assert _pins(tmp_path, nodes, constants) == (["BatchNormalization_y"] if is_found else [])


def test_the_evidence_of_a_variance(tmp_path: Path) -> None:
    constants = {"one": floats(1), "zero": floats(0), "v": floats(2e-8)}
    model = make_model(
        [node("BatchNormalization", "x one zero zero v", "y", epsilon=1e-8)], {"x": [2, 1]}, "y", constants
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)[:, None]})
    (found,) = ask(find_vanishing_constants, graph, ranges)
    assert (found.tensor, found.value) == ("v", pytest.approx(3e-8))
    assert found.reason == (
        "a variance of BatchNormalization_y, its epsilon added, is 3e-08 and becomes 0 in FP16, and its root is divided by"
    )


def test_variances_with_nan_or_none_at_all(tmp_path: Path) -> None:
    for name, values in (("nan", [math.nan, 1.0]), ("none", [])):
        (tmp_path / name).mkdir()
        size = len(values)
        constants = {
            "one": np.ones(size, np.float32),
            "zero": np.zeros(size, np.float32),
            "v": floats(*values),
        }
        model = make_model(
            [node("BatchNormalization", "x one zero zero v", "y")], {"x": [1, size]}, "y", constants
        )
        graph, ranges = scan(model, tmp_path / name, {"x": np.ones((1, size), np.float32)})
        assert ask(find_vanishing_constants, graph, ranges) == []


def test_an_empty_batch_beside_others(tmp_path: Path) -> None:
    """One without elements says nothing, and changes nothing."""
    nodes = [node("Add", "x eps", "a"), node("Log", "a", "y")]
    model = make_model(nodes, {"x": [None]}, "y", {"eps": EPS})
    for name, values, actions in (("far", floats(1, 2), ["none"]), ("near", floats(0, 2), ["pin", "pin"])):
        (tmp_path / name).mkdir()
        graph, ranges = scan(model, tmp_path / name, {"x": floats()}, {"x": values})
        assert [found.action for found in ask(find_vanishing_constants, graph, ranges)] == actions

"""Of a difference of nearly equal numbers the nearest are chosen, and those FP16 does not tell apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, save, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.differences.small_differences import find_small
from overflow_fixer.evidence.distances.chosen_distances import _find_choices, find_chosen
from overflow_fixer.rules.lost_difference import find_lost_differences

CLOUD = np.random.default_rng(3).uniform(-5, 5, (1, 64, 3)).astype(np.float32)
NEAR = CLOUD + np.random.default_rng(4).normal(size=CLOUD.shape).astype(np.float32) * np.float32(0.02)
DISTANCES = [
    node("Mul", "x x", "xx"),
    node("ReduceSum", "xx last", "sx", keepdims=1),
    node("Mul", "p p", "pp"),
    node("ReduceSum", "pp last", "s", keepdims=1),
    node("Transpose", "s", "sp", perm=[0, 2, 1]),
    node("Transpose", "p", "pt", perm=[0, 2, 1]),
    node("MatMul", "x pt", "xp"),
    node("Mul", "xp two", "xp2"),
    node("Add", "sx sp", "sum"),
    node("Sub", "sum xp2", "d"),
]
AS_ONE_PRODUCT = [
    *DISTANCES[:4],
    node("Mul", "x minus", "m"),
    node("Concat", "m sx ones", "left", axis=2),
    node("Concat", "p ones s", "joined", axis=2),
    node("Transpose", "joined", "right", perm=[0, 2, 1]),
    node("MatMul", "left right", "d"),
]
"""As PyTorch exports cdist."""
BY_EINSUM = [*DISTANCES[:6], node("Einsum", "x p", "xp", equation="bid,bjd->bij"), *DISTANCES[7:]]
BY_GEMM = [
    *DISTANCES[:6],
    node("Reshape", "x points", "x2"),
    node("Reshape", "p points", "p2"),
    node("Gemm", "x2 p2", "g", transB=1),
    node("Reshape", "g cube", "xp"),
    *DISTANCES[7:],
]
SCALED_APART = [
    *DISTANCES[:7],
    node("Div", "xp half", "h"),
    node("Neg", "h", "xp2"),
    DISTANCES[8],
    node("Add", "sum xp2", "d"),
]
CONSTANTS = {"last": ints(-1), "two": scalar(2), "k": ints(1), "zero": scalar(0), "square": ints(64, 64)} | {
    "minus": scalar(-2),
    "half": scalar(0.5),
    "points": ints(64, 3),
    "cube": ints(1, 64, 64),
    "ones": np.ones((1, 64, 1), np.float32),
    "mask": np.tile([True, False], 32) | np.eye(64, dtype=bool),
    "unmask": np.tile([False, True], 32) & ~np.eye(64, dtype=bool),
    "all": np.ones(64, bool),
    "far": scalar(1e4),
    "one": scalar(1),
}
CHOICES = {
    "the nearest": [node("ReduceMin", "d", "y", axes=[2], keepdims=0)],
    "the nearest, turned about": [node("Neg", "d", "n"), node("ReduceMax", "n", "y", axes=[2])],
    "the nearest, in bounds": [
        node("Clip", "d zero", "r"), node("Abs", "r", "q"), node("ReduceMin", "q", "y", axes=[2])
    ],
    "subtracted, and given out": [node("Neg", "d", "n"), node("ReduceMax", "n", "y", axes=[2]), node("Sub", "n y", "e")],
    "subtracted, and halved": [
        node("Neg", "d", "n"), node("ReduceMax", "n", "most", axes=[2]), node("Sub", "n most", "e"), node("Mul", "most half", "y")
    ],
    "subtracted from another": [node("ReduceMin", "d", "least", axes=[2]), node("Sub", "zero least", "y")],
    "the first": [node("TopK", "d k", "y i", axis=2, largest=0)],
    "the first, turned about": [node("Neg", "d", "n"), node("TopK", "n k", "y i", axis=2)],
    "the nearest, moved and bounded": [
        node("Max", "d zero", "r"), node("Reshape", "r square", "q"), node("ReduceMin", "q", "y", axes=[1])
    ],
    "the least root": [node("Max", "d zero", "r"), node("Sqrt", "r", "q"), node("ReduceMin", "q", "y", axes=[2])],
    "the first root, turned about": [
        node("Max", "d zero", "r"), node("Sqrt", "r", "q"), node("Neg", "q", "n"), node("TopK", "n k", "y i", axis=2)
    ],
    "the nearest under a mask": [node("Where", "mask d far", "r"), node("ReduceMin", "r", "y", axes=[2])],
    "the first under a mask, repeated": [
        node("Expand", "far square", "f"), node("Where", "unmask f d", "r"), node("TopK", "r k", "y i", axis=2, largest=0)
    ],
}  # fmt: skip
OTHERS = {
    "the farthest": [node("ReduceMax", "d", "y", axes=[2], keepdims=0)],
    "their mean": [node("ReduceMean", "d", "y", axes=[2], keepdims=0)],
    "what a Softmax subtracts": [
        node("Neg", "d", "n"),
        node("ReduceMax", "n", "m", axes=[2]),
        node("Sub", "n m", "e"),
        node("Exp", "e", "y"),
    ],
    "behind a function": [node("Exp", "d", "r"), node("ReduceMin", "r", "y", axes=[2], keepdims=0)],
    "beside others": [node("Where", "mask d sum", "r"), node("ReduceMin", "r", "y", axes=[2], keepdims=0)],
    "behind two roots": [
        node("Abs", "d", "a"),
        node("Sqrt", "a", "r"),
        node("Sqrt", "r", "q"),
        node("ReduceMin", "q", "y", axes=[2], keepdims=0),
    ],
}


def _scan(
    folder: Path, choice: list[onnx.NodeProto], *clouds: Any, distances: list[onnx.NodeProto] = DISTANCES
) -> tuple[Any, Any]:
    model = make_model([*distances, *choice], {"x": [1, 64, 3], "p": [1, 64, 3]}, "y", CONSTANTS)
    return scan(model, folder, *({"x": CLOUD, "p": cloud} for cloud in clouds))


@pytest.mark.parametrize(
    "distances",
    [DISTANCES, AS_ONE_PRODUCT, BY_EINSUM, BY_GEMM, SCALED_APART],
    ids=["added", "as one product", "Einsum", "Gemm", "scaled apart"],
)
@pytest.mark.parametrize("form", CHOICES)
def test_the_nearest_are_not_told_apart(form: str, distances: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, CHOICES[form], NEAR, distances=distances)
    assert {one.difference.node.outputs[0] for one in find_chosen(graph, ranges)} == {"d"}
    fp32 = {
        name
        for node in graph.nodes
        if node.label in pinned_by(find_lost_differences, graph, ranges)
        for name in node.writes
    }
    assert _snr_db(tmp_path, set()) < 20
    assert _snr_db(tmp_path, fp32) > 40


def test_of_several_choices_the_one_that_leaves_least_is_told(tmp_path: Path) -> None:
    """Of the farthest the squares' rounding is little, of the nearest it is not."""
    choices = [
        node("ReduceMax", "d", "most", axes=[2]),
        node("ReduceMin", "d", "near", axes=[2]),
        node("Concat", "most near", "y", axis=2),
    ]
    model = make_model([*DISTANCES, *choices], {"x": [1, 64, 3], "p": [1, 64, 3]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": CLOUD / 8 + 9, "p": CLOUD / 8 + 9 + 4 * (NEAR - CLOUD)})
    (one,) = (one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_d")
    assert one.tensor == "near"
    assert one.reason.endswith("ReduceMin ReduceMin_near chooses among it")
    assert {"Mul_xx", "Mul_pp"} <= set(pinned_by(find_lost_differences, graph, ranges))


PLACES = {
    "the nearest": [node("ArgMin", "d", "i", axis=2, keepdims=0)],
    "the nearest, as in a quantizer": [node("Neg", "d", "n"), node("ArgMax", "n", "i", axis=-1)],
    "the nearest, moved and bounded": [
        node("Max", "d zero", "r"), node("Reshape", "r square", "m"), node("ArgMin", "m", "i", axis=1)
    ],
    "the least root": [node("Max", "d zero", "r"), node("Sqrt", "r", "q"), node("ArgMin", "q", "i", axis=-1)],
    "the nearest under a mask": [node("Where", "all d far", "m"), node("ArgMin", "m", "i", axis=2)],
}  # fmt: skip
TWINS = np.concatenate([CLOUD, CLOUD + np.float32(0.01)], 1)[:, ::2]
"""Of two points that are next to each other one or the other is nearest."""


def _scan_places(
    folder: Path, form: str, *clouds: Any, distances: list[onnx.NodeProto] = DISTANCES
) -> tuple[Any, Any]:
    choice = [*PLACES[form], node("Cast", "i", "y", to=TensorProto.FLOAT)]
    return _scan(folder, choice, *clouds, distances=distances)


@pytest.mark.parametrize("form", PLACES)
def test_places_are_judged_by_how_much_nearer_the_nearest_is(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan_places(tmp_path, form, CLOUD[:, ::-1] * 4, TWINS)
    found = {one.node: one for one in ask(find_lost_differences, graph, ranges)}
    rows = {seen.tensor: row for row, seen in enumerate(ranges.ranges)}
    place = PLACES[form][-1]
    one = found["Sub_d"]
    assert (one.tensor, one.batch) == (f"{place.name}: mean margin", "batch_1")
    distances = np.sort(np.square(CLOUD[:, :, None].astype(np.float64) - TWINS[:, None]).sum(-1), -1)
    assert one.value == pytest.approx((distances[..., 1] - distances[..., 0]).mean(), rel=1e-3)
    assert one.reason.endswith(f"and {place.op_type} {place.name} chooses among it")
    assert found.keys() >= {node.name for node in PLACES[form][:-1]}
    assert place.name not in found
    steps = np.spacing(np.float16(max(ranges.batch_max_abs[rows[name], 1] for name in ("sum", "xp2"))))
    assert one.limit == 64 * steps


def test_places_are_lost_in_fp16_and_right_with_the_pins(tmp_path: Path) -> None:
    graph, ranges = _scan_places(tmp_path, "the nearest", TWINS)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    fp32 = {name for node in graph.nodes if node.label in pinned for name in node.writes} | {"i"}
    feeds = {"x": CLOUD, "p": TWINS}
    right = run_fp32(tmp_path / "model.onnx", feeds)["y"]
    for names, least, most in ((set[str](), 0.0, 0.9), (fp32, 1.0, 1.0)):
        found = run_fp16(tmp_path / "model.onnx", feeds, names)["y"]
        assert least <= float(np.mean(found == right)) <= most


@pytest.mark.parametrize(("shift", "are_pinned"), [(0.01, True), (0.5, False)])
def test_what_moves_the_points_counts_where_they_are_near_one_another(
    shift: float, are_pinned: bool, tmp_path: Path
) -> None:
    """Of twins that are 0.5 apart FP16's steps of 1/256 are no matter, but at the squares, up to 75, they are."""
    twins = np.concatenate([CLOUD, CLOUD + np.float32(shift)], 1)[:, ::2]
    distances = [node("Mul", "p half", "c"), *(_read_instead(one, "p", "c") for one in DISTANCES)]
    graph, ranges = _scan_places(tmp_path, "the nearest", 2 * twins, distances=distances)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) >= {"Sub_d", "Add_sum", "MatMul_xp", "Mul_xx", "Mul_pp", "ReduceSum_s"}
    assert {"Transpose_pt", "Mul_c"}.isdisjoint(pinned) != are_pinned


def _read_instead(one: onnx.NodeProto, tensor: str, instead: str) -> onnx.NodeProto:
    copied = onnx.NodeProto.FromString(one.SerializeToString())
    copied.input[:] = [instead if name == tensor else name for name in one.input]
    return copied


def test_what_moves_points_that_are_fed_counts_however_far_they_are_from_one_another(tmp_path: Path) -> None:
    """The squares would be of the points as they are fed, and the product of rounded ones."""
    cloud = CLOUD + np.float32(20)
    twins = np.concatenate([cloud, cloud + np.float32(0.5)], 1)[:, ::2]
    choice = [*PLACES["the nearest"], node("Cast", "i", "y", to=TensorProto.FLOAT)]
    model = make_model([*DISTANCES, *choice], {"x": [1, 64, 3], "p": [1, 64, 3]}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": cloud, "p": twins})
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert "Transpose_pt" in pinned
    fp32 = {name for node in graph.nodes if node.label in pinned for name in node.writes} | {"i"}
    feeds = {"x": cloud, "p": twins}
    right = run_fp32(tmp_path / "model.onnx", feeds)["y"]
    assert np.array_equal(run_fp16(tmp_path / "model.onnx", feeds, fp32)["y"], right)


COSINES = [
    node("ReduceL2", "x", "nx", axes=[2]),
    node("Div", "x nx", "u"),
    node("ReduceL2", "p", "np", axes=[2]),
    node("Div", "p np", "v"),
    node("Transpose", "v", "vt", perm=[0, 2, 1]),
    node("MatMul", "u vt", "c"),
]
LESS = [*COSINES, node("Sub", "one c", "d")]


def test_the_nearest_by_their_cosine_are_lost_in_fp16_and_right_with_the_pins(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, CHOICES["the nearest"], NEAR, distances=LESS)
    assert {one.difference.node.outputs[0] for one in find_chosen(graph, ranges)} == {"d"}
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) == {one.name for one in LESS}
    fp32 = {name for node in graph.nodes if node.label in pinned for name in node.writes}
    assert _snr_db(tmp_path, set()) < 20
    assert _snr_db(tmp_path, fp32) > 40


@pytest.mark.parametrize(
    ("last", "choice"),
    [
        (node("Sub", "one c", "d"), OTHERS["the farthest"]),
        (node("Sub", "one c", "d"), [*PLACES["the nearest"], node("Cast", "i", "y", to=TensorProto.FLOAT)]),
        (node("Sub", "ones c", "d"), CHOICES["the nearest"]),
        (node("Sub", "c one", "d"), CHOICES["the nearest"]),
    ],
    ids=["large enough", "places", "no number", "more than a number"],
)
def test_other_cosines_tell_nothing(
    last: onnx.NodeProto, choice: list[onnx.NodeProto], tmp_path: Path
) -> None:
    assert list(find_chosen(*_scan(tmp_path, choice, NEAR, distances=[*COSINES, last]))) == []


def test_where_the_nearest_is_much_nearer_than_the_next_nothing_is_told(tmp_path: Path) -> None:
    """However near it is: FP16 finds it."""
    corners = np.stack(np.meshgrid(*[[-5, -2, 2, 5]] * 3), -1).reshape(1, 64, 3).astype(np.float32)
    near = corners + np.float32(0.02)
    model = make_model(
        [*DISTANCES, *PLACES["the nearest"]],
        {"x": [1, 64, 3], "p": [1, 64, 3]},
        "i",
        CONSTANTS,
        output_types={"i": TensorProto.INT64},
    )
    graph, ranges = scan(model, tmp_path, {"x": corners, "p": near})
    assert list(find_chosen(graph, ranges)) == []
    found = run_fp16(tmp_path / "model.onnx", {"x": corners, "p": near}, set())["i"]
    assert found.tolist() == [list(range(64))]


def test_what_adds_up_the_distance_is_computed_and_no_constant(tmp_path: Path) -> None:
    """Of a ReduceSumSquare the squares are inside."""
    distances = [
        node("ReduceSumSquare", "x", "sx", axes=[2]),
        node("ReduceSumSquare", "p", "s", axes=[2]),
        *DISTANCES[4:7],
        node("Constant", "", "twice", value_float=2.0),
        node("Mul", "xp twice", "xp2"),
        *DISTANCES[8:],
    ]
    choice = [*PLACES["the nearest"], node("Cast", "i", "y", to=TensorProto.FLOAT)]
    (found,) = find_chosen(*_scan(tmp_path, choice, TWINS, distances=distances))
    named = {one.label for one in found.nodes}
    assert named >= {"Sub_d", "Mul_xp2", "MatMul_xp", "Add_sum", "ReduceSumSquare_sx", "ReduceSumSquare_s"}
    assert "Constant_twice" not in named


def test_of_many_ways_to_a_choice_one_is_followed(tmp_path: Path) -> None:
    bounds = [node("Max", f"d{i} d{i}", f"d{i + 1}") for i in range(8)]
    nodes = [node("Neg", "x", "d0"), *bounds, node("ReduceMin", "d8", "y", axes=[0])]
    graph = save(make_model(nodes, {"x": [2]}, "y"), tmp_path)
    assert [end.label for end, _ in _find_choices(graph, graph.nodes[0])] == ["ReduceMin_y"]


def test_a_margin_that_fp32_rounds_is_not_told(tmp_path: Path) -> None:
    alike = np.repeat(CLOUD[:, ::2], 2, axis=1)
    assert list(find_chosen(*_scan_places(tmp_path, "the nearest", alike))) == []


def _snr_db(folder: Path, fp32_nodes: set[str]) -> float:
    feeds = {"x": CLOUD, "p": NEAR}
    right = run_fp32(folder / "model.onnx", feeds)["y"].astype(np.float64)
    error = run_fp16(folder / "model.onnx", feeds, fp32_nodes)["y"] - right
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.sum(right**2) / np.sum(error**2)))


@pytest.mark.parametrize("form", OTHERS)
def test_others_are_not_chosen(form: str, tmp_path: Path) -> None:
    assert list(find_chosen(*_scan(tmp_path, OTHERS[form], NEAR))) == []


def test_the_evidence(tmp_path: Path) -> None:
    """The batch is the worst one, and the limit that of its own terms."""
    graph, ranges = _scan(tmp_path, CHOICES["the nearest"], CLOUD[:, ::-1] * 4, NEAR)
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_d")
    rows = {one.tensor: row for row, one in enumerate(ranges.ranges)}
    assert (found.tensor, found.batch, found.value) == ("y", "batch_1", ranges.batch_max_abs[rows["y"], 1])
    most = max(ranges.batch_max_abs[rows[name], 1] for name in ("sum", "xp2"))
    assert found.limit == 64 * np.spacing(np.float16(most))
    assert (
        f"y is {found.value:.6g} at most in that batch, and the terms of d, up to {most:.6g}, lose much"
        in found.reason
    )
    assert found.reason.endswith("and ReduceMin ReduceMin_y chooses among it")


@pytest.mark.parametrize("form", ["the least root", "the first root, turned about"])
def test_the_evidence_of_roots(form: str, tmp_path: Path) -> None:
    """What is chosen and its limit are told as roots, and what that is squared."""
    graph, ranges = _scan(tmp_path, CHOICES[form], NEAR)
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_d")
    most = max(ranges.by_tensor[name].max_abs for name in ("sum", "xp2"))
    assert (found.tensor, found.value) == ("y", ranges.by_tensor["y"].max_abs)
    assert found.limit == pytest.approx(math.sqrt(64 * np.spacing(np.float16(most))), rel=1e-6)
    told = f"y is {found.value:.6g} at most, squared {found.value**2:.6g}, in that batch, and the terms of d"
    assert found.reason.startswith(told)


def test_where_the_places_of_a_topk_are_read_it_stays_in_fp32_too(tmp_path: Path) -> None:
    behind = [*CHOICES["the first root, turned about"][:-1], node("TopK", "n k", "v i", axis=2)]
    for last, is_pinned in (
        (node("Cast", "i", "y", to=TensorProto.FLOAT), True),
        (node("Neg", "v", "y"), False),
    ):
        graph, ranges = _scan(tmp_path, [*behind, last], NEAR)
        pinned = set(pinned_by(find_lost_differences, graph, ranges))
        assert ({"Max_r", "Sqrt_q", "Neg_n", "TopK_v"} <= pinned) == is_pinned


def test_where_the_places_of_a_topk_are_given_out_it_stays_in_fp32_too(tmp_path: Path) -> None:
    nodes = [*DISTANCES, *CHOICES["the first, turned about"]]
    inputs, types = {"x": [1, 64, 3], "p": [1, 64, 3]}, {"i": TensorProto.INT64}
    model = make_model(nodes, inputs, "y i", CONSTANTS, output_types=types)
    graph, ranges = scan(model, tmp_path, {"x": CLOUD, "p": NEAR})
    assert {"Neg_n", "TopK_y"} <= set(pinned_by(find_lost_differences, graph, ranges))


def test_multiplied_by_what_it_is_chosen_of_it_is_told(tmp_path: Path) -> None:
    behind = [node("ReduceMin", "d", "m", axes=[2]), node("Mul", "d m", "y")]
    assert list(find_chosen(*_scan(tmp_path, behind, NEAR)))


def test_the_distance_of_a_point_to_itself_is_what_fp32_rounds(tmp_path: Path) -> None:
    assert list(find_chosen(*_scan(tmp_path, CHOICES["the nearest"], CLOUD))) == []


def test_what_is_chosen_is_large_enough(tmp_path: Path) -> None:
    far = CLOUD + np.float32(20)
    assert list(find_chosen(*_scan(tmp_path, CHOICES["the nearest"], far))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    cloud = NEAR.copy()
    cloud[0, 0, 0] = value
    assert list(find_chosen(*_scan(tmp_path, CHOICES["the nearest"], cloud))) == []


def test_of_other_sums_nothing_is_told(tmp_path: Path) -> None:
    """Their largest terms need not be where the smallest sums are, as under a mask: here squares that are fed."""
    nodes = [*DISTANCES[4:], *CHOICES["the nearest"]]
    kinds = {"x": [1, 64, 3], "p": [1, 64, 3], "sx": [1, 64, 1], "s": [1, 64, 1]}
    squares = {name: np.square(cloud).sum(-1, keepdims=True) for name, cloud in (("sx", CLOUD), ("s", NEAR))}
    graph, ranges = scan(
        make_model(nodes, kinds, "y", CONSTANTS), tmp_path, {"x": CLOUD, "p": NEAR, **squares}
    )
    assert next(find_small(graph, ranges, graph.producers["d"], 64, "y"), None) is not None
    assert list(find_chosen(graph, ranges)) == []

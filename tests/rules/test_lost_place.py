"""Sampling at places that FP16 rounds by too much."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import PlanPolicy
from overflow_fixer.rules.lost_place import LARGEST_LOSS, find_lost_places

GENERATOR = np.random.default_rng(7)
SAMPLE = node("GridSample", "x g", "y", align_corners=0)


def _draw(width: int, smoothness: int = 1, height: int = 64) -> np.ndarray:
    """Noise, averaged over so many neighbours each way."""
    noise = GENERATOR.standard_normal((1, 2, height, width))
    for axis in (2, 3):
        noise = np.mean([np.roll(noise, shift, axis) for shift in range(smoothness)], axis=0)
    return (noise / noise.std()).astype(np.float32)


def _draw_grid(most: float = 1.0) -> np.ndarray:
    return GENERATOR.uniform(-most, most, (1, 100, 100, 2)).astype(np.float32)


def _scan(folder: Path, *batches: tuple[np.ndarray, np.ndarray]) -> tuple[Any, Any]:
    model = make_model([SAMPLE], {"x": [None] * 4, "g": [None] * 4}, "y", opset=20)
    return scan(model, folder, *({"x": image, "g": grid} for image, grid in batches))


@pytest.mark.parametrize(("width", "smoothness"), [(640, 1), (1920, 1), (1920, 3)])
def test_the_loss_is_what_rounding_the_grid_loses(width: int, smoothness: int, tmp_path: Path) -> None:
    image, grid = _draw(width, smoothness), _draw_grid()
    (told,) = ask(find_lost_places, *_scan(tmp_path, (image, grid)))
    rounded = grid.astype(np.float16).astype(np.float32)
    right, found = (
        run_fp32(tmp_path / "model.onnx", {"x": image, "g": one})["y"].astype(np.float64)
        for one in (grid, rounded)
    )
    assert told.value == pytest.approx(
        math.sqrt(np.square(right - found).sum() / np.square(right).sum()), rel=0.3
    )


def test_the_evidence(tmp_path: Path) -> None:
    small, large = _draw(64), _draw(1200)
    graph, ranges = _scan(tmp_path, (small, _draw_grid()), (large, _draw_grid(0.2)), (large, _draw_grid()))
    (found,) = ask(find_lost_places, graph, ranges)
    loss = float(ranges.inner_of["GridSample_y"]["sampling loss"].batch_max_abs[2])
    assert (found.node, found.tensor, found.batch) == ("GridSample_y", "g", "batch_2")
    assert (found.value, found.limit) == (loss, LARGEST_LOSS)
    assert f"; rounded, these places lose {loss:.3g} of what is sampled" in found.reason


@pytest.mark.parametrize(
    ("image", "grid", "is_found"),
    [
        (_draw(1200), _draw_grid(), True),
        (_draw(200), _draw_grid(), False),
        (_draw(1200, 12), _draw_grid(), False),  # smooth
        (_draw(1200), _draw_grid(0.2), False),  # near the middle, where steps are small
        (_draw(1200), 1.5 + _draw_grid(0.4), False),  # outside
        (
            _draw(1200),
            np.append(_draw_grid(0.01).ravel()[2:], np.float32([1, 1])).reshape(1, 100, 100, 2),
            False,
        ),
        (_draw(1200), np.round(_draw_grid()), False),  # FP16 has them
        (_draw(1200) + 20, _draw_grid(), False),  # little beside what all elements have
        (np.zeros((1, 2, 64, 1200), np.float32), _draw_grid(), False),
        (_draw(1200), np.zeros((1, 0, 0, 2), np.float32), False),
        (_draw(1200), np.full((1, 1, 1, 2), math.nan, np.float32), False),
        (np.full((1, 2, 64, 1200), math.inf, np.float32), _draw_grid(), False),
    ],
)
def test_boundary(image: np.ndarray, grid: np.ndarray, is_found: bool, tmp_path: Path) -> None:
    found = ask(find_lost_places, *_scan(tmp_path, (image, grid)))
    assert [one.node for one in found] == ["GridSample_y"] * is_found


FLOW = [
    node("Range", "start width one", "columns"),
    node("Unsqueeze", "columns first", "column"),
    node("Conv", "x w", "flow", pads=[0, 0, 0, 0]),
    node("Add", "flow column", "place"),
    node("Mul", "place two", "doubled"),
    node("Div", "doubled most", "share"),
    node("Sub", "share one", "h"),
    node("Mul", "h nothing", "v"),
    node("Concat", "h v", "hv", axis=1),
    node("Transpose", "hv", "g", perm=[0, 2, 3, 1]),
    SAMPLE,
]
CONSTANTS = {
    "start": scalar(0),
    "width": scalar(1200),
    "one": scalar(1),
    "two": scalar(2),
    "most": scalar(1199),
    "nothing": scalar(0),
    "first": ints(0),
    "w": np.full((1, 2, 1, 1), 0.7, np.float32),
}


def test_all_that_makes_the_grid_is_pinned_back_to_the_layer(tmp_path: Path) -> None:
    """The flow itself is small, and columns up to 1199 are integers that FP16 has; `v` is zero."""
    model = make_model(FLOW, {"x": [1, 2, 64, 1200]}, "y", CONSTANTS, opset=18)
    graph, ranges = scan(model, tmp_path, {"x": _draw(1200)})
    pins = pinned_by(find_lost_places, graph, ranges)
    assert pins == "Add_place Mul_doubled Div_share Sub_h Concat_hv Transpose_g GridSample_y".split()


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([node("Identity", "p", "g")], False),
        ([node("Mul", "p half", "h"), node("Mul", "h two", "g")], True),
    ],
    ids=["moved", "computed"],
)
def test_half_as_much_will_do_of_a_grid_that_is_computed(
    nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path
) -> None:
    constants = {"half": scalar(0.5), "two": scalar(2)}
    model = make_model([*nodes, SAMPLE], {"x": [None] * 4, "p": [None] * 4}, "y", constants, opset=20)
    found = ask(find_lost_places, *scan(model, tmp_path, {"x": _draw(300), "p": _draw_grid()}))
    assert [one.node for one in found] == ["Mul_h", "Mul_g", "GridSample_y"] * is_found
    assert all(1 / 64 == one.limit < one.value < LARGEST_LOSS for one in found)


def test_a_grid_that_is_cast_is_pinned_with_the_cast(tmp_path: Path) -> None:
    nodes = [node("Cast", "d", "g", to=TensorProto.FLOAT), SAMPLE]
    model = make_model(nodes, {"x": [None] * 4, "d": (TensorProto.DOUBLE, [None] * 4)}, "y", opset=20)
    graph, ranges = scan(model, tmp_path, {"x": _draw(1200), "d": _draw_grid().astype(np.float64)})
    assert pinned_by(find_lost_places, graph, ranges) == ["Cast_g", "GridSample_y"]


def test_one_finding_for_each_sampler(tmp_path: Path) -> None:
    nodes = [node("Identity", "g", "h"), node("GridSample", "x h", "a"), node("GridSample", "x h", "b")]
    model = make_model([*nodes, node("Sum", "a b", "y")], {"x": [None] * 4, "g": [None] * 4}, "y", opset=20)
    graph, ranges = scan(model, tmp_path, {"x": _draw(1200), "g": _draw_grid()})
    assert [one.node for one in ask(find_lost_places, graph, ranges)].count("Identity_h") == 2


@pytest.mark.parametrize("opset", [16, 19])
def test_inside_a_body(opset: int, tmp_path: Path) -> None:
    """Flow is refined in loops; nothing tells there how many axes what a body reads has."""
    result = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    branches = {
        f"{word}_branch": onnx.helper.make_graph([SAMPLE], word, [], [result]) for word in ("then", "else")
    }
    nodes = [node("Add", "x x", "x2"), node("If", "c", "out", **branches)]
    branches["then_branch"].node[0].input[0] = "x2"
    inputs = {"x": [None] * 4, "g": [None] * 4, "c": (TensorProto.BOOL, [])}
    graph, ranges = scan(
        make_model(nodes, inputs, "out", opset=opset),
        tmp_path,
        {"x": _draw(1200), "g": _draw_grid(), "c": np.asarray(True)},
    )
    plan = plan_precision(graph, ranges, PlanPolicy())
    told = [one for pin in plan.pins for one in pin.findings if one.rule == "lost_place"]
    assert {one.node for one in told} == {"If_out"}


def _scan_mask(
    folder: Path, most: float = 1.2, one: float = 1.0, bound: float = 0.5, size: int = 96, mode: str = "zeros"
) -> tuple[Any, Any]:
    """A mask of ones, sampled at places that are made of pixels, and compared."""
    nodes = [
        node("Mul", "p scale", "g"),
        node("GridSample", "ones g", "m", align_corners=1, padding_mode=mode),
        node("Greater", "m bound", "c"),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    constants = {"scale": scalar(2 / size), "bound": scalar(bound)}
    constants["ones"] = np.full((1, 1, size, size), one, np.float32)
    model = make_model(nodes, {"p": [1, size, size, 2]}, "y", constants, opset=20)
    return scan(model, folder, {"p": _draw_pixels(most, size)})


def _draw_pixels(most: float, size: int) -> np.ndarray:
    return (
        np.random.default_rng(3)
        .uniform(-most * size / 2, most * size / 2, (1, size, size, 2))
        .astype(np.float32)
    )


@pytest.mark.parametrize(
    ("changed", "is_found"),
    [
        ({}, True),
        ({"one": 255.0}, True),
        ({"most": 0.99}, False),
        ({"bound": 1.5}, False),
        ({"bound": -0.5}, False),
        ({"one": 0.0}, False),
        ({"mode": "border"}, False),
    ],
)
def test_a_mask_is_lost_at_its_edge(changed: dict[str, Any], is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan_mask(tmp_path, **changed)
    assert pinned_by(find_lost_places, graph, ranges) == (["Mul_g", "GridSample_m"] if is_found else [])


@pytest.mark.parametrize("size", [96, 384])
def test_the_mask_loses_as_much_whatever_its_size(size: int, tmp_path: Path) -> None:
    graph, ranges = _scan_mask(tmp_path, size=size)
    path, feeds = tmp_path / "model.onnx", {"p": _draw_pixels(1.2, size)}
    assert 25 < measure_snr_db(path, feeds) < 37
    assert measure_snr_db(path, feeds, {"g", "m", "c"}) == np.inf
    told = ask(find_lost_places, graph, ranges)
    assert "lose 0.0312 of what is sampled, at the edge of a mask" in told[0].reason


def test_a_mask_at_places_that_are_fed_is_under_the_limit(tmp_path: Path) -> None:
    nodes = [node("GridSample", "ones g", "m"), node("Greater", "m bound", "c")]
    nodes.append(node("Cast", "c", "y", to=TensorProto.FLOAT))
    constants = {"bound": scalar(0.5), "ones": np.ones((1, 1, 64, 64), np.float32)}
    graph, ranges = scan(
        make_model(nodes, {"g": [None] * 4}, "y", constants, opset=20), tmp_path, {"g": _draw_grid(1.2)}
    )
    assert ask(find_lost_places, graph, ranges) == []


def test_what_else_is_compared_makes_no_mask_of_ones_that_are_not(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "p scale", "g"),
        node("GridSample", "ones g", "m", align_corners=1),
        node("Greater", "p bound", "c"),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    constants = {"scale": scalar(2 / 96), "bound": scalar(0.5), "ones": np.ones((1, 1, 96, 96), np.float32)}
    model = make_model(nodes, {"p": [1, 96, 96, 2]}, "y m", constants, opset=20)
    graph, ranges = scan(model, tmp_path, {"p": _draw_pixels(1.2, 96)})
    assert ask(find_lost_places, graph, ranges) == []

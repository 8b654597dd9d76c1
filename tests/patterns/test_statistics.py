"""Whether a statistic lies as what was reduced does, and whether it is a mean: proved by shapes, or not taken for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns import find_regions
from overflow_fixer.patterns.statistics import (
    dropped_axes,
    is_aligned,
    maker,
    mean_reduction,
    read_axes,
    reduction,
    skip,
)
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import SessionRunner, open_session

Nodes = list[onnx.NodeProto]


def _sum(axes: list[int], keepdims: int = 0) -> onnx.NodeProto:
    return node("ReduceMax", "x", "t", axes=axes, keepdims=keepdims)


def _save(folder: Path, nodes: Nodes, shape: Any, opset: int = 13, **constants: Any) -> Graph:
    nodes = [*nodes, node("Identity", nodes[-1].output[0], "y")]
    return save(make_model(nodes, {"x": shape}, "y", constants, opset=opset), folder)


RESHAPE = node("Reshape", "t to", "r")
EXPAND = node("Expand", "r to_all", "e")
SHAPE_OF = [
    node("Shape", "x", "s"),
    node("Slice", "s zero first zero", "n"),
    node("Cast", "s", "i", to=onnx.TensorProto.INT32),
    node("Slice", "i first second zero", "j"),
    node("Cast", "j", "c", to=onnx.TensorProto.INT64),
]


@pytest.mark.parametrize(
    ("shape", "nodes", "constants", "expected"),
    [
        ([4, 4], [_sum([1])], {}, (1,)),
        ([4, 4], [_sum([-2])], {}, (0,)),
        ([4, 4], [_sum([1], 1)], {}, ()),
        ([4, 4], [_sum([0, 1])], {}, ()),
        ([4, 4], [node("ReduceMax", "x", "t", keepdims=0)], {}, ()),
        (None, [_sum([1], 1)], {}, ()),
        (None, [_sum([1])], {}, None),
        (None, [node("ReduceMax", "x", "t", keepdims=0)], {}, ()),
        ([4, 4], [_sum([1]), RESHAPE], {"to": ints(4, 1)}, ()),
        ([4, 4], [_sum([1]), RESHAPE], {"to": ints(1, 4)}, None),
        ([4, 4], [_sum([0]), RESHAPE], {"to": ints(1, 4)}, ()),
        ([4, 4], [_sum([1]), RESHAPE], {"to": ints(4, 1, 1)}, None),
        ([4, 4], [_sum([1]), RESHAPE], {"to": ints(2, 2)}, None),
        ([4, 4], [_sum([0, 1]), RESHAPE], {"to": ints(1, 1)}, ()),
        ([4, 4], [_sum([1], 1), RESHAPE], {"to": ints(4, 1)}, ()),
        ([4, 4], [_sum([1], 1), RESHAPE], {"to": ints(1, 4)}, None),
        ([4, 4], [_sum([1]), node("Unsqueeze", "t to", "r")], {"to": ints(1)}, ()),
        ([4, 4], [_sum([1]), node("Unsqueeze", "t to", "r")], {"to": ints(-1)}, ()),
        ([4, 4], [_sum([1]), node("Unsqueeze", "t to", "r")], {"to": ints(0)}, None),
        ([4, 4], [_sum([1], 1), node("Unsqueeze", "t to", "r")], {"to": ints(0)}, None),
        ([4, 4], [_sum([1]), RESHAPE, EXPAND], {"to": ints(4, 1), "to_all": ints(4, 4)}, ()),
        ([4, 4], [_sum([1]), RESHAPE, EXPAND], {"to": ints(4, 1), "to_all": ints(2, 4, 4)}, None),
        ([4, 4], [_sum([1]), RESHAPE, EXPAND], {"to": ints(4, 1), "to_all": ints(4, 8)}, None),
        ([4, 4], [_sum([1]), node("Expand", "t to", "e")], {"to": ints(4, 4)}, None),
        ([4, 4], [_sum([1]), node("Mul", "t w", "m")], {"w": scalar(2)}, (1,)),
        ([4, 4], [_sum([1]), node("Mul", "t w", "m")], {"w": np.ones(4, np.float32)}, None),
        ([4, 4], [_sum([1], 1), node("Mul", "t w", "m")], {"w": np.ones(4, np.float32)}, ()),
        ([4, 4], [_sum([1]), node("Mul", "t w", "m")], {"w": np.ones((1, 1), np.float32)}, None),
        ([4, 4], [_sum([1]), node("Mul", "t w", "m")], {"w": np.ones(1, np.float32)}, (1,)),
        ([4, 4], [_sum([1]), node("Pow", "t w", "m")], {"w": ints(1, 1, 2, 2)}, None),
        (
            ["n", 4],
            [_sum([1], 1), node("Pow", "t w", "m"), node("Reshape", "m to", "r")],
            {"w": ints(1, 1, 2, 2), "to": ints(-1, 1)},
            None,
        ),
        (
            [4, 4],
            [_sum([1]), node("Mul", "t w", "m"), node("Reshape", "m to", "r")],
            {"w": np.ones(4, np.float32), "to": ints(4, 1)},
            None,
        ),
        (
            [4, 4],
            [_sum([1]), node("Mul", "t w", "m"), node("Reshape", "m to", "r")],
            {"w": scalar(2), "to": ints(4, 1)},
            (),
        ),
        (
            ["n", 4],
            [_sum([1], 1), node("Expand", "t to_all", "e"), node("Reshape", "e to", "r")],
            {"to": ints(-1, 1), "to_all": ints(1, 4)},
            None,
        ),
        ([4, 4], [node("Exp", "x", "t")], {}, None),
        ([4, 4], [_sum([1], 1), node("Transpose", "t", "r")], {}, None),
        (["n", 4], [_sum([1]), RESHAPE], {"to": ints(-1, 1)}, ()),
        (["n", 4], [_sum([1]), RESHAPE], {"to": ints(1, -1)}, None),
        (["n", "c"], [_sum([0]), RESHAPE], {"to": ints(1, -1)}, ()),
        (["n", "c", 4], [_sum([2]), RESHAPE], {"to": ints(0, 0, 1)}, ()),
        (["n", "c", 4], [_sum([2]), RESHAPE], {"to": ints(-1, 3, 1)}, None),
        (["n", "c", 4], [*SHAPE_OF, node("Concat", "n c one", "to", axis=0), _sum([2]), RESHAPE], {}, ()),
        (["n", "c", 4], [*SHAPE_OF, node("Concat", "n one c", "to", axis=0), _sum([2]), RESHAPE], {}, None),
        (["n", "c", 4], [*SHAPE_OF, node("Concat", "c n one", "to", axis=0), _sum([2]), RESHAPE], {}, None),
    ],
)
@pytest.mark.parametrize("opset", [13, 15])
def test_the_axes_that_a_statistic_lacks(
    opset: int,
    shape: Any,
    nodes: Nodes,
    constants: dict[str, Any],
    expected: tuple[int, ...] | None,
    tmp_path: Path,
) -> None:
    places = {"zero": ints(0), "first": ints(1), "second": ints(2), "one": ints(1)}
    graph = _save(tmp_path, nodes, shape, opset, **places, **constants)
    tensor = nodes[-1].output[0]
    assert dropped_axes(graph, tensor) == expected
    assert is_aligned(graph, tensor) == (expected == ())


def test_a_shape_that_the_model_only_records_proves_nothing(tmp_path: Path) -> None:
    model = make_model(
        [node("Identity", "x", "h"), node("ReduceMax", "h", "t", axes=[2], keepdims=0), RESHAPE],
        {"x": None, "to": (onnx.TensorProto.INT64, [3])},
        "r",
        opset=13,
    )
    for name, dims in (("h", [4, 4, 4]), ("r", [4, 4, 1])):
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, dims))
    graph = save(model, tmp_path)
    assert not is_aligned(graph, "r")


@pytest.mark.parametrize(
    ("op", "number", "shape", "axes", "is_mean"),
    [
        ("Mul", 1 / 80, [3, 5, 16], [1, 2], True),
        ("Mul", np.nextafter(np.float32(1 / 80), np.float32(1)), [3, 5, 16], [1, 2], True),
        ("Mul", 1 / 81, [3, 5, 16], [1, 2], False),
        ("Mul", 80, [3, 5, 16], [1, 2], False),
        ("Mul", 1 / (2**20 - 1), [1, 2**20], [1], False),
        ("Div", 80, [3, 5, 16], [1, 2], True),
        ("Div", 240, [3, 5, 16], [0, 1, 2], True),
        ("Div", 79, [3, 5, 16], [1, 2], False),
        ("Div", 1 / 80, [3, 5, 16], [1, 2], False),
        ("Div", 0, [3, 5, 16], [1, 2], False),
        ("Mul", np.nan, [3, 5, 16], [1, 2], False),
        ("Div", 16, ["n", "t", 16], [2], True),
        ("Div", 16, ["n", "t", "c"], [2], False),
        ("Div", 16, None, [2], False),
        ("Add", 16, [3, 5, 16], [2], False),
    ],
)
def test_a_sum_over_the_number_of_its_elements_is_a_mean(
    op: str, number: float, shape: Any, axes: list[int], is_mean: bool, tmp_path: Path
) -> None:
    nodes = [node("ReduceSum", "x axes", "t", keepdims=0), node(op, "t c", "m")]
    graph = _save(tmp_path, nodes, shape, c=scalar(number), axes=np.asarray(axes))
    found = mean_reduction(graph, "m", "ReduceSum")
    assert (found is not None and found.label == "ReduceSum_t") == is_mean
    assert mean_reduction(graph, "m", "ReduceSumSquare") is None


def test_the_number_of_elements_over_a_sum_is_no_mean(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", "x axes", "t"), node("Div", "c t", "m")]
    graph = _save(tmp_path, nodes, [3, 16], c=scalar(16), axes=ints(1))
    assert mean_reduction(graph, "m", "ReduceSum") is None


def test_a_sum_over_no_axis_that_then_does_nothing_is_none(tmp_path: Path) -> None:
    graph = _save(tmp_path, [node("ReduceSum", "x", "t", noop_with_empty_axes=1)], [4, 4])
    assert maker(graph, "t", "ReduceSum") is not None
    assert reduction(graph, "t", "ReduceSum") is None


def test_a_sum_over_an_axis_that_is_named_is_one_whatever_it_did_with_none(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", "x axes", "t", noop_with_empty_axes=1)]
    found = reduction(_save(tmp_path, nodes, [4, 4], axes=ints(1)), "t", "ReduceSum")
    assert found is not None
    assert found.label == "ReduceSum_t"


@pytest.mark.parametrize(("shape", "axes"), [([2, 3, 4], (2,)), ([2, 3, 4, 5], (2, 3)), (None, None)])
def test_the_axes_of_a_pool(shape: Any, axes: tuple[int, ...] | None, tmp_path: Path) -> None:
    graph = _save(tmp_path, [node("GlobalAveragePool", "x", "t")], shape)
    assert read_axes(graph, graph.producers["t"]) == axes
    assert is_aligned(graph, "t")


def _square_norm(put_back: Nodes) -> Nodes:
    """(x - mean) / sqrt(variance + epsilon) over the rows of a square, the mean's axis put back by these nodes."""
    return [
        node("ReduceMean", "x", "t", axes=[1], keepdims=0),
        *put_back,
        node("Sub", "x m", "d"),
        node("Mul", "d d", "q"),
        node("ReduceMean", "q", "v", axes=[1]),
        node("Add", "v eps", "s"),
        node("Sqrt", "s", "root"),
        node("Div", "d root", "n"),
    ]


@pytest.mark.parametrize(
    ("put_back", "is_layer_norm"),
    [
        ([node("Reshape", "t column", "m")], True),
        ([node("Reshape", "t column", "r"), node("Expand", "r square", "m")], True),
        ([node("Reshape", "t row", "m")], False),
        ([node("Reshape", "t row", "r"), node("Expand", "r square", "m")], False),
        ([node("Expand", "t square", "m")], False),
        ([node("Identity", "t", "m")], False),
    ],
)
def test_a_mean_of_rows_that_is_taken_from_columns_makes_no_layer_norm(
    put_back: Nodes, is_layer_norm: bool, tmp_path: Path
) -> None:
    nodes = _square_norm(put_back)
    constants = {"eps": scalar(1e-3), "column": ints(4, 1), "row": ints(1, 4), "square": ints(4, 4)}
    graph = _save(tmp_path, nodes, [4, 4], **constants)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    found = SessionRunner(open_session(graph.path, tmp_path)).run(Batch("b", {"x": x}))["y"]
    wide = x.astype(np.float64)
    right = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-3)
    assert np.allclose(found, right, rtol=1e-4, atol=1e-5) == is_layer_norm
    kinds = [region.kind for region in find_regions(graph)]
    assert ("LayerNorm" in kinds) == is_layer_norm


class _CountedShapes(dict[str, Any]):
    """Shapes that count how often one is asked for."""

    asked = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(name, default)


SQUARES = [node("Mul", "x x", "q")]
DROPPED = {"axes": [1], "keepdims": 0}


@pytest.mark.parametrize(
    ("nodes", "kind", "is_found"),
    [
        (
            [
                *SQUARES,
                node("ReduceMean", "q", "v", axes=[1]),
                node("Sqrt", "v", "r"),
                node("Div", "x r", "n"),
            ],
            "RMSNorm",
            True,
        ),
        (
            [
                *SQUARES,
                node("ReduceMean", "q", "v", **DROPPED),
                node("Sqrt", "v", "r"),
                node("Div", "x r", "n"),
            ],
            "RMSNorm",
            False,
        ),
        (
            [
                *SQUARES,
                node("ReduceMean", "q", "v", **DROPPED),
                node("Pow", "v power", "i"),
                node("Mul", "x i", "n"),
            ],
            "RMSNorm",
            False,
        ),
        ([node("ReduceLogSumExp", "x", "l", axes=[1]), node("Sub", "x l", "n")], "LogSoftmax", True),
        ([node("ReduceLogSumExp", "x", "l", **DROPPED), node("Sub", "x l", "n")], "LogSoftmax", False),
        (
            [
                node("Exp", "x", "e"),
                node("ReduceSum", "e one", "t", keepdims=1),
                node("Log", "t", "l"),
                node("Sub", "x l", "n"),
            ],
            "LogSoftmax",
            True,
        ),
        (
            [
                node("Exp", "x", "e"),
                node("ReduceSum", "e one", "t", keepdims=0),
                node("Log", "t", "l"),
                node("Sub", "x l", "n"),
            ],
            "LogSoftmax",
            False,
        ),
    ],
)
def test_in_a_square_a_statistic_of_other_rows_makes_no_pattern(
    nodes: Nodes, kind: str, is_found: bool, tmp_path: Path
) -> None:
    graph = _save(tmp_path, nodes, [4, 4], power=scalar(-0.5), one=ints(1))
    assert [region.kind for region in find_regions(graph)] == ([kind] if is_found else [])


@pytest.mark.parametrize(("keeps_squares", "keeps_mean"), [(1, 1), (1, 0), (0, 1)])
def test_in_a_spread_both_means_lie_alike(keeps_squares: int, keeps_mean: int, tmp_path: Path) -> None:
    """E[x^2] of rows less E[x]^2 of columns is no variance."""
    nodes = [
        *SQUARES,
        node("ReduceMean", "q", "u", axes=[1], keepdims=keeps_squares),
        node("ReduceMean", "x", "m", axes=[1], keepdims=keeps_mean),
        node("Mul", "m m", "c"),
        node("Sub", "u c", "v"),
        node("Sqrt", "v", "root"),
        node("ReduceMean", "x", "k", axes=[1]),
        node("Sub", "x k", "d"),
        node("Div", "d root", "n"),
    ]
    found = find_regions(_save(tmp_path, nodes, [4, 4]))
    assert [region.kind for region in found] == (["LayerNorm"] if keeps_squares and keeps_mean else [])


@pytest.mark.parametrize(("put_back", "source"), [("Unsqueeze", "x"), ("Expand", "d")])
def test_a_softmax_begins_at_a_maximum_of_its_own_rows(put_back: str, source: str, tmp_path: Path) -> None:
    nodes = [
        node("ReduceMax", "x", "t", axes=[1], keepdims=0),
        node(put_back, "t to", "m"),
        node("Sub", "x m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e one", "s"),
        node("Div", "e s", "n"),
    ]
    places = (1,) if put_back == "Unsqueeze" else (4, 4)
    (region,) = find_regions(_save(tmp_path, nodes, [4, 4], to=ints(*places), one=ints(1)))
    assert (region.kind, region.source) == ("Softmax", source)


@pytest.mark.parametrize(("order", "expected"), [("b one", ()), ("one b", None)])
def test_a_difference_has_the_shape_of_what_its_own_statistic_is_taken_from(
    order: str, expected: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Below opset 14 ONNX infers no shape of it; that of x less the maxima of other rows is not known."""
    nodes = [
        node("Shape", "x", "dims"),
        node("Slice", "dims zero one zero", "b"),
        node("Concat", order, "to", axis=0),
        node("ReduceMax", "x", "t", axes=[1], keepdims=0),
        node("Reshape", "t to", "m"),
        node("Sub", "x m", "d"),
        node("ReduceMax", "d", "u", axes=[1], keepdims=0),
        node("Reshape", "u column", "n"),
    ]
    graph = _save(tmp_path, nodes, ["n", 4], zero=ints(0), one=ints(1), column=ints(-1, 1))
    assert "d" not in graph.sure_shapes
    assert dropped_axes(graph, "n") == expected


_FED = {"others": None, "fed": (onnx.TensorProto.INT64, ["k"])}
_COMPUTED_SHAPE = [
    node("Shape", "x", "dims"),
    node("Slice", "dims zero one zero", "b"),
    node("Concat", "b one one", "to", axis=0),
    node("Concat", "b one six", "all", axis=0),
]


@pytest.mark.parametrize(
    ("shift", "power", "is_mean"),
    [
        ([node("Expand", "r all", "m")], node("Mul", "d d", "q"), True),
        ([node("Expand", "r to", "m")], node("Pow", "d two", "q"), True),
        ([node("Mul", "r two", "m")], node("Mul", "d d", "q"), True),
        ([node("Identity", "r", "m")], node("Mul", "d column", "q"), False),
        ([node("Identity", "r", "m")], node("Mul", "d others", "q"), False),
        ([node("Identity", "r", "m")], node("Pow", "d column", "q"), False),
        ([node("Mul", "r column", "m")], node("Mul", "d d", "q"), False),
        ([node("Add", "r others", "m")], node("Mul", "d d", "q"), False),
        ([node("ReduceMean", "others", "m", axes=[1])], node("Mul", "d d", "q"), False),
        ([node("Expand", "r fed", "m")], node("Mul", "d d", "q"), False),
        ([node("Expand", "r tall", "m")], node("Mul", "d d", "q"), False),
        ([node("Expand", "r deep", "m")], node("Mul", "d d", "q"), False),
    ],
)
def test_a_sum_of_more_elements_than_it_is_divided_by_is_no_mean(
    shift: Nodes, power: onnx.NodeProto, is_mean: bool, tmp_path: Path
) -> None:
    """Below opset 14 the shape of what is squared is not inferred, and x has six elements in a row where others have 48."""
    nodes = [
        *_COMPUTED_SHAPE,
        node("ReduceMean", "x", "t", axes=[2], keepdims=0),
        node("Reshape", "t to", "r"),
        *shift,
        node("Sub", "x m", "d"),
        power,
        node("ReduceSum", "q last", "s"),
        node("Mul", "s share", "v"),
        node("Identity", "v", "y"),
    ]
    constants = {"zero": ints(0), "one": ints(1), "six": ints(6), "last": ints(1, 2), "two": scalar(2)}
    constants |= {"column": np.full((8, 1), 2, np.float32), "share": scalar(1 / 6)}
    constants |= {"tall": ints(1, 8, 6), "deep": ints(2, 1, 1, 1)}
    model = make_model(nodes, {"x": ["n", 1, 6], **_FED}, "y q", constants, opset=13)
    graph = save(model, tmp_path)
    x = np.random.default_rng(0).normal(size=(2, 1, 6)).astype(np.float32)
    feeds = {"x": x, "others": np.full((8, 1), 2, np.float32), "fed": ints(1, 8, 1)}
    found = SessionRunner(open_session(graph.path, tmp_path)).run(Batch("b", feeds))
    right = found["q"].astype(np.float64).mean((1, 2), keepdims=True)
    assert np.allclose(found["y"], right, rtol=1e-5) == is_mean
    assert (mean_reduction(graph, "v", "ReduceSum") is not None) == is_mean


def test_a_row_of_differences_is_not_followed_to_its_beginning(tmp_path: Path) -> None:
    """Each would ask for the shape of the one before several times over."""
    nodes = [
        node("Shape", "x", "dims"),
        node("Slice", "dims zero one zero", "b"),
        node("Concat", "b one", "to", axis=0),
    ]
    for index in range(6):
        before = f"d{index - 1}" if index else "x"
        nodes += [
            node("ReduceMax", before, f"t{index}", axes=[1], keepdims=0),
            node("Reshape", f"t{index} to", f"r{index}"),
            node("Sub", f"{before} r{index}", f"d{index}"),
        ]
    graph = _save(tmp_path, nodes, ["n", 4], zero=ints(0), one=ints(1))
    counted = _CountedShapes(graph.sure_shapes)
    graph.__dict__["sure_shapes"] = counted
    assert is_aligned(graph, "r1")
    assert not is_aligned(graph, "r2")
    counted.asked = 0
    assert not is_aligned(graph, "r5")
    assert counted.asked < 100


def test_a_region_takes_what_puts_axes_back_but_not_the_shapes(tmp_path: Path) -> None:
    """Of a batch that is not known, the shape is made of the input's, as tf2onnx does."""
    nodes = [
        node("Shape", "x", "dims"),
        node("Slice", "dims zero one zero", "b"),
        node("Concat", "b one", "to", axis=0),
        node("ReduceSum", "x one", "t", keepdims=0),
        node("Mul", "t share", "u"),
        node("Reshape", "u to", "r"),
        node("Expand", "r to", "m"),
        *_square_norm([])[1:],
    ]
    constants = {"zero": ints(0), "one": ints(1), "share": scalar(1 / 6), "eps": scalar(1e-3)}
    graph = _save(tmp_path, nodes, ["n", 6], **constants)
    (region,) = find_regions(graph)
    assert region.nodes == tuple(proto.name for proto in nodes[3:])
    assert (region.kind, region.source, region.output) == ("LayerNorm", "x", "n")


@pytest.mark.parametrize(("to", "is_found"), [((4, 1), True), ((1, 4), False)])
def test_axes_are_passed_where_they_are_put_back_alone(
    to: tuple[int, int], is_found: bool, tmp_path: Path
) -> None:
    graph = _save(tmp_path, [_sum([1]), RESHAPE], [4, 4], to=ints(*to))
    assert (maker(graph, "r", "ReduceMax") is not None) == is_found


@pytest.mark.parametrize(
    ("opset", "clip"), [(10, node("Clip", "t", "c", min=1.0, max=2.0)), (13, node("Clip", "t low high", "c"))]
)
def test_a_clip_takes_constants_in_as_attributes_and_as_inputs(
    opset: int, clip: onnx.NodeProto, tmp_path: Path
) -> None:
    low_high = {} if opset < 11 else {"low": scalar(1), "high": scalar(2)}
    graph = _save(tmp_path, [_sum([1], 1), clip], [4, 4], opset, **low_high)
    before, skipped = skip(graph, "c", ("Clip",))
    assert (before, [one.op_type for one in skipped]) == ("t", ["Clip"])

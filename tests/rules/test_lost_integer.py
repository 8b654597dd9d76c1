"""Integers over 2048, where something tells them apart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto, helper

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_integer import find_lost_integers

INT64 = TensorProto.INT64
CAST = node("Cast", "ids", "p", to=TensorProto.FLOAT)
CONSTANTS = {
    "one": scalar(1),
    "near": scalar(2047),
    "far": scalar(3001),
    "even": scalar(3000),
    "third": scalar(1 / 3),
    "top": ints(1),
    "zero": ints(0),
}


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], ids: Any, outputs: str = "y", **types: int
) -> tuple[Graph, RangeTable]:
    inputs = {"ids": (INT64, None), "x": [None]}
    model = make_model([CAST, *nodes], inputs, outputs, CONSTANTS, output_types=types)
    return scan(model, folder, {"ids": np.asarray(ids, np.int64), "x": floats(0.3, 0.7)})


@pytest.mark.parametrize(
    ("ids", "is_found"),
    [
        ([0, 2047], False),
        ([0, 2048], False),
        ([0, 2049], True),
        ([-2049, 0], True),
        (2049, True),
        (2048, False),
        (3000, False),
        ([], False),
    ],
)
def test_boundary(ids: Any, is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Neg", "p", "y")], ids)
    assert pinned_by(find_lost_integers, graph, ranges) == (["Cast_p", "Neg_y"] if is_found else [])


def test_the_evidence(tmp_path: Path) -> None:
    inputs = {"ids": (INT64, [2])}
    model = make_model([CAST, node("Sub", "p even", "y")], inputs, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"ids": ints(1, 2)}, {"ids": ints(1, 5001)})
    cast, sub = ask(find_lost_integers, graph, ranges)
    assert (cast.node, sub.node, sub.tensor, sub.batch) == ("Cast_p", "Sub_y", "p", "batch_1")
    assert (sub.value, sub.limit, sub.action) == (5001, 2048, "pin")
    assert sub.reason == (
        "p holds integers up to 5001, of which FP16 tells apart those up to 2048, and Sub Sub_y tells them apart"
    )


@pytest.mark.parametrize(
    ("op", "inputs", "is_found"),
    [
        ("Sub", "p far", True),
        ("Sub", "far p", True),
        ("Sub", "p near", False),
        ("Sub", "p one", False),
        ("Add", "p far", False),
        ("Equal", "p far", True),
        ("Less", "one p", True),
        ("Mod", "p far", True),
        ("Log", "p", False),
        ("Sqrt", "p", False),
        ("Div", "one p", False),
        ("Mul", "p third", False),
        ("Sigmoid", "p", False),
        ("ReduceMean", "p", False),
    ],
)
def test_what_tells_them_apart(op: str, inputs: str, is_found: bool, tmp_path: Path) -> None:
    extra = {"fmod": 1} if op == "Mod" else {}
    nodes = [node(op, inputs, "a", **extra), node("Cast", "a", "b", to=TensorProto.FLOAT)]
    nodes += [node("Sigmoid", "b", "y")]
    graph, ranges = _scan(tmp_path, nodes, [1, 4001])
    found = {finding.node for finding in ask(find_lost_integers, graph, ranges)}
    assert found == ({"Cast_p", f"{op}_a"} if is_found else set())


def test_the_way_goes_on_where_values_become_small_but_are_rounded(tmp_path: Path) -> None:
    """4095 / 64 is 63.98, of which FP16 makes 64."""
    nodes = [
        node("Mul", "p third", "a"),
        node("Reshape", "a top", "b"),
        node("Floor", "b", "c"),
        node("Relu", "c", "y"),
    ]
    graph, ranges = _scan(tmp_path, nodes, [4001])
    pins = pinned_by(find_lost_integers, graph, ranges)
    assert pins == ["Cast_p", "Mul_a", "Reshape_b", "Floor_c"]


@pytest.mark.parametrize(
    ("mover", "opset"),
    [
        (node("Resize", "image - doubled", "a", mode="nearest"), 17),
        (node("Upsample", "image doubled", "a", mode="nearest"), 9),
        (node("CenterCropPad", "image four", "a", axes=[2]), 18),
        (node("ThresholdedRelu", "image", "a", alpha=0.5), 17),
        (node("MaxPool", "image", "a", kernel_shape=[1, 1]), 17),
        (node("GlobalMaxPool", "image", "a"), 17),
        (node("GridSample", "image grid", "a", mode="nearest"), 16),
        (node("LeakyRelu", "image", "a"), 17),
        (node("PRelu", "image tenth", "a"), 17),
        (node("Mean", "image image", "a"), 17),
    ],
    ids=lambda given: given.op_type if isinstance(given, onnx.NodeProto) else "",
)
def test_labels_in_an_image(mover: onnx.NodeProto, opset: int, tmp_path: Path) -> None:
    nodes = [
        CAST,
        node("Reshape", "p shape", "image"),
        mover,
        node("Cast", "a", "i", to=INT64),
        node("Cast", "i", "y", to=TensorProto.FLOAT),
    ]
    constants = {
        "shape": ints(1, 1, 1, 2),
        "doubled": floats(1, 1, 2, 2),
        "four": ints(4),
        "grid": floats(-0.5, 0, 0.5, 0).reshape(1, 1, 2, 2),
        "tenth": scalar(0.1),
    }
    graph, ranges = scan(
        make_model(nodes, {"ids": (INT64, [2])}, "y", constants, opset), tmp_path, {"ids": ints(1, 4001)}
    )
    pins = pinned_by(find_lost_integers, graph, ranges)
    assert pins[:4] == ["Cast_p", "Reshape_image", f"{mover.op_type}_a", "Cast_i"]


@pytest.mark.parametrize(("largest", "is_found"), [(4001, True), (2048, False)])
@pytest.mark.parametrize(
    "chooser",
    [
        node("Gather", "x last", "a", axis=1),
        node("Slice", "x two end axis", "a"),
        node("Split", "x parts", "rest a", axis=1),
        node("GatherND", "x places", "a", batch_dims=1),
    ],
    ids=lambda chooser: chooser.op_type,
)
def test_ids_among_other_features(
    chooser: onnx.NodeProto, largest: int, is_found: bool, tmp_path: Path
) -> None:
    """A row of a table: two fractions, and a number of a user, which an embedding is looked up by."""
    nodes = [chooser, node("Cast", "a", "i", to=INT64), node("Gather", "table i", "y")]
    constants = {
        "last": ints(2),
        "two": ints(2),
        "end": ints(3),
        "axis": ints(1),
        "parts": ints(2, 1),
        "places": ints(2, 2).reshape(2, 1),
        "table": np.zeros((4002, 1), np.float32),
    }
    x = np.array([[0.3, -1.7, largest], [0.1, 2.2, 7]], np.float32)
    graph, ranges = scan(make_model(nodes, {"x": [2, 3]}, "y", constants), tmp_path, {"x": x})
    pins = pinned_by(find_lost_integers, graph, ranges)
    assert pins == ([f"{chooser.op_type}_{chooser.output[0]}", "Cast_i"] if is_found else [])


def test_casts_to_integers_and_what_orders(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "p", "i", to=INT64),
        node("Cast", "p", "b", to=TensorProto.BOOL),
        node("ArgMax", "p", "best"),
        node("TopK", "p top", "most where"),
        node("Relu", "most", "y"),
    ]
    graph, ranges = _scan(
        tmp_path, nodes, [1, 4001], "y i b best where", i=INT64, b=TensorProto.BOOL, best=INT64, where=INT64
    )
    found = ask(find_lost_integers, graph, ranges)
    assert [f.node for f in found if f.tensor == "p"] == ["Cast_p", "Cast_i", "ArgMax_best", "TopK_most"]


def test_data_hide_small_ones_and_not_large_ones(tmp_path: Path) -> None:
    """The centre of a box is a place and data."""
    for name, factor, pins in (
        ("large", "one", ["Cast_p", "Mul_q", "Add_a", "Floor_y"]),
        ("small", "third", []),
    ):
        nodes = [
            node("Sigmoid", "x", "s"),
            node("Mul", f"p {factor}", "q"),
            node("Add", "q s", "a"),
            node("Floor", "a", "y"),
        ]
        (tmp_path / name).mkdir()
        graph, ranges = _scan(tmp_path / name, nodes, [1, 4001])
        found = [f.node for f in ask(find_lost_integers, graph, ranges)]
        assert found == pins


def test_products_with_data_are_not_followed(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "p s", "q"), node("Floor", "q", "f")]
    nodes += [node("Sigmoid", "f", "y")]
    graph, ranges = _scan(tmp_path, nodes, [1, 4001])
    assert pinned_by(find_lost_integers, graph, ranges) == []


def test_multiples_of_powers_of_two(tmp_path: Path) -> None:
    """Pixels at a stride of 8 are exact up to 16384."""
    for largest, limit in ((2048, None), (2049, 16384)):
        folder = tmp_path / str(largest)
        folder.mkdir()
        nodes = [node("Mul", "ids eight", "pixels"), node("Cast", "pixels", "a", to=TensorProto.FLOAT)]
        nodes += [node("Neg", "a", "y")]
        inputs = {"ids": (INT64, [2])}
        graph, ranges = scan(
            make_model(nodes, inputs, "y", {"eight": ints(8)}), folder, {"ids": ints(1, largest)}
        )
        found = ask(find_lost_integers, graph, ranges)
        assert [(f.node, f.limit) for f in found if f.tensor == "a"] == (
            [("Cast_a", limit), ("Neg_y", limit)] if limit is not None else []
        )


def test_the_limit_told_is_no_larger_than_fp16_holds(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "ids eight", "p"),
        node("Cast", "p", "a", to=TensorProto.FLOAT),
        node("Neg", "a", "y"),
    ]
    model = make_model(nodes, {"ids": (INT64, [2])}, "y", {"eight": ints(64)})
    graph, ranges = scan(model, tmp_path, {"ids": ints(1, 20001)})
    assert {one.limit for one in ask(find_lost_integers, graph, ranges) if one.tensor == "a"} == {65504}


def test_an_output_of_the_model(tmp_path: Path) -> None:
    nodes = [node("Mul", "p third", "small"), node("Mul", "small third", "y")]
    graph, ranges = _scan(tmp_path, nodes, [1, 4001], "y p")
    found = ask(find_lost_integers, graph, ranges)
    assert [(f.node, f.reason.split(", and ")[1]) for f in found] == [
        ("Cast_p", "the model gives them out in p")
    ]


def test_bodies_and_operators_of_other_domains_may_tell_them_apart(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Log", ["q"], ["inner"])], "body", [], [info])
    nodes = [
        node("Relu", "p", "q"),
        node("Cast", "x", "bits", to=TensorProto.BOOL),
        node("ReduceMax", "x", "most", keepdims=0),
        node("Cast", "most", "c", to=TensorProto.BOOL),
        node("If", "c", "a", then_branch=body, else_branch=body),
        node("Gelu", "q", "b", domain="com.microsoft"),
        node("Sigmoid", "a", "d"),
        node("Sigmoid", "b", "e"),
        node("Add", "d e", "y"),
    ]
    graph, ranges = _scan(tmp_path, nodes, [1, 4001])
    found = {f.node for f in ask(find_lost_integers, graph, ranges)}
    assert found == {"Cast_p", "Relu_q", "If_a", "Gelu_b"}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("SequenceConstruct", "p p", "s"), node("SequenceAt", "s zero", "a")],
        [node("SplitToSequence", "p", "s"), node("SequenceAt", "s zero", "a")],
        [
            node("SequenceEmpty", "", "e"),
            node("SequenceInsert", "e p", "s"),
            node("SequenceAt", "s zero", "a"),
        ],
        [node("Optional", "p", "s"), node("OptionalGetElement", "s", "a")],
    ],
    ids=lambda nodes: nodes[-2].op_type,
)
def test_into_a_sequence_or_optional_nobody_looks(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    nodes = [*nodes, node("Cast", "a", "y", to=INT64)]
    model = make_model([CAST, *nodes], {"ids": (INT64, None)}, "y", {"zero": np.asarray(0)}, 15, {"y": INT64})
    graph, ranges = scan(model, tmp_path, {"ids": ints(1, 4001)})
    assert pinned_by(find_lost_integers, graph, ranges)[0] == "Cast_p"


def test_what_holds_nan_or_infinity_is_left_to_other_rules(tmp_path: Path) -> None:
    for name, value in (("nan", math.nan), ("inf", math.inf)):
        (tmp_path / name).mkdir()
        model = make_model([node("Floor", "x", "a"), node("Neg", "a", "y")], {"x": [2]}, "y")
        graph, ranges = scan(model, tmp_path / name, {"x": floats(value, 3001)})
        assert ask(find_lost_integers, graph, ranges) == []


def test_masks_are_no_integers_to_tell_apart(tmp_path: Path) -> None:
    nodes = [
        node("Sub", "one p", "left_out"),
        node("Mul", "left_out low", "mask"),
        node("Add", "x mask", "y"),
    ]
    for low in (-1e4, -1e9, -3.4028234663852886e38):
        folder = tmp_path / str(low)
        folder.mkdir()
        inputs = {"ids": (INT64, [2]), "x": [2]}
        model = make_model([CAST, *nodes], inputs, "y", {"one": scalar(1), "low": scalar(low)})
        graph, ranges = scan(model, folder, {"ids": ints(1, 0), "x": floats(0.5, 0.25)})
        assert ask(find_lost_integers, graph, ranges) == []


@pytest.mark.parametrize(("low", "is_found"), [(-4096, False), (-4097, True)])
def test_a_mask_that_is_fed(low: float, is_found: bool, tmp_path: Path) -> None:
    """0 and -4096 are both FP16 numbers, 0 and -4097 are not."""
    model = make_model([node("Add", "s mask", "y")], {"s": [2], "mask": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"s": floats(0.5, 3000.5), "mask": floats(0, low)})
    assert pinned_by(find_lost_integers, graph, ranges) == (["Add_y"] if is_found else [])


def test_an_empty_batch_beside_another(tmp_path: Path) -> None:
    model = make_model([CAST, node("Neg", "p", "y")], {"ids": (INT64, [None])}, "y")
    graph, ranges = scan(model, tmp_path, {"ids": ints()}, {"ids": ints(1, 2049)})
    found = ask(find_lost_integers, graph, ranges)
    assert [(f.node, f.batch, f.value) for f in found if f.tensor == "p"] == [
        ("Cast_p", "batch_1", 2049),
        ("Neg_y", "batch_1", 2049),
    ]


def test_empty_constants(tmp_path: Path) -> None:
    nodes = [node("Concat", "p none", "joined", axis=0), node("Equal", "joined far", "same")]
    nodes += [node("Cast", "same", "y", to=TensorProto.FLOAT)]
    constants = {"none": floats(), "far": scalar(3001)}
    model = make_model([CAST, *nodes], {"ids": (INT64, [2])}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"ids": ints(1, 4001)})
    assert pinned_by(find_lost_integers, graph, ranges) == ["Cast_p", "Concat_joined", "Equal_same"]


@pytest.mark.parametrize("factor", [1, 16])
@pytest.mark.parametrize("use", ["Mod", "Sub"])
def test_what_is_counted_are_integers_whatever_the_flags_are_made_of(
    factor: int, use: str, tmp_path: Path
) -> None:
    """The positions of the tokens that are there, where each was scaled before."""
    nodes = [
        node("Mul", "ids k", "many"),
        node("Cast", "many", "flags", to=TensorProto.BOOL),
        node("Cast", "flags", "ones", to=TensorProto.FLOAT),
        node("CumSum", "ones axis", "places"),
        node(use, "places two", "a", **({"fmod": 1} if use == "Mod" else {})),
        node("Cast", "a", "y", to=INT64),
    ]
    constants = {"k": ints(factor), "axis": np.asarray(0), "two": scalar(2)}
    model = make_model(nodes, {"ids": (INT64, [None])}, "y", constants, output_types={"y": INT64})
    graph, ranges = scan(model, tmp_path, {"ids": np.ones(3000, np.int64)})
    pins = [f.node for f in ask(find_lost_integers, graph, ranges) if f.tensor == "places"]
    assert pins == ["CumSum_places", f"{use}_a", *(["Cast_y"] if use == "Sub" else [])]
    assert np.unique(np.arange(1, 3001).astype(np.float16)).size < 3000


def test_integers_that_are_scattered_below_opset_11(tmp_path: Path) -> None:
    nodes = [CAST, node("Scatter", "p top two", "q"), node("Mod", "q two", "y", fmod=1)]
    constants = {"top": ints(1), "two": floats(2)}
    model = make_model(nodes, {"ids": (INT64, [2])}, "y", constants, opset=10)
    graph, ranges = scan(model, tmp_path, {"ids": ints(4001, 1)})
    assert pinned_by(find_lost_integers, graph, ranges) == ["Cast_p", "Scatter_q", "Mod_y"]


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
def test_what_is_rounded_to_integers_over_2048_is_part_of_it(op: str, tmp_path: Path) -> None:
    """FP16 makes 3000 of 3001.6 by itself, 1023.5 it has."""
    for name, values, is_found in (("far", (3001.6, 0.3), True), ("near", (1023.5, 0.3), False)):
        (tmp_path / name).mkdir()
        nodes = [node("Sigmoid", "x", "s"), node("Mul", "s top", "a"), node("Reshape", "a shape", "b")]
        nodes += [node(op, "b", "y")]
        constants = {"top": scalar(2 * values[0]), "shape": ints(2, 1)}
        model = make_model(nodes, {"x": [2]}, "y", constants)
        graph, ranges = scan(model, tmp_path / name, {"x": floats(0, -3)})
        pins = ["Sigmoid_s", "Mul_a", "Reshape_b", f"{op}_y"]
        assert pinned_by(find_lost_integers, graph, ranges) == (pins if is_found else [])
    assert np.float16(3001.6) == 3002
    assert np.float16(1023.5) == 1023.5


@pytest.mark.parametrize(("divisor", "is_settled"), [(100.0, True), (1.5, False)])
def test_what_was_told_apart_is_settled_where_fp16_holds_it(
    divisor: float, is_settled: bool, tmp_path: Path
) -> None:
    """8934 / 100 is 89.34, and FP16 holds the 89; it does not hold 5956."""
    nodes = [
        node("Div", "p divisor", "a"),
        node("Floor", "a", "b"),
        node("Sub", "even b", "c"),
        node("Cast", "c", "i", to=INT64),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Sigmoid", "f", "y"),
    ]
    model = make_model([CAST, *nodes], {"ids": (INT64, [2])}, "y", CONSTANTS | {"divisor": scalar(divisor)})
    graph, ranges = scan(model, tmp_path, {"ids": ints(101, 8934)})
    found = [f.node for f in ask(find_lost_integers, graph, ranges) if f.tensor == "p"]
    assert found == ["Cast_p", "Div_a", "Floor_b", *([] if is_settled else ["Sub_c", "Cast_i"])]


def test_a_difference_that_fp16_holds_is_settled_if_it_told_them_apart(tmp_path: Path) -> None:
    """4001 - 3001 is 1000; 2100 - 2047 is no difference of two over 2048, and what it is used for tells them apart."""
    for ids, other, pins in (
        ([2049, 4001], "far", ["Cast_p", "Sub_a"]),
        ([2049, 2100], "near", ["Cast_p", "Sub_a", "Cast_y"]),
    ):
        (tmp_path / other).mkdir()
        nodes = [node("Sub", f"p {other}", "a"), node("Cast", "a", "y", to=INT64)]
        graph, ranges = _scan(tmp_path / other, nodes, ids, y=INT64)
        assert pinned_by(find_lost_integers, graph, ranges) == pins


def test_a_difference_settles_nothing_of_what_it_does_not_tell_apart(tmp_path: Path) -> None:
    """2049 - 2047 is 2, and 1 in FP16, which no other term makes up for."""
    nodes = [node("Sub", "p near", "a"), node("Sum", "p minus a", "b"), node("Cast", "b", "y", to=INT64)]
    model = make_model(
        [CAST, *nodes],
        {"ids": (INT64, [2])},
        "y",
        CONSTANTS | {"minus": scalar(-2060)},
        output_types={"y": INT64},
    )
    graph, ranges = scan(model, tmp_path, {"ids": ints(2049, 2100)})
    assert pinned_by(find_lost_integers, graph, ranges) == ["Cast_p", "Sub_a", "Sum_b", "Cast_y"]
    assert np.float16(2049) - np.float16(2047) == 1


@pytest.mark.parametrize("to", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize(("largest", "is_found"), [(2048, False), (2048.5, True), (8000, True)])
def test_data_that_a_cast_cuts_to_integers(to: int, largest: float, is_found: bool, tmp_path: Path) -> None:
    """As rows of a table are chosen by them; what FP16 rounds before is another row."""
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "s top", "q"), node("Cast", "q", "y", to=to)]
    model = make_model(nodes, {"x": [None]}, "y", {"top": scalar(largest)}, output_types={"y": to})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.3, 0.7, 100)})
    assert pinned_by(find_lost_integers, graph, ranges) == (
        ["Sigmoid_s", "Mul_q", "Cast_y"] if is_found else []
    )
    if is_found:
        (finding,) = ask(find_lost_integers, graph, ranges)[-1:]
        told = f"q reaches {largest:.9g}, of whose integers FP16 tells apart those up to 2048, and Cast Cast_y tells them apart"
        assert (finding.tensor, finding.value, finding.limit) == ("q", largest, 2048)
        assert finding.reason == told


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
@pytest.mark.parametrize(("largest", "is_found"), [(1024, False), (1024.5, True), (2047.5, True)])
def test_data_that_are_rounded_before_a_cast(op: str, largest: float, is_found: bool, tmp_path: Path) -> None:
    """From 1024 on FP16 has no fractions, and half of what a Floor makes of what it has is another place."""
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Mul", "s top", "q"),
        node(op, "q", "r"),
        node("Cast", "r", "y", to=INT64),
    ]
    model = make_model(nodes, {"x": [None]}, "y", {"top": scalar(largest)}, output_types={"y": INT64})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.3, 0.7, 100)})
    pins = ["Sigmoid_s", "Mul_q", f"{op}_r", "Cast_y"]
    assert pinned_by(find_lost_integers, graph, ranges) == (pins if is_found else [])
    for finding in ask(find_lost_integers, graph, ranges):
        told = f"q reaches {largest:.9g}, which FP16 rounds to integers by itself from 1024 on, and Cast Cast_y tells them apart"
        assert (finding.tensor, finding.value, finding.limit, finding.reason) == ("q", largest, 1024, told)


@pytest.mark.parametrize(
    ("tail", "is_found"),
    [
        ([node("Gather", "table i", "y")], True),
        ([node("Neg", "i", "n"), node("Gather", "table n", "y")], True),
        (
            [
                node("Unsqueeze", "i top", "n"),
                node("Concat", "n n", "m", axis=0),
                node("GatherND", "table m", "y"),
            ],
            True,
        ),
        ([node("Gather", "i zero", "s"), node("Expand", "one s", "y")], True),
        ([node("Cast", "i", "f", to=TensorProto.FLOAT), node("Mul", "f s0", "y")], False),
        ([node("Greater", "i zero", "g"), node("Where", "g q one", "y")], False),
    ],
    ids=str,
)
def test_it_matters_where_the_integers_look_something_up(
    tail: list[Any], is_found: bool, tmp_path: Path
) -> None:
    nodes = [node("Sigmoid", "x", "s0"), node("Mul", "s0 largest", "q"), node("Cast", "q", "i", to=INT64)]
    constants = {"largest": scalar(3000), "table": np.sin(np.arange(8000, dtype=np.float32)), "zero": ints(0)}
    model = make_model([*nodes, *tail], {"x": [2]}, "y", {**CONSTANTS, **constants}, opset=13)
    graph, ranges = scan(model, tmp_path, {"x": floats(100, 0.1)})
    found = pinned_by(find_lost_integers, graph, ranges)
    assert found == (["Sigmoid_s0", "Mul_q", "Cast_i"] if is_found else [])


@pytest.mark.parametrize(("nearby", "one_in"), [(40, 64), (200, 16), (500, 8)])
def test_how_many_places_come_to_the_next_cell(nearby: float, one_in: int, tmp_path: Path) -> None:
    """Of those that are spread evenly around one, as the finding tells."""
    x = np.random.default_rng(7).uniform(nearby - 4, nearby, 100_000).astype(np.float32) / 512
    nodes = [node("Mul", "x size", "q"), node("Cast", "q", "i", to=INT64), node("Gather", "table i", "y")]
    constants = {"size": scalar(512), "table": floats(*range(512))}
    graph, ranges = scan(make_model(nodes, {"x": [len(x)]}, "y", constants), tmp_path, {"x": x})
    (finding, *_) = ask(find_lost_integers, graph, ranges)
    assert f" round one number in {one_in} past an integer" in finding.reason
    places = x * 512
    moved = np.floor(places.astype(np.float16)) != np.floor(places)
    assert float(moved.mean()) == pytest.approx(1 / one_in, rel=0.15)


CELLS = np.float32(np.random.default_rng(5).uniform(0, 1, 400))


@pytest.mark.parametrize("op", ["Floor", "Round", ""])
@pytest.mark.parametrize(
    ("scaling", "farthest", "tail", "is_found"),
    [
        ("Div", 34.5, "Gather", True),
        ("Mul", 500, "Gather", True),
        ("Div", 500, "Scatter", True),
        ("Mul", 32, "Gather", False),
        ("Add", 34.5, "Gather", False),
        ("Mul", 34.5, "Size", False),
    ],
)
def test_places_over_the_size_of_a_cell(
    op: str, scaling: str, farthest: float, tail: str, is_found: bool, tmp_path: Path
) -> None:
    """Of 400 points in 500 cells FP16 puts a dozen into others; what is looked up by these is no neighbour."""
    factor = {"Div": 1 / farthest, "Mul": farthest, "Add": farthest - 1}[scaling]
    tails = {
        "Gather": [node("Gather", "table i", "y")],
        "Scatter": [node("ScatterElements", "table i b", "y", reduction="add")],
        "Size": [node("ReduceMax", "i", "m", keepdims=1), node("Expand", "one m", "y")],
    }
    nodes = [
        node("Abs", "x", "a"),
        node(scaling, "a size", "b"),
        node("Clip", "b none", "q"),
        node(op or "Identity", "q", "r"),
        node("Cast", "r", "i", to=INT64),
        *tails[tail],
    ]
    table = np.random.default_rng(6).normal(size=512).astype(np.float32)
    constants = {"size": scalar(factor), "table": table, "one": scalar(1), "none": scalar(0)}
    model = make_model(nodes, {"x": [400]}, "y", constants, opset=16)
    x = CELLS.copy()
    x[0] = 1
    graph, ranges = scan(model, tmp_path, {"x": x})
    found = pinned_by(find_lost_integers, graph, ranges)
    kept = ["Abs_a", f"{scaling}_b", "Clip_q", f"{op or 'Identity'}_r", "Cast_i"]
    assert found == (kept if is_found else [])
    if is_found and farthest == 500:
        (finding,) = ask(find_lost_integers, graph, ranges)[-1:]
        assert (
            ", where FP16's steps of 0.25 round one number in 8 past an integer, and Cast" in finding.reason
        )
        assert finding.limit == 32
        assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, set()) < 20
        assert measure_snr_db(tmp_path / "model.onnx", {"x": x}, {"a", "b", "q", "r", "i"}) > 60


@pytest.mark.parametrize(
    "to", [TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.STRING]
)
def test_a_cast_that_cuts_nothing_off(to: int, tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "q"), node("Cast", "q", "y", to=to)]
    model = make_model(nodes, {"x": [None]}, "y", {}, output_types={"y": to})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.3, 3000.7)})
    assert pinned_by(find_lost_integers, graph, ranges) == []


@pytest.mark.parametrize("values", [(np.nan, 3000.5), (np.inf, 3000.5), (), (70000.0, 0.5)])
def test_a_cast_of_what_is_not_finite_or_not_there(values: tuple[float, ...], tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "q"), node("Cast", "q", "y", to=INT64)]
    model = make_model(nodes, {"x": [None]}, "y", {}, output_types={"y": INT64})
    graph, ranges = scan(model, tmp_path, {"x": floats(*values)})
    assert bool(pinned_by(find_lost_integers, graph, ranges)) == (values == (70000.0, 0.5))


@pytest.mark.parametrize(("place", "is_settled"), [(498000.3, True), (400000.3, False)])
def test_a_small_difference_from_data_is_settled(place: float, is_settled: bool, tmp_path: Path) -> None:
    """Landmarks in metres less where a robot is: what is left is data of up to 2,000, which lose no more than others do."""
    nodes = [node("Sub", "landmarks x", "d"), node("Mul", "d third", "r"), node("Sub", "r one", "y")]
    constants = CONSTANTS | {"landmarks": floats(499600, 498800)}
    model = make_model(nodes, {"x": [2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(place, place + 1.5)})
    pinned = pinned_by(find_lost_integers, graph, ranges)
    assert pinned == (["Sub_d"] if is_settled else ["Sub_d", "Mul_r", "Sub_y"])

"""Conditions that are known at the first element of every row, held against what ONNX Runtime makes of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import ints, make_model, node, save
from onnx import TensorProto

from overflow_fixer.evidence.masks.mask_conditions import find_decided

INT, BOOL = TensorProto.INT64, TensorProto.BOOL
CONSTANTS = {
    "zero": np.int64(0),
    "one": np.int64(1),
    "two": np.int64(2),
    "minus": np.int64(-1),
    "front": ints(0),
    "far": ints(9),
    "back": ints(1),
    "batch": ints(0, 1),
    "sizes": ints(2, 1, 1, 1),
    "bias": np.tril(np.ones((9, 9), bool)),
    "sometimes": np.asarray([[True, True], [False, True]]),
}
COLUMNS = [
    node("Shape", "keys", "ks"),
    node("Squeeze", "ks", "k"),
    node("Range", "zero k one", "places"),
    node("Unsqueeze", "places front", "columns"),
]
ROWS = [
    node("Shape", "queries", "qs"),
    node("Squeeze", "qs", "q"),
    node("Range", "zero q one", "order"),
    node("Unsqueeze", "order back", "lines"),
    node("Sub", "k q", "gap"),
    node("Shape", "past", "ps"),
    node("Squeeze", "ps", "p"),
    node("Add", "lines p", "rows"),
]
FORMS: dict[str, tuple[list[onnx.NodeProto], bool | None]] = {
    "column <= row": ([node("LessOrEqual", "columns rows", "y")], True),
    "row >= column": ([node("GreaterOrEqual", "rows columns", "y")], True),
    "column > row": ([node("Greater", "columns rows", "y")], False),
    "row < column": ([node("Less", "rows columns", "y")], False),
    "column < row": ([node("Less", "columns rows", "y")], None),
    "column < row + 1": ([node("Add", "rows one", "n"), node("Less", "columns n", "y")], True),
    "row + 1 > column": ([node("Add", "one rows", "n"), node("Greater", "n columns", "y")], True),
    "column >= row + 1": ([node("Add", "rows one", "n"), node("GreaterOrEqual", "columns n", "y")], False),
    "column <= row - 1": ([node("Add", "rows minus", "n"), node("LessOrEqual", "columns n", "y")], None),
    "less a gap": ([node("Add", "lines gap", "n"), node("LessOrEqual", "columns n", "y")], None),
    "of fed places": ([node("Unsqueeze", "queries back", "n"), node("LessOrEqual", "columns n", "y")], None),
    "rows across": ([node("Transpose", "columns", "c", perm=[1, 0]), node("LessOrEqual", "c order", "y")], None),
    "not": ([node("Greater", "columns rows", "g"), node("Not", "g", "y")], True),
    "and": ([node("LessOrEqual", "columns rows", "a"), node("GreaterOrEqual", "rows columns", "b"), node("And", "a b", "y")], True),
    "and of what is not known": ([node("LessOrEqual", "columns rows", "a"), node("Less", "columns rows", "b"), node("And", "a b", "y")], None),
    "or": ([node("LessOrEqual", "columns rows", "a"), node("Less", "columns rows", "b"), node("Or", "b a", "y")], True),
    "or of false": ([node("Greater", "columns rows", "a"), node("Less", "rows columns", "b"), node("Or", "b a", "y")], False),
    "cast and repeated": ([node("LessOrEqual", "columns rows", "a"), node("Cast", "a", "f", to=TensorProto.FLOAT),
        node("Unsqueeze", "f batch", "u"), node("Expand", "u sizes", "e"), node("Cast", "e", "y", to=BOOL)], True),
    "from the second column on": ([node("LessOrEqual", "columns rows", "a"), node("Slice", "a back far back", "y")], None),
    "a window": ([node("Sub", "rows columns", "d"), node("Less", "d two", "y")], None),
    "a triangle": ([node("Concat", "qs ks", "s", axis=0), node("ConstantOfShape", "s", "o", value=onnx.helper.make_tensor("", BOOL, [1], [True])),
        node("Trilu", "o", "y", upper=0)], True),
    "above the diagonal": ([node("Concat", "qs ks", "s", axis=0), node("ConstantOfShape", "s", "o", value=onnx.helper.make_tensor("", BOOL, [1], [True])),
        node("Trilu", "o one", "y", upper=1)], False),
    "with the diagonal": ([node("Concat", "qs ks", "s", axis=0), node("ConstantOfShape", "s", "o", value=onnx.helper.make_tensor("", BOOL, [1], [True])),
        node("Trilu", "o", "y", upper=1)], None),
    "below the diagonal": ([node("Concat", "qs ks", "s", axis=0), node("ConstantOfShape", "s", "o", value=onnx.helper.make_tensor("", BOOL, [1], [True])),
        node("Trilu", "o minus", "y", upper=0)], None),
    "a triangle of zeros": ([node("Concat", "qs ks", "s", axis=0), node("ConstantOfShape", "s", "o"),
        node("Trilu", "o", "t", upper=0), node("Cast", "t", "y", to=BOOL)], None),
    "cut out of a constant": ([node("Add", "ps qs", "e"), node("Slice", "bias ps e front", "r"), node("Slice", "r front ks back", "y")], True),
    "a constant that differs": ([node("Identity", "sometimes", "y")], None),
}  # fmt: skip


def _make(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    inputs = {"keys": (INT, ["k"]), "queries": (INT, ["q"]), "past": (INT, ["p"])}
    return make_model([*COLUMNS, *ROWS, *nodes], inputs, "y", CONSTANTS, output_types={"y": BOOL})


@pytest.mark.parametrize("form", FORMS)
def test_what_is_decided(form: str, tmp_path: Path) -> None:
    """And is so for sizes of every kind: no row of queries, no past, one key."""
    nodes, decided = FORMS[form]
    model = _make(nodes)
    assert find_decided(save(model, tmp_path)).get("y") is decided
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for keys, queries, past in ((1, 1, 0), (4, 3, 1), (5, 5, 0), (3, 5, 0), (6, 1, 5), (2, 0, 2)):
        sizes = {"keys": keys, "queries": queries, "past": past}
        (value,) = session.run(None, {name: np.zeros(size, np.int64) for name, size in sizes.items()})
        if decided is not None and value.shape[-1]:
            assert (value[..., 0] == decided).all()


@pytest.mark.parametrize(("form", "fed"), [
    ("column <= row", "zero"),
    ("a triangle", "zero"),
    ("above the diagonal", "one"),
    ("cut out of a constant", "bias"),
    ("cut out of a constant", "front"),
])  # fmt: skip
def test_a_default_may_be_fed_otherwise(form: str, fed: str, tmp_path: Path) -> None:
    """A triangle with the default k = 0 reads none."""
    model = _make(FORMS[form][0])
    value = next(each for each in model.graph.initializer if each.name == fed)
    model.graph.input.append(onnx.helper.make_tensor_value_info(fed, value.data_type, value.dims))
    assert (find_decided(save(model, tmp_path)).get("y") is None) == (form != "a triangle")


CASTS = [
    ("a count from minus one in few bits", [node("Range", "minus k one", "a"), node("Cast", "a", "b", to=TensorProto.UINT8),
        node("Cast", "b", "c", to=INT), node("LessOrEqual", "c k", "y")]),
    ("from minus a half", [node("Cast", "k", "f", to=TensorProto.FLOAT), node("Range", "half f whole", "a"), node("Cast", "a", "b", to=INT),
        node("Add", "q minus", "n"), node("Greater", "b n", "y")]),
    ("what is not negative, or NaN", [node("Cast", "queries", "f", to=TensorProto.FLOAT), node("Div", "f f", "g"), node("Relu", "g", "h"),
        node("Cast", "h", "n", to=INT), node("Unsqueeze", "n back", "u"), node("LessOrEqual", "columns u", "y")]),
    ("a half", [node("ConstantOfShape", "ks", "a", value=onnx.helper.make_tensor("", TensorProto.FLOAT, [1], [0.5])),
        node("Cast", "a", "b", to=INT), node("Cast", "b", "y", to=BOOL)]),
    ("256 in few bits", [node("ConstantOfShape", "ks", "a", value=onnx.helper.make_tensor("", INT, [1], [256])),
        node("Cast", "a", "b", to=TensorProto.UINT8), node("Cast", "b", "y", to=BOOL)]),
    ("words", [node("Equal", "word word", "e"), node("Cast", "e", "n", to=INT), node("LessOrEqual", "columns n", "y")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes"), CASTS, ids=[name for name, _ in CASTS])
def test_of_what_casts_change_nothing_is_known(
    name: str, nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    words = {"half": np.float32(-0.5), "whole": np.float32(1), "word": np.asarray(["a", "b"], object)}
    inputs = {"keys": (INT, ["k"]), "queries": (INT, ["q"]), "past": (INT, ["p"])}
    model = make_model([*COLUMNS, *ROWS, *nodes], inputs, "y", CONSTANTS | words, output_types={"y": BOOL})
    assert "y" not in find_decided(save(model, tmp_path))


Numbers = st.integers(-3, 3)
Steps = st.lists(st.tuples(st.sampled_from(["Add", "Mul", "Max", "Sub", "Concat"]), Numbers), max_size=5)


@given(Steps, Numbers, Numbers, st.sampled_from(["LessOrEqual", "Less", "Greater", "GreaterOrEqual"]))
@settings(max_examples=150, deadline=None)
def test_what_is_decided_of_integers_is_so(
    steps: list[tuple[str, int]], first: int, start: int, op: str
) -> None:
    """Of columns from `first` on, beside what is made of places."""
    constants: dict[str, Any] = {"start": ints(start), "first": np.int64(first), "one": np.int64(1)}
    nodes = [node("Shape", "keys", "ks"), node("Squeeze", "ks", "k"), node("Range", "first k one", "columns")]
    nodes.append(node("Add", "columns start", "t0"))
    for index, (kind, number) in enumerate(steps):
        constants[f"c{index}"] = ints(number)
        axis = {"axis": 0} if kind == "Concat" else {}
        nodes.append(node(kind, f"t{index} c{index}", f"t{index + 1}", **axis))
    nodes += [
        node("Unsqueeze", f"t{len(steps)} start_axis", "rows"),
        node(op, "columns rows", "one_way"),
        node(op, "rows columns", "y"),
    ]
    types = {"y": BOOL, "one_way": BOOL}
    model = make_model(
        nodes, {"keys": (INT, ["k"])}, "y one_way", constants | {"start_axis": ints(1)}, output_types=types
    )
    with TemporaryDirectory() as folder:
        decided = find_decided(save(model, Path(folder)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (4, 7):
        values = session.run(["y", "one_way"], {"keys": np.zeros(size, np.int64)})
        for name, value in zip(("y", "one_way"), values, strict=True):
            assert name not in decided or (value[:, :1] == decided[name]).all()


def test_a_network_that_tells_the_length_is_asked_once(tmp_path: Path) -> None:
    """Sums of sums have 2^60 ways back."""
    chain = [node("Add", f"s{at} s{at}", f"s{at + 1}") for at in range(60)]
    nodes = [
        node("Identity", "queries", "s0"),
        *chain,
        node("Unsqueeze", "s60 back", "u"),
        node("Less", "columns u", "y"),
    ]
    assert find_decided(save(_make(nodes), tmp_path)) == {}

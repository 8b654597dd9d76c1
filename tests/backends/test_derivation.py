"""Nodes that compute with sizes, or hand on constants, stay in FP32; what they feed does not."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typed_models import NEWEST_OPSET, Typed, assert_same, plan_of, write_model

from overflow_fixer.backends.mixed_onnx import emit
from overflow_fixer.backends.mixed_onnx.assignment import FLOAT, FLOAT16, assign_types
from overflow_fixer.backends.mixed_onnx.derivation import find_shape_nodes, find_whole_constants
from overflow_fixer.graph.model import Graph, load_graph


def _load(folder: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], output: str) -> Graph:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return load_graph(folder / "model.onnx")


def _resizing(folder: Path) -> Graph:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
        helper.make_node("Cast", ["s"], ["sf"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sf", "two"], ["sf2"], name="double"),
        helper.make_node("Cast", ["sf2"], ["s2"], name="to_int", to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["s2"], ["zeros"], name="fill"),
        helper.make_node("Tile", ["r", "twice"], ["t"], name="tile"),
        helper.make_node("Add", ["t", "zeros"], ["y"], name="add"),
    ]
    return _load(folder, nodes, {"two": np.float32([2, 1]), "twice": np.int64([2, 1])}, "y")


def test_what_computes_with_sizes_stays_in_fp32(tmp_path: Path) -> None:
    graph = _resizing(tmp_path)
    assert find_shape_nodes(graph) == {"to_float", "double", "to_int"}
    found = assign_types(graph, ())
    assert (found.stored["sf"], found.stored["sf2"]) == (FLOAT, FLOAT)
    assert {found.stored[name] for name in ("r", "zeros", "t", "y")} == {FLOAT16}
    assert {kept.node for kept in found.kept} == {"to_float", "double"}


_TABLE = np.arange(24, dtype=np.float32).reshape(8, 3) / 10 + 0.01
_CONSTANTS = {
    "table": _TABLE,
    "two": np.float32([2]),
    "eight": np.float32([8]),
    "first": np.int64([0]),
    "none": np.int64(0),
    "next": np.int64(1),
    "row": np.float32([[0.1, 0.2, 0.3]]),
    "far": np.float32(-1000),
    "near": np.float32(0.3),
}
_SIZES = [
    helper.make_node("Shape", ["x"], ["s"], name="shape"),
    helper.make_node("Slice", ["s", "first", "one"], ["n"], name="take"),
    helper.make_node("Cast", ["n"], ["f"], name="to_float", to=TensorProto.FLOAT),
    helper.make_node("Squeeze", ["n"], ["k"], name="drop"),
    helper.make_node("Range", ["none", "k", "next"], ["ids"], name="count"),
]
"""The number of rows as an integer, a float and a scalar, and the numbers of the rows."""
_SIZED = {"take", "drop", "count", "to_float"}


def _fill(folder: Path, *nodes: onnx.NodeProto) -> Graph:
    weights = {**_CONSTANTS, "one": np.int64([1])}
    return _load(folder, [*_SIZES, *nodes], weights, nodes[-1].output[0])


CHOSEN = {
    "Slice": (["table", "first", "n"], _TABLE[:5]),
    "Gather": (["table", "ids"], _TABLE[:5]),
    "Expand": (["near", "n"], np.full(5, 0.3)),
    "Trilu": (["table", "k"], np.triu(_TABLE, 5)),
    "ConstantOfShape": (["n"], np.zeros(5)),
    "Pad": (["two", "pads", "near"], np.float32([2, 0.3, 0.3, 0.3, 0.3, 0.3])),
}
"""Operators whose values are a constant's, where sizes choose or place them, and what they make for five rows."""


@pytest.mark.parametrize("op_type", CHOSEN)
def test_what_sizes_only_choose_or_shape_is_none(op_type: str, tmp_path: Path) -> None:
    inputs, expected = CHOSEN[op_type]
    pads = helper.make_node("Concat", ["first", "n"], ["pads"], name="pads", axis=0)
    chosen = helper.make_node(op_type, inputs, ["c"], name="choose")
    graph = _fill(tmp_path, pads, chosen, helper.make_node("Mul", ["c", "two"], ["y"], name="double"))
    assert find_shape_nodes(graph) == {*_SIZED, "pads"}
    found = assign_types(graph, ())
    assert (found.stored["c"], found.stored["y"], found.stored["f"]) == (FLOAT16, FLOAT16, FLOAT)
    artifact = emit(graph, plan_of(graph), tmp_path / "model.fp16.onnx")
    feeds = {"x": np.zeros((5, 2), np.float32)}
    rounded = np.asarray(expected).astype(np.float16)
    assert_same(Typed(graph, artifact, frozenset()).run(feeds)["y"], (rounded * 2).astype(np.float32))


def test_a_comparison_of_sizes_is_none(tmp_path: Path) -> None:
    """The mask that hides what lies ahead."""
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "one"], ["rows"], name="rows"),
        helper.make_node("Less", ["rows", "ids"], ["ahead"], name="less"),
        helper.make_node("Where", ["ahead", "far", "near"], ["mask"], name="mask"),
        helper.make_node("Cast", ["ahead"], ["share"], name="share", to=TensorProto.FLOAT),
        helper.make_node("Add", ["mask", "share"], ["y"], name="add"),
    ]
    graph = _fill(tmp_path, *nodes)
    assert find_shape_nodes(graph) == {*_SIZED, "rows"}
    stored = assign_types(graph, ()).stored
    assert {stored[name] for name in ("mask", "share", "y")} == {FLOAT16}


def test_sums_of_data_are_no_positions(tmp_path: Path) -> None:
    """A CumSum counts where it adds up what sizes fill, and not where it adds up data."""
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["sums"], name="sums"),
        helper.make_node("Mul", ["sums", "two"], ["y"], name="double"),
    ]
    graph = _load(tmp_path, nodes, {"axis": np.int64(1), "two": np.float32([2])}, "y")
    assert find_shape_nodes(graph) == frozenset()


@pytest.mark.parametrize(
    ("op_type", "inputs"), [("Sin", ["f"]), ("Exp", ["f"]), ("MatMul", ["column", "row"])]
)
def test_what_is_made_of_positions_is_none(op_type: str, inputs: list[str], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["f", "one"], ["column"], name="column"),
        helper.make_node(op_type, inputs, ["p"], name="made"),
        helper.make_node("Flatten", ["p"], ["y"], name="flatten"),
    ]
    graph = _fill(tmp_path, *nodes)
    assert find_shape_nodes(graph) == {*_SIZED, "column", "made"}
    assert assign_types(graph, ()).stored["y"] == FLOAT16


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Div", ["eight", "f"]),
        ("Concat", ["f", "two"]),
        ("Max", ["f", "two"]),
        ("Pow", ["f", "two"]),
        ("Pow", ["two", "f"]),
        ("Sqrt", ["f"]),
        ("Gather", ["f", "first"]),
        ("Where", ["is_long", "f", "two"]),
    ],
)
def test_sizes_that_are_computed_with_or_moved_are_sizes(
    op_type: str, inputs: list[str], tmp_path: Path
) -> None:
    extra = {"axis": 0} if op_type == "Concat" else {}
    nodes = [
        helper.make_node("Greater", ["f", "eight"], ["is_long"], name="compare"),
        helper.make_node(op_type, inputs, ["g"], name="made", **extra),
        helper.make_node("Neg", ["g"], ["y"], name="negate"),
    ]
    graph = _fill(tmp_path, *nodes)
    assert find_shape_nodes(graph) == {*_SIZED, "made", "negate"}
    assert assign_types(graph, ()).stored["y"] == FLOAT


_CHAIN = """
g (float[n, 1] x) => (float[m] y)
<int64[1] first = {{0}}, int64[1] one = {{1}}, float[1] near = {{0.3}}, float[1] base = {{14.5}}, float[1] half = {{0.5}},
float[1] unit = {{1}}, float[1] limit = {{300}}, float[1] thousand = {{1000}}, float[1] high = {{999.9}},
float[1] low = {{500.5}}, float[1] third = {{0.33401}}, float[1] sixth = {{0.16684}}, float[1] ten = {{10.003}}>
{{
    s = Shape(x)
    k = Slice(s, first, one)
    f = Cast <to = 1> (k)
    b = Greater(f, limit)
    {}
    whole = Cast <to = 7> (c)
    y = Expand(near, whole)
}}
"""
MADE_OF_SIZES = {
    "Pow": ("e = Div(f, thousand) p = Pow(base, e) c = Floor(p)", 3001, np.floor(14.5**3.001)),
    "Where": ("p = Where(b, high, low) c = Floor(p)", 1001, np.floor(999.9)),
    "Cast": (
        "a = Cast <to = 1> (b) p = Sub(f, a) q = Mul(p, third) c = Ceil(q)",
        1001,
        np.ceil(1000 * 0.33401),
    ),
    "If": (
        "p = If (b) <then_branch = t () => (float[1] u) {u = Sub(f, unit)}, "
        "else_branch = e () => (float[1] v) {v = Add(f, unit)}> q = Mul(p, third) c = Ceil(q)",
        1001,
        np.ceil(1000 * 0.33401),
    ),
    "Exp": (
        "a = Log(f) e = Mul(a, half) p = Exp(e) q = Mul(p, ten) c = Floor(q)",
        3001,
        np.floor(3001**0.5 * 10.003),
    ),
    "sequence": (
        "o = SequenceConstruct(f, f) a = ConcatFromSequence <axis = 0> (o) p = ReduceSum(a) "
        "q = Mul(p, sixth) c = Ceil(q)",
        1001,
        np.ceil(2002 * 0.16684),
    ),
    "count": (
        "o = ConstantOfShape <value = float[1] {1.0}> (k) a = ReduceSum(o) p = Sub(a, unit) "
        "q = Mul(p, third) c = Ceil(q)",
        1001,
        np.ceil(1000 * 0.33401),
    ),
}
"""What makes a number of elements of the number of rows by way of what is no size, the rows, and what it makes of them."""


@pytest.mark.parametrize("case", MADE_OF_SIZES)
def test_a_size_is_as_in_fp32_whatever_it_is_made_by(case: str, tmp_path: Path) -> None:
    chain, rows, expected = MADE_OF_SIZES[case]
    graph = load_graph(write_model(tmp_path, _CHAIN.format(chain)))
    artifact = emit(graph, plan_of(graph), tmp_path / "model.fp16.onnx")
    made = Typed(graph, artifact, frozenset()).run({"x": np.zeros((rows, 1), np.float32)})["y"]
    assert made.shape == (int(expected),)
    assert assign_types(graph, ()).stored["y"] == FLOAT16


_DECIDED = """
g (float[n, 1] x) => (float[n, 1] y, {out} made)
<int64[1] first = {{0}}, int64[1] one = {{1}}, float[1] two = {{2}}, float zero = {{0}}, float step = {{1}},
float[2] values = {{0, 1}}, float[2] kept = {{1, 1}}>
{{
    s = Shape(x)
    k = Slice(s, first, one)
    f = Cast <to = 1> (k)
    t = Tanh(f)
    d = Mul(t, two)
    v = Squeeze(d)
    y = Add(x, d)
    {reader}
}}
"""
READERS = {
    "integer": ("int64[1]", "made = Cast <to = 7> (d)", True),
    "Range": ("float[r]", "made = Range(zero, v, step)", True),
    "OneHot": ("float[1, o]", "made = OneHot(k, d, values)", True),
    "MelWeightMatrix": ("float[a, b]", "e = Squeeze(k) made = MelWeightMatrix(e, e, e, v, step)", True),
    "Resize": ("float[a, b]", "e = Concat <axis = 0> (d, two) made = Resize(x, , e)", True),
    "Compress": ("float[c]", "e = Greater(d, two) made = Compress(d, e)", True),
    "If": (
        "float[n, 1]",
        "e = Greater(v, step) made = If (e) <then_branch = t () => (float[n, 1] u) {u = Neg(x)}, "
        "else_branch = e () => (float[n, 1] w) {w = Abs(x)}>",
        True,
    ),
    "chosen integer": ("int64[1]", "e = Greater(d, two) made = Where(e, first, one)", True),
    "Shape": ("int64[1]", "e = Shape(d) made = Add(e, one)", False),
    "mask": ("float[n, 1]", "e = Greater(d, two) made = Where(e, x, two)", False),
}
"""Who reads what is made of sizes but is none, in what type, and whether that is a size, an index or a branch."""


HANDED_ON = {
    "Identity": "p = Identity(near)",
    "several": "o = Sub(thousand, high) q = Identity(near) p = Add(o, q)",
    "filled": "p = ConstantOfShape <value = float[1] {0.3}> (one)",
    "sliced": "p = Slice(near, first, one)",
}
"""Ways to a constant that is no initializer, all of less than a half."""


@pytest.mark.parametrize("case", HANDED_ON)
def test_a_size_that_meets_what_is_made_of_constants_is_one(case: str, tmp_path: Path) -> None:
    """2049 rows, and 0.3 or 0.4 added, are 2050 in all; in FP16 they are 2048."""
    graph = load_graph(write_model(tmp_path, _CHAIN.format(f"{HANDED_ON[case]} a = Add(f, p) c = Ceil(a)")))
    artifact = emit(graph, plan_of(graph), tmp_path / "model.fp16.onnx")
    made = Typed(graph, artifact, frozenset()).run({"x": np.zeros((2049, 1), np.float32)})["y"]
    assert made.shape == (2050,)
    found = assign_types(graph, ())
    assert {found.stored[name] for name in ("p", "a", "c")} == {FLOAT}
    reasons = {kept.node: kept.reason for kept in found.kept}
    assert "sizes" in reasons["node_of_a"]
    assert "constants alone" in reasons["node_of_p"]


@pytest.mark.parametrize("reader", ["i = Cast <to = 7> (w) y = Expand(x, i)", "y = Resize(x, , w)"])
def test_a_shape_made_of_constants_alone_is_as_in_fp32(reader: str, tmp_path: Path) -> None:
    text = f"g (float[1] x) => (float[A] y) <float[1] c = {{2049}}> {{ w = Identity(c) {reader} }}"
    graph = load_graph(write_model(tmp_path, text))
    artifact = emit(graph, plan_of(graph), tmp_path / "model.fp16.onnx")
    made = Typed(graph, artifact, frozenset()).run({"x": np.zeros(1, np.float32)})["y"]
    assert made.shape == (2049,)
    (reason,) = {kept.reason for kept in assign_types(graph, ()).kept}
    assert "constants alone" in reason


def test_what_is_made_of_constants_is_no_size_where_no_size_reads_it(tmp_path: Path) -> None:
    """Nor is it kept for its own shape, which is the same in FP16."""
    nodes = [
        helper.make_node("Identity", ["table"], ["same"], name="share"),
        helper.make_node("Tanh", ["same"], ["bent"], name="bend"),
        helper.make_node("Shape", ["bent"], ["dims"], name="dims"),
        helper.make_node("Cast", ["dims"], ["counts"], name="counts", to=TensorProto.FLOAT),
        helper.make_node("ReduceProd", ["counts"], ["count"], name="count_all"),
        helper.make_node("MatMul", ["bent", "x"], ["product"], name="multiply"),
        helper.make_node("Div", ["product", "count"], ["y"], name="scale"),
    ]
    graph = _load(tmp_path, nodes, {"table": _TABLE}, "y")
    found = assign_types(graph, ())
    assert {found.stored[name] for name in ("same", "bent", "y")} == {FLOAT16}
    assert not {"share", "bend"} & {kept.node for kept in found.kept}


def test_sizes_that_data_choose_between_are_sizes(tmp_path: Path) -> None:
    chain = (
        "a = ReduceMax <keepdims = 0> (x) o = Greater(a, near) "
        "p = If (o) <then_branch = t () => (float[1] u) {u = Sub(f, unit)}, "
        "else_branch = e () => (float[1] v) {v = Add(f, unit)}> q = Mul(p, third) c = Ceil(q)"
    )
    graph = load_graph(write_model(tmp_path, _CHAIN.format(chain)))
    assert assign_types(graph, ()).stored["q"] == FLOAT


@pytest.mark.parametrize("case", READERS)
def test_what_is_no_size_stays_in_fp32_where_it_decides(case: str, tmp_path: Path) -> None:
    out, reader, decides = READERS[case]
    graph = load_graph(write_model(tmp_path, _DECIDED.format(out=out, reader=reader)))
    expected = FLOAT if decides else FLOAT16
    assert assign_types(graph, ()).stored["d"] == expected


def test_a_range_decides_where_its_schema_takes_fp16(tmp_path: Path) -> None:
    out, reader, _ = READERS["Range"]
    path = write_model(tmp_path, _DECIDED.format(out=out, reader=reader), opset=NEWEST_OPSET, ir_version=10)
    assert assign_types(load_graph(path), ()).stored["d"] == FLOAT


def test_what_data_chooses_from_decides_nothing(tmp_path: Path) -> None:
    """The rows of a table that tokens take, and the class that is found by them."""
    nodes = [
        helper.make_node("Slice", ["table", "first", "n"], ["rows"], name="cut"),
        helper.make_node("Cast", ["x"], ["tokens"], name="tokens", to=TensorProto.INT64),
        helper.make_node("Gather", ["rows", "tokens"], ["taken"], name="take_rows"),
        helper.make_node("Tanh", ["taken"], ["features"], name="tanh"),
        helper.make_node("ArgMax", ["features"], ["best"], name="argmax"),
        helper.make_node("Cast", ["best"], ["y"], name="best", to=TensorProto.FLOAT),
    ]
    stored = assign_types(_fill(tmp_path, *nodes), ()).stored
    assert {stored[name] for name in ("rows", "taken", "features")} == {FLOAT16}


def test_what_another_domains_operator_reads_decides(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["f"], ["t"], name="tanh"),
        helper.make_node("Unsqueeze", ["t", "one"], ["d"], name="unsqueeze"),
        helper.make_node("Trilu", ["d"], ["y"], name="unknown", domain="com.microsoft"),
    ]
    graph = _fill(tmp_path, *nodes)
    assert find_shape_nodes(graph) >= {"tanh", "unsqueeze"}


_CHOSEN = [
    helper.make_node("Greater", ["f", "eight"], ["is_long"], name="compare"),
    helper.make_node("Where", ["is_long", "two", "eight"], ["chosen"], name="choose"),
    helper.make_node("Exp", ["f"], ["grown"], name="grow"),
    helper.make_node("Slice", ["table", "first", "n"], ["rows"], name="cut"),
    helper.make_node(
        "ConstantOfShape", ["n"], ["filled"], name="fill", value=numpy_helper.from_array(np.ones(1, np.int64))
    ),
    helper.make_node("SequenceConstruct", ["f", "f"], ["several"], name="collect"),
]


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Mul", ["f", "chosen"]),
        ("Mul", ["f", "grown"]),
        ("Mul", ["f", "rows"]),
        ("NonZero", ["filled"]),
        ("CumSum", ["filled", "none"]),
        ("ConcatFromSequence", ["several"]),
    ],
)
def test_a_position_with_what_is_made_of_sizes_is_one(
    op_type: str, inputs: list[str], tmp_path: Path
) -> None:
    extra = {"axis": 0} if op_type == "ConcatFromSequence" else {}
    nodes = [
        helper.make_node(op_type, inputs, ["p"], name="made", **extra),
        helper.make_node("Cast", ["p"], ["angle"], name="angle", to=TensorProto.FLOAT),
        helper.make_node("Sin", ["angle"], ["y"], name="sine"),
    ]
    stored = assign_types(_fill(tmp_path, *_CHOSEN, *nodes), ()).stored
    assert stored["angle"] == FLOAT


def _sharing(folder: Path) -> Graph:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"], name="share"),
        helper.make_node("Transpose", ["same"], ["turned"], name="turn"),
        helper.make_node("MatMul", ["x", "turned"], ["a"], name="first"),
        helper.make_node("Identity", ["w"], ["other"], name="share_again"),
        helper.make_node("MatMul", ["a", "other"], ["y"], name="second"),
    ]
    return _load(folder, nodes, {"w": np.eye(4, dtype=np.float32)}, "y")


def test_a_weight_handed_on_to_a_pinned_node_is_not_rounded_on_its_way(tmp_path: Path) -> None:
    graph = _sharing(tmp_path)
    assert find_whole_constants(graph, lambda node: node.label == "first") == {"share", "turn"}
    found = assign_types(graph, {"first"})
    assert (found.stored["same"], found.stored["turned"], found.stored["other"]) == (FLOAT, FLOAT, FLOAT16)


def test_with_nothing_in_fp32_every_weight_is_rounded(tmp_path: Path) -> None:
    assert find_whole_constants(_sharing(tmp_path), lambda node: False) == frozenset()
    assert assign_types(_sharing(tmp_path), ()).kept == ()

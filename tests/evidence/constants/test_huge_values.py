"""What the tables claim of each operator holds when the operator is run on huge values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, save, scalar
from onnx import TensorProto, helper

from overflow_fixer.evidence.constants import huge_values
from overflow_fixer.evidence.constants.huge_values import (
    EITHER,
    NEGATIVE,
    NEITHER,
    POSITIVE,
    Signs,
    is_bound,
    shown_signs,
)
from overflow_fixer.evidence.semantics import MOVES
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Batch, Range
from overflow_fixer.sessions.session import open_session, run_session

rng = np.random.default_rng(0)
IMAGE = (1, 2, 4, 4)


@dataclass(frozen=True)
class Case:
    """One operator whose input `h` is huge: its inputs, constants, attributes, opset and h's shape."""

    op: str
    inputs: str = "h"
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    shape: tuple[int, ...] = IMAGE
    outputs: str = "y"


def _normal(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


CASES = [
    *(
        Case(op)
        for op in """Softmax Hardmax Sigmoid HardSigmoid Tanh Softsign Erf Sign Sin Cos Atan Reciprocal Exp Relu
        Elu Celu Selu Softplus HardSwish ThresholdedRelu Abs Neg Cosh LogSoftmax Floor Ceil Round LeakyRelu
        GlobalMaxPool GlobalAveragePool GlobalLpPool LpNormalization Identity RandomNormalLike""".split()
    ),
    Case("EyeLike", shape=(2, 4)),
    Case("RandomUniformLike"),
    Case("Gelu", opset=20),
    Case("Mish", opset=18),
    Case("Sqrt"),
    Case("LayerNormalization", "h s", {"s": _normal(4)}),
    Case("InstanceNormalization", "h s b", {"s": _normal(2), "b": _normal(2)}),
    Case("MeanVarianceNormalization"),
    Case(
        "BatchNormalization",
        "x s b m h",
        {"x": _normal(*IMAGE), "s": _normal(2), "b": _normal(2), "m": _normal(2)},
        shape=(2,),
    ),
    Case("Div", "x h", {"x": _normal(*IMAGE)}),
    Case("Where", "c h x", {"c": rng.random(IMAGE) > 0.5, "x": _normal(*IMAGE)}),
    Case("Add", "h x", {"x": _normal(*IMAGE)}),
    Case("Sub", "h x", {"x": _normal(*IMAGE)}),
    Case("Sub", "x h", {"x": _normal(*IMAGE)}),
    Case("Sum", "x h x", {"x": _normal(*IMAGE)}),
    Case("Mean", "x h x", {"x": _normal(*IMAGE)}),
    Case("Max", "x h", {"x": _normal(*IMAGE)}),
    Case("Min", "x h", {"x": _normal(*IMAGE)}),
    Case("Clip", "h low high", {"low": scalar(-5), "high": scalar(5)}),
    Case("Clip", "h low", {"low": scalar(-5)}),
    Case("Clip", "h - high", {"high": scalar(5)}),
    Case("Clip", "h low high", {"low": scalar(-1e9), "high": scalar(1e9)}),
    Case("Clip", "h", attributes={"min": -5.0, "max": 5.0}, opset=9),
    Case("Clip", "h", attributes={"max": 5.0}, opset=10),
    *(Case(op, "h", attributes={"keepdims": 0}) for op in ("ReduceMax", "ReduceMin", "ReduceMean")),
    *(Case(op, "h") for op in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare")),
    *(Case(op, "h", attributes={"kernel_shape": [2, 2]}) for op in ("MaxPool", "AveragePool", "LpPool")),
    Case("CumSum", "h axis", {"axis": np.asarray(1, np.int64)}),
    Case("TopK", "h k", {"k": ints(2)}, outputs="y i"),
    Case("Pad", "h pads", {"pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    Case("Trilu", "h"),
    Case("OneHot", "i d h", {"i": ints(0, 1), "d": ints(3)}, shape=(2,)),
    Case("Resize", "h - s", {"s": floats(1, 1, 2, 2)}),
    Case("GridSample", "x h", {"x": _normal(*IMAGE)}, shape=(1, 3, 3, 2)),
    Case(
        "RoiAlign",
        "x h b",
        {"x": _normal(*IMAGE), "b": ints(0)},
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
        shape=(1, 4),
    ),
    *(
        Case(
            "ScatterElements", inputs, {"x": _normal(*IMAGE), "at": np.zeros(IMAGE, np.int64)}, reduction, 18
        )
        for inputs in ("h at x", "x at h")
        for reduction in ({}, *({"reduction": name} for name in ("add", "max", "min", "mul")))
    ),
    Case("Scatter", "h at x", {"x": _normal(*IMAGE), "at": np.zeros(IMAGE, np.int64)}, opset=9),
    Case("CastLike", "x h", {"x": _normal(*IMAGE)}),
    Case("Transpose", "h"),
    Case("Concat", "x h", {"x": _normal(*IMAGE)}, {"axis": 0}),
]
KNOWN_TO_BE_NAN = {("Sqrt", -1), ("BatchNormalization", -1)}


def _run(case: Case, folder: Path, sign: int) -> tuple[Graph, np.ndarray]:
    """The case's first output for huge values of one sign at `h`."""
    feeds = {"h": sign * (10.0 ** rng.uniform(5, 15, case.shape)).astype(np.float32)}
    model = make_model(
        [node(case.op, case.inputs, case.outputs, **case.attributes)],
        {"h": list(case.shape)},
        case.outputs,
        case.constants,
        case.opset,
        {"i": TensorProto.INT64},
    )
    graph = save(model, folder)
    return graph, run_session(open_session(model, folder), ["y"], Batch("b", feeds))[0]


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.op}-{case.inputs.replace(' ', '_')}-{case.opset}"
)
def test_an_operator_shows_a_huge_value_only_as_the_tables_say(case: Case, sign: int, tmp_path: Path) -> None:
    graph, value = _run(case, tmp_path, sign)
    at = graph.nodes[0]
    signs = shown_signs(at, at.inputs.index("h"), 0, frozenset({sign}), graph)
    if (case.op, sign) in KNOWN_TO_BE_NAN:
        assert np.isnan(value).all()
        return
    assert not np.isnan(value).any()
    assert {s for s in (-1, 1) if (s * value >= FP16_OVERFLOW).any()} <= signs


def _graph(tmp_path: Path, *nodes: onnx.NodeProto, opset: int = 17, **constants: np.ndarray) -> Graph:
    """A graph over inputs h and x, bool c, whose outputs nobody looks at."""
    inputs = {"h": [*IMAGE], "x": [*IMAGE], "c": (TensorProto.BOOL, IMAGE)}
    return save(make_model(nodes, inputs, nodes[-1].output[0], constants, opset), tmp_path)


@pytest.mark.parametrize(
    ("op", "inputs", "slot", "signs", "shown"),
    [
        ("Mul", "h x", 0, NEGATIVE, EITHER),
        ("MatMul", "h x", 0, NEGATIVE, EITHER),
        ("MatMul", "x h", 1, POSITIVE, EITHER),
        ("Div", "h x", 0, POSITIVE, EITHER),
        ("Div", "x h", 1, EITHER, NEITHER),
        ("Add", "h x", 0, NEGATIVE, NEGATIVE),
        ("Sub", "x h", 1, NEGATIVE, POSITIVE),
        ("Neg", "h", 0, EITHER, EITHER),
        ("Neg", "h", 0, NEGATIVE, POSITIVE),
        ("Neg", "h", 0, POSITIVE, NEGATIVE),
        ("Exp", "h", 0, NEGATIVE, NEITHER),
        ("Exp", "h", 0, EITHER, POSITIVE),
        ("Relu", "h", 0, NEGATIVE, NEITHER),
        ("LeakyRelu", "h", 0, NEGATIVE, EITHER),
        ("Softmax", "h", 0, EITHER, NEITHER),
        ("LogSoftmax", "h", 0, POSITIVE, NEGATIVE),
        ("Log", "h", 0, POSITIVE, EITHER),
        ("Where", "c h x", 1, NEGATIVE, NEGATIVE),
        ("Max", "x h", 1, NEGATIVE, NEGATIVE),
        ("Min", "x h", 1, EITHER, EITHER),
    ],
)
def test_signs(op: str, inputs: str, slot: int, signs: Signs, shown: Signs, tmp_path: Path) -> None:
    graph = _graph(tmp_path, node(op, inputs, "y"))
    assert shown_signs(graph.nodes[0], slot, 0, signs, graph) == shown


@pytest.mark.parametrize(
    ("before", "inputs", "shown"),
    [
        ([node("Softplus", "x", "f")], "h f", NEGATIVE),
        ([node("Relu", "x", "r"), node("Squeeze", "r", "f")], "f h", NEGATIVE),
        ([node("Sub", "x x", "f")], "h f", EITHER),
        ([node("Sigmoid", "x", "r"), node("Concat", "r x", "f", axis=0)], "h f", EITHER),
        ([], "h positive", NEGATIVE),
        ([], "h mixed", EITHER),
    ],
)
@pytest.mark.parametrize("op", ["Mul", "Div"])
def test_a_factor_that_is_never_negative_keeps_the_sign(
    op: str, before: list[onnx.NodeProto], inputs: str, shown: Signs, tmp_path: Path
) -> None:
    """exp(-(density x 1e10)) ends there, as of the last interval of a ray."""
    constants = {"positive": floats(0, 2), "mixed": floats(-1, 2)}
    used = {name: value for name, value in constants.items() if name in inputs.split()}
    graph = _graph(tmp_path, *before, node(op, inputs, "y"), **used)
    slot = inputs.split().index("h")
    expected = shown if (op, slot) != ("Div", 1) else NEITHER
    assert shown_signs(graph.nodes[-1], slot, 0, NEGATIVE, graph) == expected


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize(
    ("reduction", "shown"),
    [
        (None, NEGATIVE),
        ("none", NEGATIVE),
        ("add", NEGATIVE),
        ("max", NEGATIVE),
        ("min", NEGATIVE),
        ("mul", EITHER),
    ],
)
def test_a_scatter_turns_signs_only_where_it_multiplies(
    op: str, slot: int, reduction: str | None, shown: Signs, tmp_path: Path
) -> None:
    chosen = {} if reduction is None else {"reduction": reduction}
    graph = _graph(tmp_path, node(op, "h at x", "y", **chosen), opset=18, at=np.zeros(IMAGE, np.int64))
    assert shown_signs(graph.nodes[0], slot, 0, NEGATIVE, graph) == shown


def test_an_operator_of_another_domain_is_not_taken_for_its_namesake(tmp_path: Path) -> None:
    nodes = [node("Gelu", "h", "g", domain="com.microsoft"), node("Softmax", "g", "y")]
    gelu, softmax = _graph(tmp_path, *nodes).nodes
    assert gelu.standard_op == ""
    graph = _graph(tmp_path, *nodes)
    assert shown_signs(gelu, 0, 0, NEGATIVE, graph) == EITHER
    assert shown_signs(softmax, 0, 0, NEGATIVE, graph) == NEITHER


def test_further_outputs_show_what_the_first_does_not(tmp_path: Path) -> None:
    graph = _graph(tmp_path, node("LayerNormalization", "h s", "y mean"), s=_normal(4))
    assert [shown_signs(graph.nodes[0], 0, output, POSITIVE, graph) for output in (0, 1)] == [NEITHER, EITHER]


@pytest.mark.parametrize(
    ("slot", "outputs"),
    [(0, {3}), (1, {1, 3}), (2, {0, 2, 3}), (3, {3}), (4, {1, 3}), (5, {0, 2, 3})],
)
def test_attention_ends_the_mask_and_the_scores_but_not_the_values(
    slot: int, outputs: set[int], tmp_path: Path
) -> None:
    proto = node("Attention", "q k v mask past_k past_v", "y new_k new_v scores")
    at = Node.of(0, "a", proto)
    graph = _graph(tmp_path, node("Neg", "x", "y"))
    assert {i for i in range(4) if shown_signs(at, slot, i, NEGATIVE, graph)} == outputs


def test_what_a_body_captures_may_show_anywhere(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Sigmoid", ["h"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)],
    )
    cond = helper.make_node("Constant", [], ["cond"], value=onnx.numpy_helper.from_array(np.asarray(True)))
    graph = _graph(tmp_path, cond, node("If", "cond", "y", then_branch=body, else_branch=body))
    assert shown_signs(graph.nodes[1], 1, 0, NEGATIVE, graph) == EITHER


def test_the_first_step_of_a_softmax_written_out_is_at_most_zero(tmp_path: Path) -> None:
    graph = _graph(
        tmp_path,
        node("ReduceMax", "h", "top", axes=[-1]),
        node("Sub", "h top", "down"),
        node("Sub", "x top", "other"),
        node("Add", "down other", "y"),
    )
    _, own, other, _ = graph.nodes
    assert shown_signs(own, 1, 0, NEGATIVE, graph) == shown_signs(own, 0, 0, EITHER, graph) == NEGATIVE
    assert shown_signs(other, 1, 0, NEGATIVE, graph) == POSITIVE


def test_a_maximum_that_stands_along_another_axis_is_no_bound(tmp_path: Path) -> None:
    """Without keepdims the maxima of rows are taken from columns."""
    graph = _graph(tmp_path, node("ReduceMax", "h", "top", axes=[-1], keepdims=0), node("Sub", "h top", "y"))
    assert shown_signs(graph.nodes[1], 0, 0, EITHER, graph) == EITHER


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-65504, 65504, NEITHER),
        (-65520, 65504, NEGATIVE),
        (-65504, 65520, POSITIVE),
        (-65520, 65520, EITHER),
    ],
)
def test_a_bound_that_fp16_makes_infinite_stops_nothing(
    low: float, high: float, shown: Signs, tmp_path: Path
) -> None:
    graph = _graph(tmp_path, node("Clip", "x low high", "y"), low=scalar(low), high=scalar(high))
    assert shown_signs(graph.nodes[0], 0, 0, EITHER, graph) == shown


@pytest.mark.parametrize(
    ("op", "slot", "signs", "expected"),
    [
        ("Clip", 1, NEGATIVE, True),
        ("Clip", 1, POSITIVE, False),
        ("Clip", 2, POSITIVE, True),
        ("Clip", 2, NEGATIVE, False),
        ("Clip", 0, NEGATIVE, False),
        ("Max", 1, NEGATIVE, True),
        ("Max", 1, EITHER, False),
        ("Min", 0, POSITIVE, True),
        ("Min", 0, NEGATIVE, False),
        ("Add", 1, NEGATIVE, False),
    ],
)
def test_bounds(op: str, slot: int, signs: Signs, expected: bool, tmp_path: Path) -> None:
    constants = {"low": scalar(-1), "high": scalar(1)}
    graph = _graph(tmp_path, node(op, "x low high" if op == "Clip" else "x low", "y"), **constants)
    assert is_bound(graph.nodes[0], slot, signs, graph) is expected


def test_what_replaces_infinity_alone_is_a_bound(tmp_path: Path) -> None:
    """torch.nan_to_num: FP16 holds no infinity where FP32 holds none."""
    graph = _graph(
        tmp_path,
        node("IsInf", "x", "inf"),
        node("Greater", "x zero", "positive"),
        node("And", "inf positive", "posinf"),
        node("Where", "posinf top x", "a"),
        node("IsNaN", "a", "nan"),
        node("Where", "nan top a", "b"),
        node("Where", "c top b", "y"),
        zero=scalar(0),
        top=scalar(3.4e38),
    )
    by_infinity, by_nan, by_data = (n for n in graph.nodes if n.op_type == "Where")
    assert is_bound(by_infinity, 1, POSITIVE, graph)
    assert not is_bound(by_nan, 1, POSITIVE, graph)
    assert not is_bound(by_data, 1, POSITIVE, graph)


def _names() -> set[str]:
    tables = (MOVES, huge_values._ABSORBED, huge_values._STOPS_NEGATIVE, huge_values._TO_POSITIVE)
    return {name for table in (*tables, huge_values._KEEPS_SIGN) for name in table}


def test_the_tables_name_operators_that_exist() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert _names() - known <= {"RMSNormalization", "Swish"}, "newer than some versions of onnx"


def test_absorbed_slots_are_float_inputs() -> None:
    for name, slots in huge_values._ABSORBED.items():
        if not onnx.defs.has(name):
            continue
        schema = onnx.defs.get_schema(name)
        kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for slot in slots:
            kind = schema.inputs[slot].type_str
            assert "tensor(float)" in kinds.get(kind, [kind]), (name, slot)


def test_only_bounds_needs_a_constant_read_as_nothing_else(tmp_path: Path) -> None:
    graph = _graph(
        tmp_path,
        node("Max", "x low", "a"),
        node("Max", "low low", "b"),
        node("Max", "x h", "d"),
        node("Clip", "low low", "y"),
        low=scalar(-1e6),
    )
    low = Range("low", 1e6, -1e6, -1e6, 1e6, 1, 0, 0, 1, 0)
    as_bound, twice, live, as_data = graph.nodes
    assert huge_values.only_bounds(graph, as_bound, low, 10000)
    assert huge_values.only_bounds(graph, twice, low, 10000)
    assert not huge_values.only_bounds(graph, live, replace(low, tensor="h"), 10000)
    assert not huge_values.only_bounds(graph, as_data, low, 10000)
    assert not huge_values.only_bounds(graph, as_bound, replace(low, max=1e6), 10000)
    assert not huge_values.only_bounds(graph, as_bound, replace(low, nan_count=1), 10000)

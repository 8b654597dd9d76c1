from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import FLOAT, floats, make_model, node, save, scalar, scan
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.planning.plan_fit import check_plan
from overflow_fixer.records import Clamp, Pin, PlanPolicy, PrecisionPlan


def _planned(folder: Path) -> tuple[Graph, PrecisionPlan]:
    """A Mul of which the data demand a pin, beside a Constant and a Shape."""
    nodes = [
        node("Constant", "", "big", value=numpy_helper.from_array(scalar(30000))),
        node("Mul", "x big", "up"),
        node("Shape", "up", "size"),
    ]
    model = make_model(nodes, {"x": [2]}, "up size", output_types={"size": TensorProto.INT64})
    graph, ranges = scan(model, folder, {"x": floats(1, 2)})
    return graph, plan_precision(graph, ranges, PlanPolicy())


def _refusal(graph: Graph, plan: PrecisionPlan, **changes: Any) -> str:
    with pytest.raises(PlanError) as caught:
        check_plan(graph, replace(plan, **changes))
    return str(caught.value)


def _add_pin(plan: PrecisionPlan, *pin: Any) -> dict[str, Any]:
    return {"pins": (*plan.pins, Pin(*pin, ()))}


def test_a_plan_of_another_model_or_with_names_it_lacks_is_refused(tmp_path: Path) -> None:
    graph, plan = _planned(tmp_path)
    assert plan.pinned == {"Mul_up"}
    check_plan(graph, plan)
    another = _refusal(graph, plan, model_sha256="f" * 64)
    assert "made for another model" in another
    assert "Scan it with fix-fp16 scan --fresh, then plan again" in another
    assert "names 'nowhere', which" in _refusal(graph, plan, **_add_pin(plan, "nowhere", "Mul", ("a",)))
    assert "names 'up', which" in _refusal(graph, plan, clamps=(Clamp("up", 25000.0, "because"),))
    assert "twice. Expected each pin" in _refusal(graph, plan, pins=(plan.pins[0], plan.pins[0]))


@pytest.mark.parametrize("value", [0.0, -5.0, 65505.0, math.nan, math.inf])
def test_magnitudes_that_are_not_fp16s_are_refused(value: float, tmp_path: Path) -> None:
    graph, plan = _planned(tmp_path)
    message = f"the threshold {value:g}. Expected a number above 0 and of at most 65504."
    assert message in _refusal(graph, plan, threshold=value)
    said = _refusal(graph, plan, clamps=(Clamp("big", value, "because"),))
    assert f"a clamp of 'big' to the magnitude {value:g}. Expected" in said
    check_plan(graph, replace(plan, threshold=65504.0, clamps=(Clamp("big", 1e-3, "because"),)))


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        (("Shape_size", "Shape", ("size",)), "it computes no FP32 value"),
        (("Constant_big", "Constant", ("big",)), "a constant is typed by its readers"),
    ],
)
def test_a_pin_that_changes_nothing_is_refused(pin: Any, reason: str, tmp_path: Path) -> None:
    graph, plan = _planned(tmp_path)
    message = _refusal(graph, plan, **_add_pin(plan, *pin))
    assert f"pins {pin[0]!r}, a {pin[1]}, and a pin of that changes nothing: {reason}." in message


@pytest.mark.parametrize(("op_type", "outputs"), [("Conv", ("up",)), ("Mul", ("zzz",)), ("Mul", ())])
def test_a_pin_that_is_not_what_the_node_is_is_refused(op_type: str, outputs: Any, tmp_path: Path) -> None:
    graph, plan = _planned(tmp_path)
    message = _refusal(graph, plan, pins=(Pin("Mul_up", op_type, outputs, ()),))
    assert f"pin of 'Mul_up' is of a {op_type} with the outputs {list(outputs)}" in message
    assert "that is a Mul with the outputs ['up']" in message


def _branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, f"to_{output}", [], [helper.make_tensor_value_info(output, FLOAT, None)])


def _choosing() -> onnx.ModelProto:
    branches = [_branch([node("Mul", "x big", name)], name) for name in ("a", "b")]
    chosen = node("If", "c", "y", then_branch=branches[0], else_branch=branches[1])
    counted = [_branch([helper.make_node("Shape", ["x"], [name])], name) for name in ("d", "e")]
    for branch in counted:
        branch.output[0].type.tensor_type.elem_type = TensorProto.INT64
    sized = node("If", "c", "n", then_branch=counted[0], else_branch=counted[1])
    ends = {"x": [2], "c": (TensorProto.BOOL, [])}
    return make_model(
        [chosen, sized], ends, "y n", {"big": scalar(30000)}, output_types={"n": TensorProto.INT64}
    )


def _calling() -> onnx.ModelProto:
    model = make_model(
        [node("Call", "x", "y", domain="own"), node("Call", "y", "z", domain="own", name="")], {"x": [2]}, "z"
    )
    inside = [helper.make_node("Abs", ["u"], ["v"]), helper.make_node("Sqrt", ["v"], ["w"])]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Call", ["u"], ["w"], inside, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def _leaving_out() -> onnx.ModelProto:
    """A node without a name, of which an output is left out, before two of one name."""
    nodes = [
        node("Reshape", "x shape", "row"),
        node("GRU", "row w r", "- h", name="", hidden_size=1),
        node("Neg", "h", "v", name="same"),
        node("Neg", "v", "y", name="same"),
    ]
    weights = {"w": np.ones((1, 3, 2), np.float32), "r": np.ones((1, 3, 1), np.float32)}
    return make_model(nodes, {"x": [2]}, "y", {"shape": np.asarray([1, 1, 2]), **weights})


@pytest.mark.parametrize("make", [_choosing, _calling, _leaving_out])
def test_whatever_the_planner_pins_passes(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    feeds = {"x": floats(1, 2), "c": np.asarray(True)}
    wanted = {spec.name: feeds[spec.name] for spec in save(make(), tmp_path).inputs}
    graph, ranges = scan(make(), tmp_path, wanted)
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("",)))
    assert plan.pins
    check_plan(graph, plan)

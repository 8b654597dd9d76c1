"""What is no plan of the model is refused, by each backend and before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typed_models import plan_of, write_model

from overflow_fixer import emit
from overflow_fixer.backends.fit import check_fit
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Clamp, Pin, PrecisionPlan

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Exp(a) }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return load_graph(write_model(tmp_path, TEXT))


def _refuse(graph: Graph, plan: PrecisionPlan) -> str:
    path = graph.path.with_name("model.fp16.onnx")
    with pytest.raises(PlanError) as caught:
        emit(graph, plan, path)
    assert not path.exists()
    return str(caught.value)


def test_a_plan_of_the_model_is_taken(graph: Graph) -> None:
    plan = replace(plan_of(graph, ["node_of_y"]), clamps=(Clamp("w", 2.0, "because"),))
    check_fit(graph, plan)
    assert emit(graph, plan, graph.path.with_name("model.fp16.onnx")).fp32_nodes == ("node_of_y",)


def test_a_plan_of_another_model_is_refused(graph: Graph) -> None:
    told = _refuse(graph, replace(plan_of(graph, ["node_of_y"]), model_sha256="f" * 64))
    assert told.startswith("The plan was made for another model (sha256 ffffffffffff…)")


def test_names_that_the_model_lacks_are_refused(graph: Graph) -> None:
    plan = plan_of(graph)
    assert "names 'y', which" in _refuse(graph, replace(plan, pins=(Pin("y", "Exp", ("y",), ()),)))
    assert "names 'a', which" in _refuse(graph, replace(plan, clamps=(Clamp("a", 2.0, "because"),)))

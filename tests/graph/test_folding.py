"""Tensors made of constants alone have a value; others have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import numpy_helper

from overflow_fixer.graph.folding import Folder
from overflow_fixer.graph.model import Graph, load_graph


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return save(
        make_model(
            [
                node("Constant", "", "two", value=numpy_helper.from_array(np.asarray(2, np.float32))),
                node("Expand", "k shape", "full"),
                node("Mul", "full two", "twice"),
                node("Trilu", "twice", "upper", upper=1),
                node("Equal", "upper zero", "condition"),
                node("Shape", "x", "size"),
                node("Expand", "k size", "live"),
                node("RandomNormal", "", "noise", shape=[2]),
                node("Add", "noise k", "noisy"),
                node("Dropout", "full half training", "dropped"),
                node("Reshape", "k bad", "broken"),
                node("Where", "condition x upper", "y"),
            ],
            {"x": [2, 2]},
            "y live noisy dropped broken",
            {
                "k": scalar(-3),
                "shape": ints(2, 2),
                "zero": scalar(0),
                "bad": ints(5),
                "half": scalar(0.5),
                "training": np.asarray(True),
            },
        ),
        tmp_path,
    )


def test_values(graph: Graph) -> None:
    folder = Folder(graph)
    np.testing.assert_array_equal(folder.value("k"), scalar(-3))
    np.testing.assert_array_equal(folder.value("two"), scalar(2))
    np.testing.assert_array_equal(folder.value("upper"), np.asarray([[-6, -6], [0, -6]], np.float32))
    np.testing.assert_array_equal(folder.value("condition"), [[False, False], [True, False]])
    assert folder.value("upper") is folder.value("upper")


def test_several_values_are_those_of_each_though_one_cannot_be_computed(graph: Graph) -> None:
    names = ["upper", "k", "broken", "y", "full", "nowhere", "upper"]
    together, alone = Folder(graph).values(names), Folder(graph)
    assert list(together) == list(dict.fromkeys(names))
    for name, value in together.items():
        np.testing.assert_equal(value, alone.value(name))
    assert [name for name, value in together.items() if value is None] == ["broken", "y", "nowhere"]


@pytest.mark.parametrize("tensor", ["x", "y", "size", "live", "noise", "noisy", "dropped", "nowhere"])
def test_what_depends_on_an_input_or_on_chance_has_none(tensor: str, graph: Graph) -> None:
    assert Folder(graph).value(tensor) is None


def test_what_cannot_be_computed_has_none(graph: Graph) -> None:
    assert Folder(graph).value("broken") is None


def test_what_takes_many_nodes_is_left(tmp_path: Path) -> None:
    nodes = [node("Neg", f"t{i}", f"t{i + 1}") for i in range(80)]
    model = make_model([*nodes, node("Add", "x t80", "y")], {"x": [1]}, "y", {"t0": scalar(1)})
    folder = Folder(save(model, tmp_path))
    assert folder.value("t50") == 1
    assert folder.value("t80") is None


def test_external_data_is_read(tmp_path: Path) -> None:
    model = make_model(
        [node("Neg", "k", "a"), node("Add", "x a", "y")],
        {"x": [3]},
        "y",
        {"k": np.arange(3, dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    np.testing.assert_array_equal(Folder(load_graph(tmp_path / "m.onnx")).value("a"), [0, -1, -2])

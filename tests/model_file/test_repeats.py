"""Two initializers of one name are refused, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, make_model, node
from onnx import numpy_helper
from sparse_tensors import make_sparse

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph


def _save(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _two_dense(graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(floats(3, 4), "w"))


def _dense_and_sparse(graph: onnx.GraphProto) -> None:
    graph.sparse_initializer.append(make_sparse("w", [5], [1], [2]))


def _two_sparse(graph: onnx.GraphProto) -> None:
    del graph.initializer[:]
    graph.sparse_initializer.extend([make_sparse("w", [5], [1], [2]), make_sparse("w", [7], [0], [2])])


def _large(graph: onnx.GraphProto) -> None:
    """References into the model's own file are told by name alone."""
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(np.full(8192, k, np.float32), "w") for k in (1, 2))


@pytest.mark.parametrize("add", [_two_dense, _dense_and_sparse, _two_sparse, _large])
def test_a_name_that_two_initializers_have_is_told(
    add: Callable[[onnx.GraphProto], None], tmp_path: Path
) -> None:
    model = make_model([node("Add", "x w", "y")], {"x": [2]}, "y", {"w": floats(1, 2)})
    add(model.graph)
    with pytest.raises(ModelError, match=r"has 2 initializers of the name 'w'\. Expected each name once"):
        load_graph(_save(tmp_path, model))


def test_initializers_without_a_name_are_left(tmp_path: Path) -> None:
    """Nothing can read them."""
    model = make_model([node("Add", "x w", "y")], {"x": [2]}, "y", {"w": floats(1, 2)})
    model.graph.initializer.extend(numpy_helper.from_array(floats(k), "") for k in (1, 2))
    assert "w" in load_graph(_save(tmp_path, model)).constants

"""Sparse constants, as the dense ones that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node
from onnx import TensorProto, helper, numpy_helper
from sparse_tensors import make_sparse

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.sparse import write_dense

PATH = Path("folder/m.onnx")


def _hold(*sparse: onnx.SparseTensorProto) -> onnx.GraphProto:
    graph = make_model([node("Add", "x s", "y")], {"x": [4]}, "y").graph
    graph.sparse_initializer.extend(sparse)
    return graph


def _write(sparse: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    graph = _hold(sparse)
    write_dense(PATH, graph)
    assert not graph.sparse_initializer
    (dense,) = graph.initializer
    assert dense.name == "s"
    return numpy_helper.to_array(dense)


@pytest.mark.parametrize("places", [[3, 1], [[1, 1], [0, 1]]])
def test_values_stand_at_their_places_flat_or_by_axis(places: list[Any]) -> None:
    found = _write(make_sparse("s", [5, 7], places, [2, 2]))
    np.testing.assert_array_equal(found, np.array([[0, 7], [0, 5]], np.float32), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "bool"])
def test_it_has_the_type_of_its_values(dtype: str) -> None:
    values = numpy_helper.from_array(np.array([1], dtype), "s")
    places = numpy_helper.from_array(np.array([2], np.int64), "places")
    np.testing.assert_array_equal(
        _write(helper.make_sparse_tensor(values, places, [3])), np.array([0, 0, 1], dtype), strict=True
    )


def test_one_without_values_is_0() -> None:
    np.testing.assert_array_equal(_write(make_sparse("s", [], [], [3])), np.zeros(3, np.float32), strict=True)


def test_values_and_places_lie_in_a_file_beside_the_model(tmp_path: Path) -> None:
    sparse = make_sparse("s", [5, 7], [3, 1], [4])
    for place, tensor in enumerate((sparse.values, sparse.indices)):
        (tmp_path / f"{place}.bin").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"{place}.bin")
    graph = _hold(sparse)
    write_dense(tmp_path / "m.onnx", graph)
    np.testing.assert_array_equal(numpy_helper.to_array(graph.initializer[0]), [0, 7, 0, 5])


def test_attributes_of_operators_of_other_domains_stay() -> None:
    graph = _hold()
    sparse = make_sparse("s", [5], [1], [4])
    graph.node.append(node("Constant", "", "s", domain="com.example", sparse_value=sparse))
    write_dense(PATH, graph)
    assert graph.node[-1].attribute[0].sparse_tensor == sparse


@pytest.mark.parametrize(
    ("values", "places", "dims", "reason"),
    [
        ([1], [4], [4], "index 4 is out of bounds"),
        ([1], [-1], [4], "index -1 is out of bounds"),
        ([1], [[0, 2]], [2, 2], "invalid entry in coordinates"),
        ([1], [[0, 0, 0]], [2, 2], "must be a sequence of length 2"),
        ([1, 2], [0], [4], "2 values and 1 places"),
        ([1], [0, 2], [4], "1 values and 2 places"),
        ([1], [0], [-4], "negative dimensions"),
    ],
)
def test_places_that_there_are_not_are_refused(
    values: list[float], places: list[Any], dims: list[int], reason: str
) -> None:
    sparse = make_sparse("s", values, places, dims)
    with pytest.raises(ModelError, match=rf"folder/m.onnx: the sparse tensor 's' of shape .*{reason}"):
        write_dense(PATH, _hold(sparse))


def test_places_that_are_no_integers_are_refused() -> None:
    sparse = make_sparse("s", [1], [0], [4])
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.float32)))
    with pytest.raises(ModelError, match="1 places of type float32"):
        write_dense(PATH, _hold(sparse))


def test_strings_are_refused() -> None:
    values = helper.make_tensor("s", TensorProto.STRING, [1], [b"a"])
    places = numpy_helper.from_array(np.array([0], np.int64))
    sparse = onnx.SparseTensorProto(values=values, indices=places, dims=[4])
    with pytest.raises(ModelError, match="it holds strings"):
        write_dense(PATH, _hold(sparse))


def test_one_of_over_2_gb_is_refused_before_it_is_made() -> None:
    with pytest.raises(ModelError, match=r"takes 4398\.0 GB as a dense one\. Expected 2 GB at most"):
        write_dense(PATH, _hold(make_sparse("s", [1], [0], [1 << 20, 1 << 20])))

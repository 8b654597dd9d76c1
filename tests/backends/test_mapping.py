"""Layers find their ONNX nodes: in networks that TensorRT really parsed, and by each sign alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from awkward_networks import awkward_graph, if_graph, recorded_layers
from fake_tensorrt import fake_tensorrt
from hypothesis import given
from hypothesis import strategies as st
from recorded_networks import NAMES, parsed_network, recorded_graph, recorded_script
from typed_models import write_model

from overflow_fixer.backends.tensorrt.mapping import (
    LayerTensor,
    NetworkLayer,
    map_layers,
    parse_metadata,
    read_layers,
)
from overflow_fixer.graph.model import Graph, load_graph


def _layer(
    index: int, name: str, metadata: str = "", *outputs: str, kind: str = "ELEMENTWISE"
) -> NetworkLayer:
    tensors = tuple(LayerTensor(output, "FLOAT", False, True) for output in outputs or (f"{name}_output",))
    return NetworkLayer(index, name, kind, metadata, tensors)


def _indices(mapped: Mapping[str, Sequence[NetworkLayer]]) -> dict[str, list[int]]:
    return {label: [layer.index for layer in layers] for label, layers in mapped.items()}


def _recorded(name: str) -> tuple[Graph, tuple[NetworkLayer, ...], Mapping[str, Sequence[NetworkLayer]]]:
    graph = recorded_graph(name)
    layers = read_layers(parsed_network(fake_tensorrt("8.6", recorded_script(name))))
    return graph, layers, map_layers(layers, graph)


# ---------------------------------------------------------------- networks that TensorRT parsed


def test_every_unnamed_layer_goes_to_its_node(tmp_path: Path) -> None:
    """Layer 30 belongs to TopK, but comes after it: a shape, which no pin touches whatever its node."""
    mapped = map_layers(recorded_layers("awkward"), awkward_graph(tmp_path))
    assert _indices(mapped) == {
        "ln": [2, 3, 4],
        "gemm": [6, 7, 8, 9, 10, 11],
        "sm": [12, 13],
        "l2": [14, 15, 16, 17],
        "clip": [18],
        "max": [19, 20],
        "split": [21, 22, 23, 24, 25, 26, 27],
        "topk": [28],
        "cat": [30, 31],
    }
    assert recorded_layers("awkward")[30].outputs[0].is_shape


def test_the_layers_of_both_branches_are_the_ifs(tmp_path: Path) -> None:
    assert _indices(map_layers(recorded_layers("if"), if_graph(tmp_path))) == {
        "if0": [0, 1, 2, 3],
        "sqrt": [4],
    }


_KINDS: dict[str, dict[str, set[str]]] = {
    "conv_chain": {
        "Conv": {"CONVOLUTION"},
        "Relu": {"ACTIVATION"},
        "GlobalAveragePool": {"REDUCE"},
        "Flatten": {"CONSTANT SHAPE GATHER CONSTANT CONCATENATION SHUFFLE"},
        "Gemm": {"MATRIX_MULTIPLY SHUFFLE ELEMENTWISE"},
    },
    "needs_constraints": {
        "MatMul": {"MATRIX_MULTIPLY"},
        "Add": {"SHUFFLE ELEMENTWISE"},
        "Sub": {"SHUFFLE ELEMENTWISE"},
    },
    "layernorm_transformer": {
        "ReduceMean": {"REDUCE"},
        "Sub": {"ELEMENTWISE"},
        "Pow": {"SHUFFLE ELEMENTWISE"},
        "Add": {"SHUFFLE ELEMENTWISE", "ELEMENTWISE"},
        "Sqrt": {"UNARY"},
        "Div": {"SHUFFLE ELEMENTWISE", "ELEMENTWISE"},
        "Mul": {"SHUFFLE ELEMENTWISE", "ELEMENTWISE"},
        "MatMul": {"SHUFFLE MATRIX_MULTIPLY", "MATRIX_MULTIPLY", "SHAPE MATRIX_MULTIPLY"},
        "Shape": {"SHAPE"},
        "Gather": {"GATHER"},
        "Unsqueeze": {"SHUFFLE"},
        "Concat": {"CONCATENATION"},
        "Reshape": {"SHUFFLE"},
        "Transpose": {"SHUFFLE"},
        "Softmax": {"SOFTMAX SHUFFLE"},
        "Erf": {"UNARY"},
    },
    "masked_attention": {
        "Unsqueeze": {"SHAPE CONSTANT CONCATENATION CONSTANT GATHER SHUFFLE"},
        "Cast": {"CAST"},
        "Sub": {"SHUFFLE ELEMENTWISE"},
        "Mul": {"SHUFFLE ELEMENTWISE", "ELEMENTWISE"},
        "Shape": {"SHAPE"},
        "Gather": {"GATHER"},
        "Slice": {
            "CONSTANT CONCATENATION CONSTANT GATHER CONSTANT ELEMENTWISE CONSTANT ELEMENTWISE ELEMENTWISE "
            "ELEMENTWISE CONSTANT ELEMENTWISE ELEMENTWISE CONSTANT ELEMENTWISE SLICE"
        },
        "Add": {"SHUFFLE ELEMENTWISE", "ELEMENTWISE"},
        "LayerNormalization": {"SHUFFLE SHUFFLE NORMALIZATION"},
        "MatMul": {"SHUFFLE MATRIX_MULTIPLY", "MATRIX_MULTIPLY", "SHAPE MATRIX_MULTIPLY"},
        "Reshape": {"SHUFFLE"},
        "Transpose": {"SHUFFLE"},
        "Div": {"SHUFFLE ELEMENTWISE"},
        "Softmax": {"SOFTMAX SHUFFLE"},
        "Erf": {"UNARY"},
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_has_the_layers_that_the_parser_makes_of_it(name: str) -> None:
    graph, _, mapped = _recorded(name)
    kinds = defaultdict(set)
    for node in graph.nodes:
        if node.op_type != "Constant":
            kinds[node.op_type].add(" ".join(layer.kind for layer in mapped[node.label]))
    assert kinds == _KINDS[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_but_a_shared_constant_has_one_node_and_each_node_writes_its_last(name: str) -> None:
    graph, layers, mapped = _recorded(name)
    assigned = sorted(index for indices in _indices(mapped).values() for index in indices)
    shared = [layer.index for layer in layers if layer.kind == "CONSTANT" and layer.name in graph.constants]
    assert sorted(assigned + shared) == list(range(len(layers)))
    for label, mine in mapped.items():
        assert graph.by_label[label].outputs[0] in {tensor.name for tensor in mine[-1].outputs}
        assert all(label in parse_metadata(layer.metadata) for layer in mine if layer.metadata)


def test_layers_are_read_with_their_types_and_uses() -> None:
    _, layers, _ = _recorded("conv_chain")
    flatten, shape = layers[20], layers[16]
    assert (flatten.index, flatten.name, flatten.kind) == (20, "/flatten/Flatten", "SHUFFLE")
    assert flatten.outputs == (LayerTensor("/flatten/Flatten_output_0", "FLOAT", False, True),)
    assert flatten.outputs[0].is_float
    assert shape.outputs == (LayerTensor("(Unnamed Layer* 16) [Shape]_output", "INT32", True, False),)


# ---------------------------------------------------------------- each sign alone


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Nodes a, b and a nameless one that writes z, whose label is node_of_z."""
    model = "g (float[4] x) => (float[4] z) { [a] p = Abs(x) [b] q = Neg(p) z = Exp(q) }"
    return load_graph(write_model(tmp_path_factory.mktemp("abc"), model))


def test_the_output_tensor_is_believed_before_metadata_and_name(abc: Graph) -> None:
    layers = [_layer(0, "a", "[ONNX Layer: a]", "q"), _layer(1, "b", "[ONNX Layer: b]", "p")]
    assert _indices(map_layers(layers, abc)) == {"b": [0], "a": [1]}


def test_metadata_is_believed_before_the_name(abc: Graph) -> None:
    assert _indices(map_layers([_layer(0, "a", "[ONNX Layer: b]")], abc)) == {"b": [0]}


def test_the_name_is_believed_with_the_parsers_counter_and_without(abc: Graph) -> None:
    layers = [_layer(0, "a"), _layer(1, "a_17"), _layer(2, "b_x"), _layer(3, "b")]
    assert _indices(map_layers(layers, abc)) == {"a": [0, 1], "b": [2, 3]}


def test_a_node_whose_own_name_ends_like_a_counter_keeps_its_layer(tmp_path: Path) -> None:
    graph = load_graph(
        write_model(tmp_path, "g (float[4] x) => (float[4] z) { [n] p = Abs(x) [n_1] z = Neg(p) }")
    )
    assert _indices(map_layers([_layer(0, "n"), _layer(1, "n_1")], graph)) == {"n": [0], "n_1": [1]}


def test_layers_without_a_sign_go_to_the_next_that_has_one(abc: Graph) -> None:
    names = ["(Unnamed Layer* 0) [Shuffle]", "ONNXTRT_Broadcast_3", "b", "(Unnamed Layer* 3) [Shuffle]"]
    layers = [_layer(index, name) for index, name in enumerate(names)]
    assert _indices(map_layers(layers, abc)) == {"b": [0, 1, 2]}


def test_a_nameless_node_goes_by_the_name_that_the_parser_gives_it(abc: Graph) -> None:
    assert _indices(map_layers([_layer(0, "node_of_z", "[ONNX Layer: node_of_z]")], abc)) == {
        "node_of_z": [0]
    }


def test_nodes_of_one_name_are_told_apart_by_what_they_write(tmp_path: Path) -> None:
    graph = load_graph(
        write_model(tmp_path, "g (float[4] x) => (float[4] z) { [n] p = Abs(x) [n] z = Neg(p) }")
    )
    layers = [_layer(0, "n", "[ONNX Layer: n]", "p"), _layer(1, "n_1", "[ONNX Layer: n]", "z")]
    assert _indices(map_layers(layers, graph)) == {"node_of_p": [0], "node_of_z": [1]}


def test_a_constant_of_the_model_belongs_to_no_node_and_one_of_the_parser_to_its_reader(
    tmp_path: Path,
) -> None:
    graph = load_graph(
        write_model(
            tmp_path, "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { [add] y = Add(x, w) }"
        )
    )
    layers = [
        _layer(0, "w", kind="CONSTANT"),
        _layer(1, "(Unnamed Layer* 1) [Constant]", kind="CONSTANT"),
        _layer(2, "add"),
    ]
    assert _indices(map_layers(layers, graph)) == {"add": [1, 2]}


# ---------------------------------------------------------------- metadata, from 8.6 to 11


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("[ONNX Layer: /conv1/Conv]", ("/conv1/Conv",)),
        ("[ONNX Layer: a]\x1e[ONNX Layer: b]\x1e[ONNX Layer: a]", ("a", "b")),
        ("[ONNX Layer: a]\x1f[ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: a][ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: a | Local Function: F]", ("a",)),
        ("[ONNX Layer: a | Local Function: F]\x1e[ONNX Layer: b | Local Function: G]", ("a", "b")),
        ("[ONNX Layer: a | call (F) | outer (G)]\x1e[ONNX Layer: b]", ("a", "b")),
        ("[ONNX Layer: x[0]]\x1e[ONNX Layer: y]", ("x[0]", "y")),
        ("[ONNX Layer: two words]", ("two words",)),
        ("something else", ()),
    ],
)
def test_metadata_names_nodes(text: str, nodes: tuple[str, ...]) -> None:
    assert parse_metadata(text) == nodes


# ---------------------------------------------------------------- any network


_NAMES = ("a", "b", "a_3", "node_of_z", "(Unnamed Layer* 2) [Shuffle]", "ONNXTRT_squeeze_1", "other", "")
_METADATA = ("", "[ONNX Layer: a]", "[ONNX Layer: b | Local Function: F]", "[ONNX Layer: lost]")
_OUTPUTS = ("p", "q", "z", "(Unnamed Layer* 2) [Shuffle]_output")


@given(
    signs=st.lists(
        st.tuples(st.sampled_from(_NAMES), st.sampled_from(_METADATA), st.sampled_from(_OUTPUTS)), max_size=12
    )
)
def test_a_layer_is_assigned_once_at_most_and_order_is_kept(abc: Graph, signs: Any) -> None:
    layers = [_layer(index, *sign) for index, sign in enumerate(signs)]
    found = _indices(map_layers(layers, abc))
    assert set(found) <= set(abc.by_label)
    assert all(mine == sorted(mine) for mine in found.values())
    assigned = sorted(index for mine in found.values() for index in mine)
    assert assigned == list(range(len(assigned)))

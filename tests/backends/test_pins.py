"""Which layers of a pinned node are pinned, what is set on them, and that it can be undone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from awkward_networks import awkward_graph, if_graph, recorded_layers
from fake_tensorrt import LayerSpec, Script, TensorSpec, Variant, fake_tensorrt
from hypothesis import given
from hypothesis import strategies as st
from recorded_networks import NAMES, parsed_network, pinned_layers, recorded_graph, recorded_script
from typed_models import write_model

from overflow_fixer.backends.tensorrt.mapping import LayerTensor, NetworkLayer, map_layers, read_layers
from overflow_fixer.backends.tensorrt.pins import (
    MOVEMENT,
    Pinning,
    choose_layers,
    clear_pins,
    leaves_fp16,
    set_pins,
    why_not,
)
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import load_graph

_FLOAT = LayerTensor("y", "FLOAT", False, True)


def _names_of(pinning: Pinning, label: str) -> tuple[str, ...]:
    return tuple(layer.name for owner, layer in pinning.layers if owner == label)


def _layer(kind: str, *outputs: LayerTensor, index: int = 0, name: str = "layer") -> NetworkLayer:
    return NetworkLayer(index, name, kind, "", outputs)


# ---------------------------------------------------------------- whether FP16 has a place


@pytest.mark.parametrize(("pinned", "is_left"), [("", True), ("a", True), ("b", True), ("a b", False)])
def test_fp16_has_a_place_where_a_node_that_computes_floats_has_no_pin(
    pinned: str, is_left: bool, tmp_path: Path
) -> None:
    """Neither a constant nor what computes integers is such a node."""
    text = """g (float[2] x) => (float[2] y, int64[1] n)
    { [k] c = Constant <value = float {2}> () [a] h = Mul(x, c) [b] y = Exp(h) [s] n = Shape(y) }"""
    graph = load_graph(write_model(tmp_path, text))
    assert leaves_fp16(graph, pinned.split(), "keep") is is_left
    assert leaves_fp16(graph, pinned.split(), "fp16")


# ---------------------------------------------------------------- choosing


def test_every_computing_layer_of_an_awkward_node_is_chosen(tmp_path: Path) -> None:
    graph = awkward_graph(tmp_path)
    mapped = map_layers(recorded_layers("awkward"), graph)
    pinning = choose_layers(graph, mapped, [node.label for node in graph.nodes])
    chosen: dict[str, list[int]] = {}
    for label, layer in pinning.layers:
        chosen.setdefault(label, []).append(layer.index)
    assert chosen == {
        "ln": [2, 3, 4],
        "gemm": [6, 8, 9, 10, 11],
        "sm": [12, 13],
        "l2": [15, 16, 17],
        "clip": [18],
        "max": [19, 20],
        "split": [26, 27],
        "topk": [28],
        "cat": [31],
    }
    assert _names_of(pinning, "l2") == ("(Unnamed Layer* 15) [ElementWise]", "l2", "l2_1")
    skipped = {(kept.node, kept.op_type, kept.reason) for kept in pinning.skipped}
    assert (
        "gemm",
        "CONSTANT",
        "layer '(Unnamed Layer* 7) [Constant]': a CONSTANT layer takes no precision",
    ) in skipped
    assert ("l2", "SHAPE", "layer '(Unnamed Layer* 14) [Shape]': a SHAPE layer takes no precision") in skipped
    assert ("split", "GATHER", "layer '(Unnamed Layer* 25) [Gather]': it computes with shapes") in skipped
    assert len(pinning.layers) + len(pinning.skipped) == sum(map(len, mapped.values()))


def test_the_branches_of_an_if_are_pinned_and_its_frame_is_not(tmp_path: Path) -> None:
    graph = if_graph(tmp_path)
    pinning = choose_layers(graph, map_layers(recorded_layers("if"), graph), ["if0"])
    assert _names_of(pinning, "if0") == ("then_mul", "else_add")
    assert {kept.op_type for kept in pinning.skipped} == {"CONDITION", "CONDITIONAL_OUTPUT"}


@pytest.mark.parametrize("name", NAMES)
def test_no_layer_of_a_sample_computes_floats_and_is_not_chosen(name: str) -> None:
    graph = recorded_graph(name)
    layers = read_layers(parsed_network(fake_tensorrt("8.6", recorded_script(name))))
    pinning = choose_layers(graph, map_layers(layers, graph), [node.label for node in graph.nodes])
    chosen = {layer.index for _, layer in pinning.layers}
    floats = {
        layer.index
        for layer in layers
        if layer.kind not in ("CONSTANT", "SHAPE", "CAST")
        and all(t.dtype == "FLOAT" and t.is_execution and not t.is_shape for t in layer.outputs)
    }
    assert chosen == floats
    assert len(chosen) > 4


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (_layer("CONVOLUTION", _FLOAT), None),
        (_layer("SHUFFLE", _FLOAT), None),
        (_layer("TOPK", _FLOAT, LayerTensor("i", "INT32", False, True)), None),
        (_layer("UNARY", LayerTensor("y", "HALF", False, True)), None),
        (_layer("CONSTANT", _FLOAT), "a CONSTANT layer takes no precision"),
        (_layer("CAST", _FLOAT), "a CAST layer takes no precision"),
        (_layer("PLUGIN_V2", _FLOAT), "a PLUGIN_V2 layer takes no precision"),
        (_layer("LOOP_OUTPUT", _FLOAT), "a LOOP_OUTPUT layer takes no precision"),
        (_layer("ELEMENTWISE", LayerTensor("y", "FLOAT", True, True)), "it computes with shapes"),
        (_layer("ELEMENTWISE", LayerTensor("y", "FLOAT", False, False)), "it computes with shapes"),
        (_layer("GATHER", LayerTensor("y", "INT32", False, True)), "it has no float output"),
        (_layer("ELEMENTWISE", LayerTensor("y", "BOOL", False, True)), "it has no float output"),
        (_layer("SHUFFLE"), "it has no float output"),
    ],
)
def test_what_must_not_be_pinned_says_why(layer: NetworkLayer, reason: str | None) -> None:
    assert why_not(layer) == reason


def test_a_node_that_is_folded_away_is_told_and_any_other_is_an_error(tmp_path: Path) -> None:
    graph = load_graph(
        write_model(
            tmp_path,
            "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> "
            "{ [of_constant] v = Abs(w) [hands_on] p = Identity(x) [sum] q = Add(p, v) [last] y = Exp(q) }",
        )
    )
    mapped = {"sum": [_layer("ELEMENTWISE", _FLOAT)]}
    pinning = choose_layers(graph, mapped, ["of_constant", "hands_on", "sum"])
    assert [kept.node for kept in pinning.skipped] == ["of_constant", "hands_on"]
    assert "reads constants alone" in pinning.skipped[0].reason
    assert "hands its input on" in pinning.skipped[1].reason
    assert _names_of(pinning, "sum") == ("layer",)
    with pytest.raises(PlanError, match=r"pin on 'last' \(Exp\) matches no layer .* Expected at least one"):
        choose_layers(graph, mapped, ["last"])


_LAYERS = st.builds(
    _layer,
    st.sampled_from(["CONVOLUTION", "SHUFFLE", "SLICE", "CONSTANT", "SHAPE", "TOPK"]),
    st.builds(
        LayerTensor, st.just("y"), st.sampled_from(["FLOAT", "HALF", "INT32"]), st.booleans(), st.booleans()
    ),
)


@given(layers=st.lists(_LAYERS, max_size=8))
def test_without_movement_only_movement_is_given_up(layers: list[NetworkLayer]) -> None:
    pinning = Pinning(tuple(("n", layer) for layer in layers), ())
    left = pinning.without_movement()
    assert [layer for _, layer in left.layers] == [layer for layer in layers if layer.kind not in MOVEMENT]
    assert pinning.has_movement == (len(left.layers) < len(layers))
    assert not left.has_movement


# ---------------------------------------------------------------- setting


def _network(variant: Variant) -> Any:
    topk = LayerSpec(
        "topk", "TOPK", ("x",), (TensorSpec("values"), TensorSpec("indices", "INT32")), "[ONNX Layer: topk]"
    )
    relu = LayerSpec("relu", "ACTIVATION", ("values",), (TensorSpec("y"),), "[ONNX Layer: relu]")
    trt = fake_tensorrt(
        variant, Script(inputs=[TensorSpec("x")], layers=[topk, relu], outputs=["y", "indices"])
    )
    return trt, parsed_network(trt)


@pytest.mark.parametrize("variant", ["8.6", "10.0", "10.12"])
def test_pins_set_precision_and_float_outputs_to_fp32_and_are_undone(variant: Variant) -> None:
    trt, network = _network(variant)
    topk, relu = read_layers(network)
    pinning = Pinning((("topk", topk),), ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_pins(trt, network, pinning)
        assert pinned_layers(network) == {"topk": ("FLOAT", {0: "FLOAT"})}
        clear_pins(network, pinning)
        assert pinned_layers(network) == {}
        set_pins(trt, network, Pinning((("relu", relu),), ()))
    assert pinned_layers(network) == {"relu": ("FLOAT", {0: "FLOAT"})}

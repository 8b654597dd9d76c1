"""What engines really built say of themselves, and what became of pins.

The recorded engines are TensorRT 8.6.0's on an H200, told with the shapes set; "pinned" ones had OBEY.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt import Plan, Script, fake_tensorrt

from overflow_fixer.backends.tensorrt.inspection import (
    EngineLayer,
    find_fp32_nodes,
    find_nodes,
    fused_with,
    judge_pins,
    parse_layers,
    read_engine,
)
from overflow_fixer.errors import BackendError

_TOLD = json.loads((Path(__file__).parent / "data/inspected_engines.json").read_text(encoding="utf-8"))
_SHUFFLE = "(Unnamed Layer* 5) [Shuffle]"


def _recorded(name: str) -> dict[str, EngineLayer]:
    told = _TOLD[name]
    return {layer.name: layer for layer in parse_layers(told["told"], told["owners"])}


def _states(name: str, *nodes: str, skipped: tuple[str, ...] = ()) -> dict[str, str]:
    layers = _recorded(name).values()
    return {outcome.node: outcome.state for outcome in judge_pins(layers, nodes, skipped)}


def _layer(
    name: str, nodes: tuple[str, ...], *types: str, kind: str = "", opaque: bool = False
) -> EngineLayer:
    return EngineLayer(name, kind, nodes, types, opaque)


def _parse_one(item: Any, *nodes: str) -> EngineLayer:
    (found,) = parse_layers(json.dumps({"Layers": [item]}), {node: node for node in nodes})
    return found


# ---------------------------------------------------------------- recorded engines


@pytest.mark.parametrize(("name", "count"), [("conv_chain pinned", 6), ("conv_chain plain", 0)])
def test_kernels_tell_which_layers_run_in_tf32(name: str, count: int) -> None:
    found = [layer for layer in _recorded(name).values() if layer.is_tf32]
    assert len(found) == count
    assert all(layer.is_fp32 and layer.nodes for layer in found)


def test_raw_control_characters_are_read() -> None:
    told = _TOLD["conv_chain plain"]["told"]
    assert "\x1e" in told
    with pytest.raises(json.JSONDecodeError):
        json.loads(told)
    assert len(_recorded("conv_chain plain")) == 14


def test_fused_convolutions_hold_both_nodes_and_tell_their_types() -> None:
    layers = _recorded("conv_chain plain")
    fused = layers["/conv5/Conv + /relu5/Relu"]
    assert fused.nodes == ("/conv5/Conv", "/relu5/Relu")
    assert fused.types == ("fp16", "fp16")
    assert (fused.kind, fused.is_fp16, fused.is_fp32, fused.is_opaque) == (
        "CaskConvolution",
        True,
        False,
        False,
    )
    copy = layers["Reformatting CopyNode for Input Tensor 0 to /conv1/Conv + /relu1/Relu"]
    assert copy.nodes == ("/conv1/Conv", "/relu1/Relu")
    assert copy.types == ("fp32", "fp16")
    assert copy.is_reformat
    assert not copy.is_fp32
    assert [name for name, layer in layers.items() if layer.is_reformat] == [
        "Reformatting CopyNode for Input Tensor 0 to /conv1/Conv + /relu1/Relu",
        "Reformatting CopyNode for Input Tensor 0 to /conv2/Conv + /relu2/Relu",
        "Reformatting CopyNode for Input Tensor 0 to /fc/Gemm",
        "Reformatting CopyNode for Input Tensor 0 to reshape_after_/fc/Gemm",
        "reshape_after_/fc/Gemm",
    ]


def test_pins_that_were_obeyed_are_honoured() -> None:
    pinned = ("/conv4/Conv", "/relu4/Relu", "/conv5/Conv", "/relu5/Relu", "/conv6/Conv")
    assert _states("conv_chain pinned", *pinned) == dict.fromkeys(pinned, "honoured")
    assert _states("conv_chain plain", *pinned) == dict.fromkeys(pinned, "not honoured")


def test_an_outcome_names_the_engines_layers() -> None:
    layers = _recorded("conv_chain pinned").values()
    (outcome,) = judge_pins(layers, ["/relu4/Relu"], ())
    assert outcome.layers == ("/conv4/Conv + /relu4/Relu",)


def test_without_opaque_regions_a_node_with_no_layer_has_none() -> None:
    """The Flatten went into the Gemm's layer, which does not name it."""
    assert _states("conv_chain plain", "/flatten/Flatten") == {"/flatten/Flatten": "no layer"}


def test_nodes_that_tensorrt_itself_kept_in_fp32_are_found() -> None:
    assert find_fp32_nodes(list(_recorded("conv_chain plain").values())) == frozenset()
    found = find_fp32_nodes(list(_recorded("conv_chain pinned").values()))
    assert {"/conv1/Conv", "/relu7/Relu", "/pool/GlobalAveragePool", "/fc/Gemm"} <= found


def test_nodes_are_found_through_pointwise_names_and_unnamed_layers() -> None:
    layers = _recorded("hot_norm_tiny pinned")
    (clip,) = [layer for name, layer in layers.items() if "[Constant]" in name and "/Expand_1" not in name]
    assert clip.name.startswith(
        "PWN(PWN(/Constant_1_output_0 + (Unnamed Layer* 19) [Shuffle], (Unnamed Layer* 21)"
    )
    assert clip.nodes == ("/Clip",)
    assert layers["(Unnamed Layer* 14) [ElementWise] + /ReduceL2 + /ReduceL2_0"].nodes == ("/ReduceL2",)
    (joined,) = [layer for name, layer in layers.items() if name.endswith(", /Expand_1 + /Div_1)")]
    assert set(joined.nodes) == {"/Expand_1", "/Div_1", "/Clip_1"}
    assert layers["PWN(/Constant_3_output_0 + (Unnamed Layer* 46) [Shuffle], /Mul_1)"].nodes == ("/Mul_1",)
    assert layers["/Div"].is_fp32


def test_a_layer_fused_into_an_fp16_product_is_not_honoured() -> None:
    found = _states("hot_norm_tiny pinned", "/Mul", "/ReduceL2", "/Clip", "/Div")
    assert found == {"/Mul": "not honoured", "/ReduceL2": "honoured", "/Clip": "honoured", "/Div": "honoured"}
    assert fused_with(_recorded("hot_norm_tiny pinned").values(), "/Mul") == ("/f/f.2/Gemm",)


def test_a_region_shows_only_its_borders() -> None:
    layers = _recorded("awkward")
    region = layers["{ForeignNode[sc + (Unnamed Layer* 2) [Shuffle]...l2_1]}"]
    assert region.is_opaque
    assert region.nodes == ("ln", "l2")
    assert (region.is_fp32, region.is_fp16) == (False, False)
    assert layers["PWN(PWN(PWN(clip), max), max_2)"].nodes == ("clip", "max")
    assert layers["topk"].types == ("fp32", "fp32", "int")


def test_what_a_region_may_hide_is_not_visible() -> None:
    """Softmax is inside the region without being named; the Concat is done by copies alone."""
    nodes = ("ln", "gemm", "sm", "l2", "clip", "max", "topk", "cat")
    assert _states("awkward", *nodes) == {
        **dict.fromkeys(("ln", "gemm", "sm", "l2", "cat"), "not visible"),
        **dict.fromkeys(("clip", "max", "topk"), "honoured"),
    }


def test_a_pin_on_no_layer_is_not_looked_for_in_a_region() -> None:
    assert _states("awkward", "gemm", "split", skipped=("split",)) == {
        "gemm": "not visible",
        "split": "no layer",
    }


def test_fp16_and_fp32_and_regions_side_by_side() -> None:
    layers = _recorded("hot_unet_gn plain")
    assert layers["/e1/e1.0/Conv"].is_fp32
    assert layers["/e2/e2.0/Conv"].is_fp16
    name = "{ForeignNode[/e1/e1.4/Constant_1_output_0 + (Unnamed Layer* 39) [Shuffle].../e1/e1.5/Mul]}"
    assert layers[name].is_opaque
    assert layers[name].nodes[-1] == "/e1/e1.5/Mul"
    copy = layers[f"Reformatting CopyNode for Output Tensor 0 to {name}"]
    assert copy.types == ("fp32", "fp16")
    assert copy.is_reformat
    assert not copy.is_opaque
    nodes = ("/e1/e1.0/Conv", "/e2/e2.0/Conv", "/e1/e1.5/Mul", "/u2/ConvTranspose")
    assert list(_states("hot_unet_gn plain", *nodes).values()) == [
        "honoured",
        "not honoured",
        "not visible",
        "not honoured",
    ]


def test_the_inspector_is_asked_with_the_context_whose_shapes_are_set() -> None:
    trt = fake_tensorrt("8.6", Script(engines={b"engine": Plan(information=_TOLD["awkward"]["told"])}))
    asked = []

    class Inspector(trt.EngineInspector):  # type: ignore[misc]
        def get_engine_information(self, format: Any) -> str:
            asked.append((self.execution_context, format))
            return str(super().get_engine_information(format))

    trt.EngineInspector = Inspector
    engine = trt.Runtime(trt.ILogger()).deserialize_cuda_engine(b"engine")
    context = engine.create_execution_context()
    layers = read_engine(trt, engine, context, _TOLD["awkward"]["owners"])
    assert [layer.name for layer in layers] == list(_recorded("awkward"))
    assert asked == [(context, trt.LayerInformationFormat.JSON)]


# ---------------------------------------------------------------- spellings


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        ({"Format/Datatype": "Row major linear FP32"}, "fp32"),
        ({"Format/Datatype": "Row major linear FP16 format"}, "fp16"),
        ({"Format/Datatype": "Two wide channel vectorized row major FP16 format"}, "fp16"),
        ({"Format/Datatype": "Row major linear BFloat16 format"}, "bf16"),
        ({"Format/Datatype": "Row major linear Int32"}, "int"),
        ({"Format/Datatype": "BOOL"}, "int"),
        ({"Format/Datatype": "Half"}, "fp16"),
        ({"Format/Datatype": "Float"}, "fp32"),
        ({"Format/Datatype": "Int64"}, "int"),
        ({"Format/Datatype": "N/A due to dynamic shapes"}, "?"),
        ({"Datatype": "FP16", "Format": "Row major linear"}, "fp16"),
        ({"Datatype": "Float", "Format": "Channel major format where channel % 8 == 0"}, "fp32"),
        ({"DataType": "BFloat16"}, "bf16"),
        ({"Format": "Row major linear FP32"}, "fp32"),
        ({"Name": "x"}, "?"),
    ],
)
def test_each_releases_words_for_a_type_are_known(tensor: dict[str, str], kind: str) -> None:
    item = {"Name": "layer", "LayerType": "Convolution", "Inputs": [], "Outputs": [tensor]}
    assert _parse_one(item).types == (kind,)


def test_a_layer_that_is_a_bare_string_has_a_name_alone() -> None:
    assert _parse_one("conv + relu", "conv", "relu") == EngineLayer(
        "conv + relu", "", ("conv", "relu"), (), False
    )
    assert _parse_one("{ForeignNode[a...b]}", "a", "b").is_opaque
    (outcome,) = judge_pins([_parse_one("conv + relu", "conv")], ["conv"], ())
    assert (outcome.state, outcome.layers) == ("not visible", ("conv + relu",))


def test_an_engine_of_11_without_bindings_is_read() -> None:
    text = json.dumps(
        {
            "Layers": [
                {
                    "Name": "__myl_Conv_myl0_1",
                    "LayerType": "conv",
                    "Inputs": [{"Name": "x", "Datatype": "FP16", "Format": "Linear"}],
                    "Outputs": [{"Name": "y", "Datatype": "FP16", "Format": "Linear"}],
                    "Metadata": "[ONNX Layer: conv]\x1f[ONNX Layer: relu]",
                }
            ],
            "I/O Tensors": [{"Name": "x", "IOMode": "INPUT", "DataType": "FP32"}],
            "ProfilingVerbosity": "DETAILED",
        }
    )
    (layer,) = parse_layers(text, {"conv": "conv", "relu": "relu"})
    assert (layer.nodes, layer.types, layer.is_opaque) == (("conv", "relu"), ("fp16", "fp16"), True)


def test_an_engine_that_tells_no_layers_has_none() -> None:
    assert parse_layers("{}", {}) == ()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (r"conv\x1erelu", "conv\x1erelu"),
        (r"conv\x1Frelu", "conv\x1frelu"),
        (r"conv\_relu", r"conv\_relu"),
        (r"conv\x7", r"conv\x7"),
        (r"conv\x41", r"conv\x41"),
        (r"conv\u12", r"conv\u12"),
        (r"conv\\x1e", r"conv\x1e"),
        (r"conv\"\\\/\u0041", 'conv"\\/A'),
        ("conv\x1erelu", "conv\x1erelu"),
    ],
)
def test_a_backslash_before_what_json_does_not_escape_is_read(written: str, name: str) -> None:
    (layer,) = parse_layers(f'{{"Layers": [{{"Name": "{written}", "LayerType": "x"}}]}}', {})
    assert layer.name == name


@pytest.mark.parametrize("text", ["", "{", '{"Layers": [{"Name": "a"b"}]}'])
def test_what_is_no_json_is_told_with_the_place(text: str) -> None:
    with pytest.raises(BackendError, match=r"in what is no JSON: .*char \d+\), at ") as caught:
        parse_layers(text, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("conv + relu", ["conv", "relu"]),
        ("PWN(PWN(conv), relu)", ["conv", "relu"]),
        (f"fusion(conv, {_SHUFFLE})", ["conv", "shuffled"]),
        ("{ForeignNode[conv...relu]}", ["conv", "relu"]),
        (f"{{ForeignNode[{_SHUFFLE}...relu]}}", ["shuffled", "relu"]),
        ("Reformatting CopyNode for Output Tensor 1 to conv || relu", ["conv", "relu"]),
        ("conv\x1erelu", ["conv", "relu"]),
        ("named(by)[user]", ["odd"]),
        ("PWN(named(by)[user])", ["odd"]),
        ("conv2 + relux", []),
        ("", []),
    ],
)
def test_nodes_are_found_in_fused_names(name: str, nodes: list[str]) -> None:
    owners = {"conv": "conv", "relu": "relu", _SHUFFLE: "shuffled", "named(by)[user]": "odd"}
    assert list(find_nodes(name, "", owners)) == nodes


def test_metadata_is_read_before_the_name_and_strange_nodes_are_left_out() -> None:
    assert list(
        find_nodes("layer_of_conv", "[ONNX Layer: relu]\x1e[ONNX Layer: lost]", {"relu": "relu"})
    ) == ["relu"]


# ---------------------------------------------------------------- the judgement


@pytest.mark.parametrize(
    ("layers", "state"),
    [
        ([_layer("l", ("n",), "fp32", "fp32")], "honoured"),
        ([_layer("l", ("n",), "fp32", "int")], "honoured"),
        ([_layer("l", ("n",), "fp32", "?")], "honoured"),
        ([_layer("l", ("n",), "fp16", "fp32")], "not honoured"),
        ([_layer("l", ("n",), "fp32"), _layer("m", ("n",), "fp16")], "not honoured"),
        ([_layer("l", ("n",), "fp16"), _layer("r", ("n",), "fp32", opaque=True)], "not honoured"),
        ([_layer("l", ("n",), "fp32"), _layer("r", ("n",), "fp32", opaque=True)], "not visible"),
        ([_layer("l", ("n",), "?")], "not visible"),
        ([_layer("l", ("n",), "int")], "not visible"),
        ([_layer("l", ("other",), "fp32")], "no layer"),
        ([_layer("l", ("other",), "fp32", opaque=True)], "not visible"),
        ([_layer("l", ("n",), "fp16", kind="Reformat")], "no layer"),
        ([], "no layer"),
    ],
)
def test_each_state_has_its_ground(layers: list[EngineLayer], state: str) -> None:
    (outcome,) = judge_pins(layers, ["n"], ())
    assert outcome.state == state


def test_a_pin_that_ran_in_bf16_is_not_honoured() -> None:
    layer = _layer("l", ("n",), "bf16", "fp32")
    assert (layer.is_fp32, layer.is_fp16) == (False, False)
    (outcome,) = judge_pins([layer], ["n"], ())
    assert outcome.state == "not honoured"


def test_what_is_fused_with_a_node_leaves_out_the_node_regions_and_repeats() -> None:
    layers = [
        _layer("l", ("n", "a"), "fp16"),
        _layer("m", ("a", "n", "b"), "fp16"),
        _layer("r", ("n", "hidden"), "fp16", opaque=True),
        _layer("o", ("c",), "fp16"),
    ]
    assert fused_with(layers, "n") == ("a", "b")


def test_a_node_counts_as_fp32_when_all_its_layers_are() -> None:
    layers = [
        _layer("l", ("whole", "half"), "fp32"),
        _layer("m", ("half",), "fp16"),
        _layer("r", ("whole", "moved"), "fp16", kind="Reformat"),
        _layer("o", ("hidden",), "fp32", opaque=True),
    ]
    assert find_fp32_nodes(layers) == {"whole"}


def test_a_cast_that_was_fused_into_a_pinned_layer_hides_what_that_computes_in() -> None:
    """By strong typing: FP16 in, a cast, FP32 inside. Without the cast, FP16 at its border is a broken pin."""
    layer = EngineLayer("cast + n", "kgen", ("cast", "n"), ("fp16", "fp32"), False)
    (hidden,) = judge_pins([layer], ["n"], (), ["cast"])
    (broken,) = judge_pins([layer], ["n"], (), ["another cast"])
    assert (hidden.state, hidden.layers) == ("not visible", ("cast + n",))
    assert broken.state == "not honoured"
    (whole,) = judge_pins([replace(layer, types=("fp32", "fp32"))], ["n"], (), ["cast"])
    assert whole.state == "honoured"

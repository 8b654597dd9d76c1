"""The code that exported scripts run finds and pins the layers that the backend finds and pins."""

import pytest
from fake_tensorrt import LayerSpec, Script, TensorSpec, Variant, fake_tensorrt
from recorded_networks import NAMES, make_plan, parsed_network, pinned_layers, recorded_graph, recorded_script

from overflow_fixer.backends.tensorrt import pins
from overflow_fixer.backends.tensorrt.exports import standalone_pins
from overflow_fixer.backends.tensorrt.exports.chosen_pins import choose_pins
from overflow_fixer.backends.tensorrt.mapping import map_layers, read_layers
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Artifact


def _tables(graph: Graph) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    return {node.label: tuple(node.writes) for node in graph.nodes}, frozenset(graph.constants)


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_given_to_the_nodes_that_the_backend_gives_them_to(name: str) -> None:
    graph = recorded_graph(name)
    network = parsed_network(fake_tensorrt("8.6", recorded_script(name)))
    expected = map_layers(read_layers(network), graph)
    found = standalone_pins.find_layers(network, *_tables(graph))
    assert len(found) > 3
    assert {node: [layer.name for layer in layers] for node, layers in found.items()} == {
        node: [layer.name for layer in layers] for node, layers in expected.items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", ["8.6", "10.0", "10.12"])
def test_every_node_pinned_gives_the_pins_of_the_backend(name: str, variant: Variant) -> None:
    graph = recorded_graph(name)
    present = [n.label for n in graph.nodes if n.op_type not in ("Constant", "Shape")]
    trt = fake_tensorrt(variant, recorded_script(name))
    networks = [parsed_network(trt), parsed_network(trt)]
    layers = map_layers(read_layers(networks[0]), graph)
    labels = [label for label in present if label in layers]
    pins.set_pins(trt, networks[0], pins.choose_layers(graph, layers, labels))
    standalone_pins.pin_layers(trt, networks[1], dict.fromkeys(labels), *_tables(graph))
    expected = pinned_layers(networks[0])
    assert len(expected) >= 3
    assert pinned_layers(networks[1]) == expected


def test_the_unnamed_layers_of_a_softmax_are_pinned() -> None:
    graph = recorded_graph("masked_attention")
    trt = fake_tensorrt("8.6", recorded_script("masked_attention"))
    network = parsed_network(trt)
    label = next(node.label for node in graph.nodes if node.op_type == "Softmax")
    standalone_pins.pin_layers(trt, network, {label: None}, *_tables(graph))
    found = pinned_layers(network)
    assert any(name.startswith("(Unnamed Layer*") for name in found)
    assert all(types == ("FLOAT", {0: "FLOAT"}) for types in found.values())


def test_the_kinds_that_take_no_pin_are_those_of_the_backend() -> None:
    assert standalone_pins.NEVER_PINNED == pins._NEVER


@pytest.mark.parametrize("kind", sorted(set(fake_tensorrt("10.12", Script()).LayerType.__members__)))
@pytest.mark.parametrize(
    "tensor",
    [
        TensorSpec("y"),
        TensorSpec("y", "HALF"),
        TensorSpec("y", "INT32"),
        TensorSpec("y", "FLOAT", is_shape_tensor=True),
        TensorSpec("y", "FLOAT", is_execution_tensor=False),
    ],
)
def test_a_layer_is_left_out_where_the_backend_leaves_it_out(kind: str, tensor: TensorSpec) -> None:
    script = Script([TensorSpec("x")], [LayerSpec("a", kind, ("x",), (tensor,))], ["y"])
    network = parsed_network(fake_tensorrt("10.12", script))
    expected = pins.why_not(read_layers(network)[0]) is None
    assert standalone_pins.can_be_pinned(network.get_layer(0)) == expected


def test_a_layer_with_an_output_of_integers_has_its_floats_pinned_alone() -> None:
    outputs = (TensorSpec("values"), TensorSpec("indices", "INT32"))
    script = Script([TensorSpec("x")], [LayerSpec("top", "TOPK", ("x",), outputs)], ["values"])
    trt = fake_tensorrt("8.6", script)
    network = parsed_network(trt)
    standalone_pins.pin_layers(trt, network, {"top": None}, {"top": ("values", "indices")}, ())
    assert pinned_layers(network) == {"top": ("FLOAT", {0: "FLOAT"})}


def test_a_pin_that_matches_no_layer_is_refused_by_name_unless_the_node_may_vanish() -> None:
    trt = fake_tensorrt("8.6", recorded_script("needs_constraints"))
    network = parsed_network(trt)
    with pytest.raises(RuntimeError, match="'/gone' matches no layer"):
        standalone_pins.pin_layers(trt, network, {"/gone": None}, {"/gone": ("z",)}, ())
    standalone_pins.pin_layers(trt, network, {"/gone": "folded"}, {"/gone": ("z",)}, ())
    assert pinned_layers(network) == {}


def test_strong_typing_is_refused_in_one_sentence() -> None:
    trt = fake_tensorrt("11", recorded_script("needs_constraints"))
    with pytest.raises(RuntimeError, match="strongly typed network"):
        standalone_pins.pin_layers(trt, parsed_network(trt), {}, {}, ())
    trt = fake_tensorrt("10.0", recorded_script("needs_constraints"))
    strong = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = trt.Builder(trt.ILogger()).create_network(strong)
    with pytest.raises(RuntimeError, match="strongly typed network"):
        standalone_pins.pin_layers(trt, network, {}, {}, ())


def test_what_is_fused_with_a_pin_is_pinned_too_with_the_reason() -> None:
    graph = recorded_graph("conv_chain")
    plan = make_plan(graph, "/conv5/Conv")
    artifact = Artifact("onnx", graph.path, (), (), (), (), 0)
    found = {pin.node: pin.reasons for pin in choose_pins(graph, plan, artifact)}
    assert found == {
        "/conv5/Conv": ("threshold: it was seen at 1e+06",),
        "/relu5/Relu": ("TensorRT fuses it with /conv5/Conv, which is pinned",),
    }

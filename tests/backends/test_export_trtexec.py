"""trtexec, told our arguments, pins what the backend pins, or we refuse."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tensorrt import LayerSpec, Script, TensorSpec, fake_tensorrt
from recorded_networks import NAMES, parsed_network, pinned_layers, recorded_graph, recorded_script
from trtexec_rules import pin_by_rules, read_list, read_options

from overflow_fixer.backends.tensorrt.exports.trtexec import Binding, Command, render_arguments, render_line
from overflow_fixer.backends.tensorrt.mapping import LayerTensor, NetworkLayer, map_layers, read_layers
from overflow_fixer.backends.tensorrt.pins import Pinning, choose_layers, set_pins
from overflow_fixer.errors import BackendError
from overflow_fixer.records import BuildSettings, ShapeRange

_FLOAT = LayerTensor("y", "FLOAT", False, True)
_PLAIN = BuildSettings()


def _layers(*names: str, outputs: tuple[LayerTensor, ...] = (_FLOAT,)) -> tuple[NetworkLayer, ...]:
    return tuple(NetworkLayer(i, name, "ELEMENTWISE", "", outputs) for i, name in enumerate(names))


def _command(
    layers: tuple[NetworkLayer, ...], pinned: int = 1, bindings: tuple[Binding, ...] = ()
) -> Command:
    pinning = Pinning(tuple(("node", layer) for layer in layers[:pinned]), ())
    return Command(Path("/m.onnx"), Path("/m.engine"), "weak", "obey", bindings, layers, pinning)


def _options(command: Command, settings: BuildSettings = _PLAIN) -> dict[str, str]:
    return read_options(render_arguments(command, settings))


@pytest.mark.parametrize("name", NAMES)
def test_each_second_node_pinned_is_what_trtexec_pins(name: str) -> None:
    graph, trt = recorded_graph(name), fake_tensorrt("8.6", recorded_script(name))
    network, expected = parsed_network(trt), parsed_network(trt)
    layers = read_layers(network)
    mapped = map_layers(layers, graph)
    pinning = choose_layers(graph, mapped, list(mapped)[::2])
    set_pins(trt, expected, pinning)
    command = replace(_command(layers), pinning=pinning)
    options = _options(command)
    pin_by_rules(trt, network, options)
    assert pinned_layers(network) == pinned_layers(expected) != {}
    assert (options["--fp16"], options["--precisionConstraints"]) == ("", "obey")


def test_an_output_of_integers_keeps_its_type() -> None:
    outputs = (TensorSpec("values"), TensorSpec("indices", "INT32"))
    script = Script([TensorSpec("x")], [LayerSpec("top", "TOPK", ("x",), outputs)], ["values"])
    trt = fake_tensorrt("8.6", script)
    network = parsed_network(trt)
    options = _options(_command(read_layers(network)))
    assert options["--layerOutputTypes"] == "top:fp32+int32"
    pin_by_rules(trt, network, options)
    assert pinned_layers(network) == {"top": ("FLOAT", {0: "FLOAT", 1: "INT32"})}


@pytest.mark.parametrize(
    "name", ["a:b", "onnx::Clip_31", ":a", "a:", "a b=c", "(Unnamed Layer* 1) [Shuffle]", "ä"]
)
def test_a_name_is_read_back_as_it_was(name: str) -> None:
    layers = _layers(name, "(Unnamed Layer* 11) [Shuffle]")
    assert read_list(_options(_command(layers))["--layerPrecisions"]) == {name: "fp32"}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("a,b",), "','"),
        (("a'b",), '"\'"'),
        (("a\nb",), r"'\\n'"),
        (("*",), "for all layers"),
        (("a", "a"), "which is not pinned"),
        (("a*c", "abc"), "'abc', which is not pinned"),
    ],
)
def test_a_name_that_trtexec_cannot_be_given_is_refused(names: tuple[str, ...], reason: str) -> None:
    with pytest.raises(BackendError, match=reason) as refusal:
        render_arguments(_command(_layers(*names)), _PLAIN)
    assert "--export polygraphy-npps" in str(refusal.value)


def test_a_star_that_matches_pinned_layers_alone_is_taken() -> None:
    assert _options(_command(_layers("a*c", "abc"), pinned=2))["--layerPrecisions"] == "a*c:fp32,abc:fp32"


def test_a_line_longer_than_linux_takes_is_refused() -> None:
    layers = _layers(*(f"layer_{i:0100}" for i in range(1300)))
    with pytest.raises(BackendError, match="at most 131071 bytes"):
        render_arguments(_command(layers, pinned=1300), _PLAIN)


def test_shapes_are_told_of_open_inputs_and_values_of_those_that_hold_a_shape() -> None:
    bindings = (
        Binding("x:0", "FLOAT", True, True, False),
        Binding("size", "INT32", True, True, True),
        Binding("fixed", "FLOAT", True, False, False),
        Binding("y", "FLOAT", False, False, False),
    )
    shapes = {
        "x:0": ShapeRange((1, 3), (2, 3), (8, 3)),
        "size": ShapeRange((2,), (2,), (2,), ((1, 16), (2, 32), (8, 64))),
        "fixed": ShapeRange((4,), (4,), (4,)),
    }
    options = _options(_command(_layers("a"), bindings=bindings), BuildSettings(shapes=shapes))
    assert read_list(options["--minShapes"]) == {"x:0": "1x3", "size": "1x16"}
    assert read_list(options["--optShapes"]) == {"x:0": "2x3", "size": "2x32"}
    assert read_list(options["--maxShapes"]) == {"x:0": "8x3", "size": "8x64"}
    comma = Binding("a,b", "FLOAT", True, True, False)
    with pytest.raises(BackendError, match="the shapes of the input 'a,b'"):
        render_arguments(
            _command(_layers("a"), bindings=(comma,)), BuildSettings(shapes={"a,b": shapes["x:0"]})
        )


def test_settings_of_the_build_are_told(tmp_path: Path) -> None:
    bindings = (Binding("x", "FLOAT", True, False, False), Binding("i", "INT32", False, False, False))
    settings = BuildSettings(
        io_types="fp16",
        tf32=False,
        workspace_bytes=3 << 29,
        optimization_level=5,
        plugins=(tmp_path / "p.so",),
    )
    options = _options(_command(_layers("a"), bindings=bindings), settings)
    assert options == {
        "--onnx": "/m.onnx",
        "--fp16": "",
        "--precisionConstraints": "obey",
        "--layerPrecisions": "a:fp32",
        "--layerOutputTypes": "a:fp32",
        "--inputIOFormats": "fp16:chw",
        "--outputIOFormats": "int32:chw",
        "--noTF32": "",
        "--memPoolSize": "workspace:1536",
        "--builderOptimizationLevel": "5",
        "--plugins": str((tmp_path / "p.so").resolve()),
        "--saveEngine": "/m.engine",
    }


def test_nothing_is_constrained_where_nothing_is_pinned_or_types_come_from_the_model() -> None:
    assert set(_options(_command(_layers("a"), pinned=0))) == {"--onnx", "--fp16", "--saveEngine"}
    strong = replace(_command(_layers("a"), pinned=0), typing="strong", constraints="none")
    assert set(_options(strong)) == {"--onnx", "--stronglyTyped", "--saveEngine"}


def test_fp16_is_not_allowed_where_everything_is_pinned() -> None:
    assert set(_options(replace(_command(_layers("a"), pinned=1), fp16=False))) == {"--onnx", "--saveEngine"}


def test_the_line_is_what_a_shell_splits_into_the_arguments() -> None:
    arguments = render_arguments(_command(_layers("(Unnamed Layer* 1) [Shuffle]", "$x")), _PLAIN)
    line = render_line(arguments)
    assert line.count("\n") == 1
    assert shlex.split(line) == ["trtexec", *arguments]

"""The engine's pins as trtexec's arguments.

What trtexec's parser (samples/common/sampleOptions.cpp, sampleEngines.cpp, sampleUtils.cpp) does, 8.4 to 10:
- It cuts `--layerPrecisions` and `--layerOutputTypes` at every comma, also inside quotes, then each piece at
  its last colon, so a name may hold colons and no comma. A single quote is its quotation mark and is removed:
  a name cannot hold one.
- The name "*" is every layer that is not named. From 8.6 on the first "*" of a longer name stands for any
  text; a layer of exactly that name goes first. TensorRT's nameless layers are called
  `(Unnamed Layer* 7) [Shuffle]`, so each name with a star is held against all other layers here.
- A layer that is named gets its types without a look at what it computes: one type for all of its outputs,
  or as many, joined by "+", as it has outputs. Outputs that are not floats are therefore given their own type.
- Every option is read once: a second `--layerPrecisions` is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overflow_fixer.backends.tensorrt.mapping import LayerTensor, NetworkLayer
from overflow_fixer.backends.tensorrt.network import locate_plugin
from overflow_fixer.backends.tensorrt.pins import Pinning
from overflow_fixer.errors import BackendError
from overflow_fixer.records import BuildSettings, Constraints, ShapeRange, Typing

_TYPES = {
    "FLOAT": "fp32",
    "HALF": "fp16",
    "BF16": "bf16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
_MOST_BYTES = 131071
"""Linux gives a program at most 128 KiB an argument, its closing zero included."""


@dataclass(frozen=True)
class Binding:
    """An input or output of a network; `is_open` where an input's shape, or what it holds, is for a profile."""

    name: str
    dtype: str
    is_input: bool
    is_open: bool
    is_shape: bool


@dataclass(frozen=True)
class Command:
    """What trtexec is to build: a model, for the `bindings` of its network, with `pinning` of its `layers`.

    `fp16`: whether weak typing allows it; where it does not, nothing is left to pin.
    """

    model: Path
    engine: Path
    typing: Typing
    constraints: Constraints
    bindings: tuple[Binding, ...]
    layers: tuple[NetworkLayer, ...]
    pinning: Pinning
    fp16: bool = True


def render_arguments(command: Command, settings: BuildSettings) -> tuple[str, ...]:
    """trtexec's arguments. Raises BackendError for a name that its syntax, or a line that Linux, cannot hold."""
    arguments = (
        f"--onnx={command.model}",
        *(_typing_options(command) if command.typing == "weak" else ("--stronglyTyped",)),
        *_shape_options(command.bindings, settings.shapes),
        *_format_options(command, settings),
        *_other_options(settings),
        f"--saveEngine={command.engine}",
    )
    for argument in arguments:
        _check_argument(argument)
    return arguments


def render_line(arguments: Sequence[str]) -> str:
    """The whole command as one line for a shell."""
    return shlex.join(["trtexec", *arguments]) + "\n"


def _typing_options(command: Command) -> Iterator[str]:
    if not command.fp16:
        return
    yield "--fp16"
    chosen = [layer for _, layer in command.pinning.layers]
    if chosen and command.constraints != "none":
        _check_names(command)
        yield f"--precisionConstraints={command.constraints}"
        yield f"--layerPrecisions={','.join(f'{layer.name}:fp32' for layer in chosen)}"
        yield f"--layerOutputTypes={','.join(f'{layer.name}:{_output_types(layer)}' for layer in chosen)}"


def _output_types(layer: NetworkLayer) -> str:
    return "+".join(_output_type(tensor) for tensor in layer.outputs)


def _output_type(tensor: LayerTensor) -> str:
    return "fp32" if tensor.is_float else _TYPES.get(tensor.dtype, tensor.dtype.lower())


def _check_names(command: Command) -> None:
    chosen = {layer.index for _, layer in command.pinning.layers}
    others = [layer.name for layer in command.layers if layer.index not in chosen]
    for node, layer in command.pinning.layers:
        problem = _find_problem(layer.name) or _find_mistaken(layer.name, others)
        if problem:
            raise BackendError(
                f"trtexec cannot be told to keep the layer {layer.name!r} of node {node!r} in FP32: {problem}. "
                "Expected names that its --layerPrecisions can hold. Use --export polygraphy-npps instead, which finds "
                "layers by itself, or rename the node in the model."
            )


def _find_problem(name: str) -> str:
    """Why trtexec cannot be given a name; "" where it can."""
    if name == "*":
        return "it takes that name for all layers"
    held = [repr(sign) for sign in (",", "'") if sign in name]
    held += [repr(sign) for sign in name if not sign.isprintable()]
    return f"the name holds {', '.join(dict.fromkeys(held))}" if held else ""


def _find_mistaken(name: str, others: Sequence[str]) -> str:
    """Which layer that is not pinned trtexec would take a name for; "" where there is none."""
    before, star, behind = name.partition("*")
    for other in others:
        is_matched = len(other) >= len(name) - 1 and other.startswith(before) and other.endswith(behind)
        if other == name or (star and is_matched):
            return f"it would take {other!r}, which is not pinned, for it too"
    return ""


def _shape_options(bindings: Sequence[Binding], shapes: Mapping[str, ShapeRange]) -> Iterator[str]:
    opened = [binding for binding in bindings if binding.is_open and binding.name in shapes]
    for which, place in (("min", 0), ("opt", 1), ("max", 2)) if opened else ():
        told = (f"{binding.name}:{_render_dims(binding, shapes[binding.name], place)}" for binding in opened)
        yield f"--{which}Shapes={','.join(told)}"
    for binding in opened:
        if problem := _find_problem(binding.name):
            raise BackendError(
                f"trtexec cannot be told the shapes of the input {binding.name!r}: {problem}. Expected names that its "
                "--optShapes can hold. Use --export polygraphy-loader instead, or rename the input in the model."
            )


def _render_dims(binding: Binding, shape: ShapeRange, place: int) -> str:
    """The dimensions of an input, or the elements of one that holds a shape."""
    by_place = shape.values if binding.is_shape and shape.values else (shape.min, shape.opt, shape.max)
    return "x".join(map(str, by_place[place]))


def _format_options(command: Command, settings: BuildSettings) -> Iterator[str]:
    if settings.io_types == "fp16" and command.typing == "weak":
        for option, is_input in (("--inputIOFormats", True), ("--outputIOFormats", False)):
            kept = [binding for binding in command.bindings if binding.is_input == is_input]
            yield f"{option}={','.join(f'{_io_type(binding)}:chw' for binding in kept)}"


def _io_type(binding: Binding) -> str:
    return "fp16" if binding.dtype == "FLOAT" else _TYPES.get(binding.dtype, binding.dtype.lower())


def _other_options(settings: BuildSettings) -> Iterator[str]:
    if not settings.tf32:
        yield "--noTF32"
    if settings.workspace_bytes is not None:
        yield f"--memPoolSize=workspace:{settings.workspace_bytes / 2**20:.10g}"
    if settings.optimization_level is not None:
        yield f"--builderOptimizationLevel={settings.optimization_level}"
    yield from (f"--plugins={locate_plugin(library)}" for library in settings.plugins)


def _check_argument(argument: str) -> None:
    size = len(argument.encode())
    if size > _MOST_BYTES or not argument.isprintable():
        raise BackendError(
            f"trtexec cannot be given {argument[:40]!r}…: it is {size} bytes long. Expected at most {_MOST_BYTES} "
            "bytes an argument, which is what Linux takes, and no line breaks. Use --export polygraphy-npps instead, "
            "which has no such limit."
        )

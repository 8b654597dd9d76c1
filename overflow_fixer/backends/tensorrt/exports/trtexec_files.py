"""The files of an export for trtexec, of the network that TensorRT parses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from overflow_fixer.backends.tensorrt.emission import load_typed, open_tensorrt
from overflow_fixer.backends.tensorrt.exports.export import Export, locate_model
from overflow_fixer.backends.tensorrt.exports.staleness import remove_left_over, sign
from overflow_fixer.backends.tensorrt.exports.trtexec import Binding, Command, render_arguments, render_line
from overflow_fixer.backends.tensorrt.mapping import map_layers, read_layers
from overflow_fixer.backends.tensorrt.network import ParsedNetwork
from overflow_fixer.backends.tensorrt.pins import Pinning, choose_layers
from overflow_fixer.backends.tensorrt.source import parse_graph, parse_typed
from overflow_fixer.errors import BackendError
from overflow_fixer.files import replace_file, write_text
from overflow_fixer.graph.model import Graph


def write_trtexec(export: Export) -> tuple[Path, ...]:
    """The arguments one a line, the same as one line for a shell, and the model where it is not the file itself."""
    stem = export.graph.path.stem
    listed, line = (export.folder / f"{stem}.trtexec.{suffix}" for suffix in ("txt", "sh"))
    engine = export.artifact.engine
    if engine is None:
        raise BackendError(
            f"{export.artifact.path} is no engine, so no network of it can be told to trtexec. Expected an artifact of "
            "--backend tensorrt. Build it with that."
        )
    command, changed = (_read_weak if engine.typing == "weak" else _read_strong)(export)
    arguments = render_arguments(command, replace(export.settings, tf32=export.tf32))
    if not changed:
        remove_left_over(line, _name_model(export))
    write_text(listed, "".join(f"{argument}\n" for argument in arguments))
    write_text(line, sign(render_line(arguments), export.plan_sha256))
    return (listed, line, *changed)


def _read_weak(export: Export) -> tuple[Command, tuple[Path, ...]]:
    """What trtexec builds by weak typing, and the file of a changed model that was written for it."""
    graph, engine = export.graph, export.artifact.engine
    assert engine is not None
    trt, found, _ = open_tensorrt(export.settings)
    parsed = parse_graph(trt, found, graph, export.plan, "weak", export.settings.shapes)
    layers = read_layers(parsed.network)
    labels = [pin.node for pin in export.pins]
    pinning = choose_layers(graph, map_layers(layers, graph), labels)
    if engine.movement_is_free:
        pinning = pinning.without_movement()
    model, changed = _find_model(export, graph, parsed)
    command = Command(
        model,
        _engine_path(export),
        "weak",
        engine.constraints,
        _read_bindings(parsed.network),
        layers,
        pinning,
        export.enforcement.fp16,
    )
    return command, changed


def _read_strong(export: Export) -> tuple[Command, tuple[Path, ...]]:
    """What trtexec builds by strong typing: the typed model, in which nothing is left to pin."""
    trt, found, _ = open_tensorrt(export.settings)
    graph = load_typed(export.artifact)
    parsed = parse_typed(trt, found, graph, export.graph.path, export.settings.shapes)
    model, changed = _find_model(export, graph, parsed)
    pinning, bindings = Pinning((), ()), _read_bindings(parsed.network)
    return Command(model, _engine_path(export), "strong", "none", bindings, (), pinning), changed


def _engine_path(export: Export) -> Path:
    return export.folder.resolve() / f"{export.graph.path.stem}.trtexec.engine"


def _find_model(export: Export, graph: Graph, parsed: ParsedNetwork) -> tuple[Path, tuple[Path, ...]]:
    """The model that trtexec is to read, and its file where it had to be written since the graph's own was changed."""
    changed = () if parsed.source is None else (_write_model(export, graph, parsed.source),)
    return locate_model(next(iter(changed), graph.path)), changed


def _write_model(export: Export, graph: Graph, content: bytes) -> Path:
    """Write the graph's model as it was changed for TensorRT: trtexec reads it from a file."""
    outside = next(graph.external_tensors(), None)
    if outside is not None and graph.folder.resolve() != export.folder.resolve():
        raise BackendError(
            f"trtexec would need {graph.path} as it is changed for TensorRT (docs/tensorrt.md), but the data of "
            f"{outside.name!r} lies in another file, beside the model. Expected a model in one file, or its data in the folder that is "
            "exported to. Save it so, or name its folder with --out. Or use --export polygraphy-loader, which clamps constants, inlines "
            "functions and tells axes, parts of shapes and modes of GridSample when it runs, and changes nothing else; or, if it is for "
            "clamps alone, plan with --masks pin."
        )
    path = _name_model(export)
    with replace_file(path) as temporary:
        temporary.write_bytes(content)
    return path


def _name_model(export: Export) -> Path:
    return export.folder / f"{export.graph.path.stem}.trtexec.onnx"


def _read_bindings(network: Any) -> tuple[Binding, ...]:
    inputs = [(network.get_input(index), True) for index in range(network.num_inputs)]
    outputs = [(network.get_output(index), False) for index in range(network.num_outputs)]
    return tuple(_read_binding(tensor, is_input) for tensor, is_input in (*inputs, *outputs))


def _read_binding(tensor: Any, is_input: bool) -> Binding:
    is_shape = bool(tensor.is_shape_tensor)
    is_open = is_input and (is_shape or any(size < 0 for size in tensor.shape))
    return Binding(tensor.name, tensor.dtype.name, is_input, is_open, is_shape)

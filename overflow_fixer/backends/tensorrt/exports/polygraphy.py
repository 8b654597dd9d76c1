"""The plan as scripts for Polygraphy: one that pins a parsed network, and one that parses the model too.

`polygraphy … --trt-network-postprocess-script FILE` calls `postprocess(network=…)` of the first on every
network that it has parsed; `polygraphy … FILE --model-type trt-network-script` calls `load_network()` of
the second, which returns builder, network and parser. Polygraphy imports a script as a module by its file
name without `.py`, so the name holds no other dot. Neither script imports anything but tensorrt and
polygraphy, and the second onnx where it changes the model as `changes` does. Layers are found when
the script runs, so TensorRT is not needed to write them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from overflow_fixer import __version__
from overflow_fixer.backends.tensorrt.changes import (
    find_grid_modes,
    find_partial_shapes,
    find_pinned_sigmoids,
    read_axes,
)
from overflow_fixer.backends.tensorrt.exports.chosen_pins import Enforcement
from overflow_fixer.backends.tensorrt.exports.export import Export, locate_model
from overflow_fixer.backends.tensorrt.network import locate_plugin
from overflow_fixer.files import sha256_of
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PrecisionPlan, ShapeRange

_FUTURE = "from __future__ import annotations\n"
_MARK = "# ---------------------------------------------------------------- exported from here\n"

_POSTPROCESS = '''
def postprocess(network: Any) -> None:
    """Pin the layers of the nodes in PINS; Polygraphy calls it with the network that it parsed."""
    import tensorrt as trt

    if CLAMPS:
        warnings.warn(
            f"The plan clamps the constants {sorted(CLAMPS)}, which cannot be done in a parsed network: export the plan "
            "with --export polygraphy-loader, or plan with --masks pin."
        )
    if AXES and not hasattr(trt.OnnxParser, "get_layer_output_tensor"):
        warnings.warn(
            f"TensorRT {trt.__version__} overlooks the axes of the reductions that write {sorted(AXES)}, which nothing can "
            "change in a parsed network: export the plan with --export polygraphy-loader, or the model with opset 17."
        )
    if PARTIAL_SHAPES and not hasattr(trt.OnnxParser, "get_layer_output_tensor"):
        warnings.warn(
            f"TensorRT {trt.__version__} takes the parts of shapes {sorted(PARTIAL_SHAPES)} for the whole, which nothing can "
            "change in a parsed network: export the plan with --export polygraphy-loader."
        )
    if GRID_MODES:
        warnings.warn(
            f"TensorRT's parser does not know the modes of the GridSamples that write {sorted(GRID_MODES)}, and may have taken the "
            "nearest element, which is not changed here: export the plan with --export polygraphy-loader."
        )
    if SIGMOIDS:
        warnings.warn(
            f"The Sigmoids that write {sorted(SIGMOIDS)} are off by 2^-24 and more in TensorRT where FP16 is allowed, and cannot be "
            "written out in a parsed network: export the plan with --export polygraphy-loader."
        )
    pin_layers(trt, network, PINS, NODES, CONSTANTS, FREE)
'''

_LOAD_NETWORK = '''
def load_network() -> Any:
    """The builder, the network with its layers pinned, and the parser; Polygraphy calls it."""
    import tensorrt as trt
    from polygraphy.backend.trt import create_network, get_trt_logger

    check_model(MODEL, MODEL_SHA256)
    prepare_plugins(trt, get_trt_logger(), PLUGINS)
    builder, network = create_network()
    check_weak_typing(trt, network)
    changed = CHANGE
    parser = parse_model(trt, network, get_trt_logger(), MODEL, changed)
    pin_layers(trt, network, PINS, NODES, CONSTANTS, FREE)
    return builder, network, parser
'''


def name_script(model: Path, kind: str) -> str:
    """The file name of a script: one that Python can import."""
    return f"{model.stem.replace('.', '_')}_{kind}.py"


def render_npps(export: Export) -> str:
    """The post-processing script. A clamp cannot be done there: it says so, in the text and when it runs."""
    graph = export.graph
    usage = ["polygraphy", "convert", _find_path(export), *_polygraphy_options(export)]
    imports, body = _read_parts("standalone_pins")
    clamps = [
        "# Constants that the plan clamps. That cannot be done here, in a parsed network: the loader script does it.",
        *_render_clamps(export.plan),
        *_render_sigmoids(export),
        *_render_overlooked(graph),
    ]
    head = _head(export, [*usage, "--trt-npps", name_script(graph.path, "npps")], imports)
    return _join([head, "\n".join(clamps), _render_pins(export), _POSTPROCESS, body, _render_nodes(graph)])


def render_loader(export: Export) -> str:
    """The loader script, which names the model by its path from the folder of the export."""
    graph, plan = export.graph, export.plan
    name = name_script(graph.path, "loader")
    usage = ["polygraphy", "convert", name, "--model-type", "trt-network-script", "--convert-to", "trt"]
    overlooked = read_axes(graph) or find_partial_shapes(graph) or find_grid_modes(graph)
    is_changed = bool(plan.clamps or find_pinned_sigmoids(graph, plan) or overlooked or graph.is_inlined)
    modules = ["standalone_pins", "standalone_loading", *(["standalone_changes"] if is_changed else [])]
    imports, bodies = zip(*map(_read_parts, modules), strict=True)
    change = (
        "change_model(trt, MODEL, CLAMPS, AXES, PARTIAL_SHAPES, GRID_MODES, SIGMOIDS)"
        if is_changed
        else "None"
    )
    parts = [
        _head(export, [*usage, *_polygraphy_options(export)], "\n".join(["import os", *imports])),
        "\n".join(_render_model(export)),
        "\n".join([*_render_clamps(plan), *_render_sigmoids(export), *_render_overlooked(graph)]),
        _render_pins(export),
        _LOAD_NETWORK.replace("CHANGE", change),
        *bodies,
    ]
    return _join([*parts, _render_nodes(graph)])


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def _read_parts(module: str) -> tuple[str, str]:
    """The imports and the rest of a module whose text is exported."""
    text = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    imports, body = text.split(_FUTURE, 1)[1].split(_MARK)
    return imports.strip("\n"), body


def _head(export: Export, usage: Sequence[str], imports: str) -> str:
    graph = export.graph
    lines = (
        f"Nodes of {graph.path.name} that stay in FP32, set on its TensorRT network.",
        "",
        f"Written by overflow_fixer {__version__} for the model of SHA-256 {graph.sha256}. Use it with weak typing, in its folder:",
        "",
        f"$ {shlex.join(usage)}",
        "",
        *_say_flags(export.enforcement),
    )
    comment = "\n".join(f"# {_one_line(line)}".rstrip() for line in lines)
    return f"{comment}\n\n{_FUTURE}\n" + "\n".join(_merge_imports(imports))


def _say_flags(enforcement: Enforcement) -> tuple[str, ...]:
    if not enforcement.fp16:
        return (
            "--fp16 is left out: every node that computes floats is pinned, and FP16 has no place beside that.",
        )
    return (
        "--fp16 is needed, since nothing is set to FP16 here, and so is --precision-constraints "
        f"{enforcement.constraints}, without which",
        "TensorRT may ignore a pin.",
    )


def _merge_imports(text: str) -> Iterator[str]:
    """The import lines, each module once, with all the names that are taken from it."""
    taken: dict[str, set[str]] = {}
    for line in sorted(set(text.splitlines()) - {""}):
        module, _, names = line.partition(" import ")
        taken.setdefault(module, set()).update(filter(None, names.split(", ")))
    for module in sorted(taken):
        yield f"{module} import {', '.join(sorted(taken[module]))}" if taken[module] else module


def _polygraphy_options(export: Export) -> Iterator[str]:
    settings = export.settings
    if export.enforcement.fp16:
        yield from ("--fp16", "--precision-constraints", export.enforcement.constraints)
    yield from ("-o", f"{export.graph.path.stem}.polygraphy.engine")
    if not export.tf32:
        yield "--no-tf32"
    opened = {
        spec.name: settings.shapes[spec.name]
        for spec in export.graph.inputs
        if spec.name in settings.shapes and not all(isinstance(dim, int) for dim in spec.dims or (None,))
    }
    if opened:
        for which in ("min", "opt", "max"):
            yield f"--trt-{which}-shapes"
            yield from _polygraphy_shapes(opened, which)


def _polygraphy_shapes(opened: Mapping[str, ShapeRange], which: str) -> Iterator[str]:
    for name, shape in opened.items():
        yield f"{name}:[{','.join(map(str, getattr(shape, which)))}]"


def _find_path(export: Export) -> str:
    """The model's path from the script's folder; the whole of it where that is on another drive."""
    model = locate_model(export.graph.path)
    try:
        return os.path.relpath(model, export.folder.resolve())
    except ValueError:
        return str(model)


def _render_model(export: Export) -> Iterator[str]:
    yield f"MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), {_find_path(export)!r})"
    yield f"MODEL_SHA256 = {sha256_of([export.graph.path])!r}"
    yield f"PLUGINS = {tuple(locate_plugin(library) for library in export.settings.plugins)!r}"


def _render_clamps(plan: PrecisionPlan) -> Iterator[str]:
    yield "CLAMPS = {"
    for clamp in plan.clamps:
        yield f"    # {_one_line(clamp.reason)}"
        yield f"    {clamp.tensor!r}: {clamp.magnitude!r},"
    yield "}"


def _render_sigmoids(export: Export) -> Iterator[str]:
    yield "# Pinned Sigmoids that the model gives out, which are written out, by what they write (with a prefix of free names)."
    yield f"SIGMOIDS = {find_pinned_sigmoids(export.graph, export.plan)!r}"


def _render_overlooked(graph: Graph) -> Iterator[str]:
    yield "# What parsers before TensorRT 10 overlook, by what the nodes write: axes that reductions have as an input, and which"
    yield "# part of a shape a Shape gives (with a prefix of free names)."
    yield f"AXES = {read_axes(graph)!r}"
    yield f"PARTIAL_SHAPES = {find_partial_shapes(graph)!r}"
    yield "# The modes of GridSample by the names from before opset 20, which alone the parser knows, by what it writes."
    yield f"GRID_MODES = {find_grid_modes(graph)!r}"


def _render_pins(export: Export) -> str:
    lines = [
        "# Each node that stays in FP32, with why TensorRT may have no layer for it (None: it must have one).",
        "PINS = {",
    ]
    for pin in export.pins:
        lines.append(f"    # {_one_line(pin.op_type)} -> {_one_line(', '.join(pin.outputs))}")
        lines += [f"    # {_one_line(reason)}" for reason in pin.reasons]
        lines.append(f"    {pin.node!r}: {pin.excuse!r},")
    lines += [
        "}",
        "",
        "# Kinds of layers that are left free all the same, where TensorRT could not obey their pins.",
    ]
    return "\n".join([*lines, f"FREE = {tuple(sorted(export.enforcement.free))!r}"])


def _render_nodes(graph: Graph) -> str:
    lines = ["# Every node with the tensors it writes, by which layers are told apart.", "NODES = {"]
    lines += [f"    {node.label!r}: {node.writes!r}," for node in graph.nodes]
    lines += ["}", "", "CONSTANTS = frozenset(", "    ["]
    lines += [f"        {name!r}," for name in graph.constants]
    return "\n".join([*lines, "    ]", ")"])


def _one_line(text: str) -> str:
    """The text as a comment can hold it: no line breaks, nothing that does not print."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))

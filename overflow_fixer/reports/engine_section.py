"""What the closing table says of a TensorRT engine, and of the pins in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.engine_wording import count_other_layers, say_enforcement, sort_engine_pins
from overflow_fixer.reports.layout import more, note, title
from overflow_fixer.reports.pin_outcomes import say_outcomes
from overflow_fixer.reports.wording import (
    make_visible,
    say_seconds,
    shorten_middle,
    shorten_reason,
)

_MOST_PINS = 10
_MOST_NAMES = 3
_MOST_KEPT = 3
_MOST_WARNINGS = 3
_NAME_WIDTH = 40
_LESS_THAN_HONOURED = {
    "not visible": "not visible (in an opaque region, which shows only its borders, or fused with a cast of the typed model)",
    "no layer": "without a layer (folded away, or in another's layer)",
    "skipped": "skipped (see below)",
    "dropped": "dropped (see below)",
    "not reported": "not reported by the engine",
}


def lay_out_proof(document: dict[str, Any]) -> Iterator[RenderableType]:
    """What became of the pins in the engine; those that do not hold, by name."""
    if document["engine"] is None:
        return
    found = sort_engine_pins(document)
    if found:
        yield note(f"Proof, read from the engine: {say_outcomes(found)}", _style_of(found))
    broken = set(found.get("not honoured", ()))
    pins = [pin for pin in document["engine"]["pins"] if pin["node"] in broken]
    for pin in pins[:_MOST_PINS]:
        yield note(f"NOT honoured: {_say_name(pin['node'])}{_say_layers(pin['layers'])}", "bold red")
    yield from more(len(pins) - _MOST_PINS, "pin", "report.json")
    for state, said in _LESS_THAN_HONOURED.items():
        if state in found:
            yield note(f"{said}: {_say_names(found[state])}", "yellow")


def _style_of(found: dict[str, list[str]]) -> str:
    if "not honoured" in found:
        return "bold red"
    return "green" if set(found) == {"honoured"} else "yellow"


def lay_out_engine(document: dict[str, Any]) -> Iterator[RenderableType]:
    """The engine's versions, its layers by kind, and what building it took."""
    engine = document["engine"]
    typing = f"{engine['typing']} typing"
    yield title(
        f"Engine: TensorRT {make_visible(engine['tensorrt'])}, {typing}, on {make_visible(engine['gpu'])} "
        f"(compute capability {engine['compute_capability']})"
    )
    style = "bold red" if engine["constraints"] == "prefer" else ""
    yield note(f"pins enforced: {say_enforcement(engine)}", style)
    yield note(_say_kinds(engine))
    yield from _kept("layer", "skipped, since no precision can be set there", engine["skipped"])
    yield from _kept("pin", "DROPPED to get a build at all", engine["dropped"], "red")
    yield note(f"{say_plural(engine['builds'], 'build')} in {say_seconds(engine['build_seconds'])}")
    yield from _warnings(engine["warnings"])


def _say_kinds(engine: dict[str, Any]) -> str:
    other = count_other_layers(engine)
    tf32 = f" ({engine['tf32_layers']} of all in TF32)" if engine["tf32_layers"] else ""
    return (
        f"{say_plural(engine['layers'], 'layer')}: {engine['fp32_layers']} FP32{tf32}, {engine['fp16_layers']} FP16, "
        f"{engine['reformat_layers']} reformat, {engine['opaque_layers']} opaque"
        + (f", {other} other" if other else "")
    )


def _kept(noun: str, what: str, found: Sequence[dict[str, Any]], style: str = "") -> Iterator[RenderableType]:
    if not found:
        return
    yield note(f"{say_plural(len(found), noun)} {what}:", style)
    for kept in found[:_MOST_KEPT]:
        kind = shorten_middle(make_visible(kept["op_type"]), _NAME_WIDTH)
        yield note(f"{_say_name(kept['node'])} ({kind}): {shorten_reason(kept['reason'])}", style, 4)
    yield from more(len(found) - _MOST_KEPT, noun, "report.json")


def _warnings(warnings: Sequence[str]) -> Iterator[RenderableType]:
    if not warnings:
        return
    yield note(f"{say_plural(len(warnings), 'warning')} of the build:", "yellow")
    for warning in warnings[:_MOST_WARNINGS]:
        yield note(shorten_reason(warning), "yellow", 4)
    yield from more(len(warnings) - _MOST_WARNINGS, "warning", "report.json")


def _say_layers(layers: Sequence[str]) -> str:
    return f", in {_say_names(layers)}" if layers else ""


def _say_names(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(map(_say_name, names[:_MOST_NAMES])) + (f" and {rest} more" if rest > 0 else "")


def _say_name(name: str) -> str:
    return shorten_middle(make_visible(name), _NAME_WIDTH)

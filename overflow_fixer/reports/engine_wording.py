"""What must be said of a TensorRT engine, in the same words in the terminal and in HTML.

Everything is read from a report's document (see `build_document`); of a backend that builds no engine
nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.numbers_json import decode_number
from overflow_fixer.reports.pin_outcomes import sort_pins
from overflow_fixer.reports.wording import (
    find_judged_snr,
    make_visible,
    say_compared,
    say_decibels,
    say_match,
    shorten_middle,
    shorten_reason,
)

OPAQUE_NOTE = "nodes inside opaque regions count by what was asked, not by what was seen"
TRACE_NOTES = {
    "candidate": "",
    "simulation": "traced in a simulation of the engine's precisions, node by node, without its fusions",
    "marked engine": "traced in an engine with inner tensors as outputs, whose fusions differ",
}
_PREFER_ALERT = (
    "LAST RESORT: TensorRT was only asked to prefer the pins (PREFER_PRECISION_CONSTRAINTS) and may have "
    "ignored some. Go by what is said below of each pin and by the measured error, not by the plan."
)
_NAME_WIDTH = 60


def say_alerts(document: dict[str, Any]) -> list[str]:
    """What must be read before any number: pins that may have been ignored, a TensorRT that is wrong in FP32."""
    return [*_alert_of_preference(document), *_alert_of_fault(document)]


def _alert_of_preference(document: dict[str, Any]) -> Iterator[str]:
    engine = document["engine"]
    if engine is not None and engine["constraints"] == "prefer":
        yield _PREFER_ALERT


def _alert_of_fault(document: dict[str, Any]) -> Iterator[str]:
    wrong = _wrong_outputs(document["verification"]["fp32_engine"])
    if wrong:
        name = shorten_middle(make_visible(say_compared(wrong[0]["error"])), _NAME_WIDTH)
        reason = shorten_reason(wrong[0]["reason"].rstrip(". "))
        yield (
            "TENSORRT FAULT: TensorRT's own FP32 engine (TF32 off) is wrong on this model: "
            f"{name}: {reason}. So the error is a TensorRT fault, and not (only) an overflow."
        )


def say_fp32_engine(document: dict[str, Any]) -> str | None:
    """Whether TensorRT's own FP32 engine agrees with the reference; None where there is none."""
    verification = document["verification"]["fp32_engine"]
    if verification is None:
        return None
    if verification["passed"]:
        return f"TensorRT's own FP32 engine agrees: {_say_agreement(verification['outputs'])}"
    wrong = len(_wrong_outputs(verification))
    if not wrong:
        return "TensorRT's own FP32 engine: nothing was compared"
    return f"TensorRT's own FP32 engine (TF32 off): {wrong} of {say_plural(len(verification['outputs']), 'output')} WRONG"


def _say_agreement(outputs: Sequence[dict[str, Any]]) -> str:
    errors = [found["error"] for found in outputs]
    floats = [find_judged_snr(error) for error in errors if error["is_float"]]
    known = [snr for snr in floats if snr != "NaN"]
    if known:
        return f"{say_decibels(min(known, key=decode_number))} dB"
    return f"{say_match(errors[0])}{' dB' if errors[0]['is_float'] else ''}"


def _wrong_outputs(verification: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if verification is None else [found for found in verification["outputs"] if not found["passed"]]


def say_enforcement(engine: dict[str, Any]) -> str:
    """How the pins were enforced, which is not yet whether they hold."""
    constraints = engine["constraints"]
    if constraints == "obey":
        return "OBEY_PRECISION_CONSTRAINTS"
    if constraints == "prefer":
        return "PREFER_PRECISION_CONSTRAINTS, a LAST RESORT: the builder may have ignored pins"
    if engine["typing"] == "strong":
        return "by the model's own types (strong typing)"
    return "nothing to enforce"


def sort_engine_pins(document: dict[str, Any]) -> dict[str, list[str]]:
    """The labels of all pinned nodes by what became of them in the engine (see `sort_pins`)."""
    engine = document["engine"]
    planned = (pin["node"] for pin in document["plan"]["pins"])
    states = {found["node"]: found["state"] for found in engine["pins"]}
    skipped, dropped = ({kept["node"] for kept in engine[side]} for side in ("skipped", "dropped"))
    return sort_pins(planned, states, skipped, dropped)


def count_other_layers(engine: dict[str, Any]) -> int:
    """Layers that are in none of the four kinds: integers, shapes, booleans."""
    kinds = ("fp32_layers", "fp16_layers", "reformat_layers", "opaque_layers")
    return max(int(engine["layers"]) - sum(int(engine[kind]) for kind in kinds), 0)

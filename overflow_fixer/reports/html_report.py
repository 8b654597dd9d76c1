"""report.html: the whole report on one page that needs no network and no script."""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from overflow_fixer.plurals import agree, say_plural
from overflow_fixer.records import FixReport
from overflow_fixer.reports.confidence_wording import say_passes
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.engine_wording import (
    OPAQUE_NOTE,
    TRACE_NOTES,
    count_other_layers,
    say_alerts,
    say_enforcement,
    say_fp32_engine,
    sort_engine_pins,
)
from overflow_fixer.reports.numbers_json import JsonNumber, decode_number
from overflow_fixer.reports.pin_groups import group_pins
from overflow_fixer.reports.pin_outcomes import say_outcomes
from overflow_fixer.reports.wording import (
    make_visible,
    say_batches,
    say_bits,
    say_bytes,
    say_decibels,
    say_flops_share,
    say_fused,
    say_mark,
    say_match,
    say_milliseconds,
    say_number,
    say_outcome,
    say_ratio,
    say_seconds,
    say_share,
)

if TYPE_CHECKING:
    from jinja2 import Template

_BAR_BITS = 16.0


def render_html(report: FixReport) -> str:
    """One HTML file with everything that report.json holds. Every name is escaped."""
    return fill_template(build_document(report))


def fill_template(document: Document) -> str:
    """The page of a report's document (see `build_document`)."""
    return _template().render(
        report=document,
        pin_groups=group_pins(document["plan"]["pins"]),
        alerts=say_alerts(document),
        fp32_engine=say_fp32_engine(document),
        passes=say_passes(document),
        **_say_engine(document),
    )


def _say_engine(document: Document) -> dict[str, Any]:
    engine = document["engine"]
    if engine is None:
        return {"pins_by_state": {}, "proof": "", "enforcement": "", "other_layers": 0}
    found = sort_engine_pins(document)
    return {
        "pins_by_state": found,
        "proof": say_outcomes(found),
        "enforcement": say_enforcement(engine),
        "other_layers": count_other_layers(engine),
    }


def measure_bar(headroom_bits: JsonNumber) -> tuple[str, float]:
    """A headroom's bar: its side ("left" in FP16's range, "over" beyond it) and length in percent.

    The scale ends at 16 bits; what has no headroom at all (NaN, -inf) is over by the full length.
    """
    bits = decode_number(headroom_bits)
    if math.isnan(bits):
        return "over", 100.0
    return ("left" if bits >= 0 else "over"), round(100 * min(abs(bits) / _BAR_BITS, 1.0), 1)


@cache
def _template() -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=say_number,
        bits=say_bits,
        decibels=say_decibels,
        mark=say_mark,
        outcome=say_outcome,
        count=lambda value: f"{value:,}",
        match=say_match,
        milliseconds=say_milliseconds,
        ratio=say_ratio,
        seconds=say_seconds,
        agree=agree,
        plural=say_plural,
        batches=say_batches,
        bytes=say_bytes,
        flops_share=say_flops_share,
        fused=say_fused,
        percent=say_share,
        bar=measure_bar,
    )
    environment.globals.update(opaque_note=OPAQUE_NOTE, trace_notes=TRACE_NOTES)
    source = resources.files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def _finalize(value: Any) -> Any:
    """Unprintable characters are escaped visibly, as in the terminal; markup made here is left alone."""
    return make_visible(value) if type(value) is str else value

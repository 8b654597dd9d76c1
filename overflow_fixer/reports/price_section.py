"""What the closing table says of the price: how long the engines take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.layout import Name, make_table, note, title
from overflow_fixer.reports.wording import (
    make_visible,
    say_milliseconds,
    say_ratio,
    say_share,
    shorten_middle,
)

_MOST_ROWS = 10
_NAME_WIDTH = 60


def lay_out_price(document: dict[str, Any]) -> Iterator[RenderableType]:
    """The latencies, the share of FP32 in the fixed engine, and why FP16 brings nothing where it does not."""
    price, engine = document["price"], document["engine"]
    if price is None:
        yield title("Price: not measured")
    else:
        batch = shorten_middle(make_visible(price["batch"]), _NAME_WIDTH)
        yield title(f"Price: GPU time of one inference, on {batch}")
        yield _latency_table(price["latencies"][:_MOST_ROWS])
    if engine is not None:
        layers = f"{engine['fp32_layers']} of {say_plural(engine['layers'], 'layer')}"
        yield note(f"fixed, in FP32: {layers} ({say_share(engine['fp32_layer_share'])}){_say_time(price)}")
    if price is not None and price["opaque_time_share"] not in (0, "NaN"):
        yield note(f"fixed, in opaque regions: {say_share(price['opaque_time_share'])} of the time")
    for remark in [] if price is None else price["remarks"]:
        yield note(remark, "yellow")


def _latency_table(latencies: Sequence[dict[str, Any]]) -> Table:
    table = make_table("Engine", "p50 (ms)>", "p95 (ms)>", "p50 against\nfixed>", "Runs>")
    for found in latencies:
        table.add_row(
            Name(found["name"]),
            Text(say_milliseconds(found["p50_ms"])),
            say_milliseconds(found["p95_ms"]),
            say_ratio(found["p50_ratio"]),
            str(found["runs"]),
            style="bold" if found["name"] == "fixed" else "",
        )
    return table


def _say_time(price: dict[str, Any] | None) -> str:
    if price is None:
        return ""
    share = price["fp32_time_share"]
    return "; share of time not measured" if share == "NaN" else f", {say_share(share)} of the time"

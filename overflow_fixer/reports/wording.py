"""How names and numbers are said to people, in the terminal and in HTML alike.

Numbers come as JSON holds them: NaN and infinities as strings (see `numbers_json`). NaN is said
"n/a", since every NaN here means that there was nothing to measure; counts say where NaN was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

from rich.cells import cell_len, set_cell_size

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.numbers_json import JsonNumber, decode_number

_MOST_UNOBSERVED = 20
_LONGEST_WORD = 30
_KIND_WIDTH = 24
_REASON_WIDTH = 160
"""Cells, in a sentence that is too long."""
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PRODUCTS = "Conv, ConvTranspose, Gemm, MatMul"
"""What flops.COUNTERS counts."""
NOTHING_COMPARED = "nothing compared"


def make_visible(text: str) -> str:
    """`text` with everything unprintable escaped, so that a name cannot steer a terminal.

    Line breaks, control characters, bidirectional marks and lone surrogates become \\n, \\x1b, \\u202e.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten_middle(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells, its middle replaced by "..." if it is longer.

    Wide characters count two cells. Below 6 cells only the beginning is left.
    """
    if cell_len(text) <= width:
        return text
    if width < 6:
        return set_cell_size(text, max(width, 0))
    head = set_cell_size(text, (width - 2) // 2)
    tail = set_cell_size(text[::-1], (width - 3) // 2)[::-1]
    return f"{head}...{tail}"


def shorten_sentence(text: str, width: int) -> str:
    """The same without cutting through a number: long names lose their middle first, then words in the middle are left out."""
    if cell_len(text) <= width:
        return text
    words = [shorten_middle(word, _LONGEST_WORD) for word in text.split(" ")]
    if cell_len(" ".join(words)) <= width:
        return " ".join(words)
    head = _count_fitting(words, (width - 5) // 2)
    tail = _count_fitting(words[::-1], (width - 5) // 2)
    return " ".join([*words[:head], "...", *words[len(words) - tail :]])


def shorten_reason(reason: str) -> str:
    """As a table or an alert has it: visible, and no longer than two lines."""
    return shorten_sentence(make_visible(reason), _REASON_WIDTH)


def say_kind(node: Mapping[str, Any]) -> str:
    """The operator of a node of a report, shortened to a table's room."""
    return shorten_middle(make_visible(node["op_type"]), _KIND_WIDTH)


def _count_fitting(words: Sequence[str], width: int) -> int:
    """How many of the first words fit."""
    ends = accumulate(cell_len(word) + 1 for word in words)
    return sum(end - 1 <= width for end in ends)


def say_values(observe: str, provider: str) -> str:
    """Whose values a scan's are; how far those of other kernels are off is measured, see docs/scan.md."""
    if provider != "cpu":
        return f"of {provider.upper()} kernels in FP32, optimisation off"
    if observe == "optimized":
        return "of ONNX Runtime's optimised kernels on the CPU, not bit for bit those of single nodes"
    return "exact, of each node as ONNX Runtime computes it on the CPU, optimisation off"


def say_number(value: JsonNumber) -> str:
    """Six significant digits."""
    return _say(value, ".6g")


def say_bits(value: JsonNumber) -> str:
    """One decimal, but never a bare 0.0 for a value that is just over or under a limit."""
    return _say(value, ".1f" if abs(decode_number(value)) >= 0.05 else ".1g")


def say_decibels(value: JsonNumber) -> str:
    return _say(value, ".1f")


def say_milliseconds(value: JsonNumber) -> str:
    """Three decimals: to the microsecond, which is finer than a GPU repeats."""
    return _say(value, ".3f")


def say_seconds(value: JsonNumber) -> str:
    return f"{_say(value, '.1f')} s"


def say_ratio(value: JsonNumber) -> str:
    """Such as "1.46x"; "n/a" where there is nothing to hold it against."""
    said = _say(value, ".2f")
    return said if said == "n/a" else f"{said}x"


def say_compared(error: dict[str, Any]) -> str:
    """The tensor, or the part of an output, that an error is of."""
    return f"{error['tensor']}{error['part']}"


def say_match(error: dict[str, Any]) -> str:
    """The SNR in dB by which a tensor is judged, of its worst batch; where it is not of floats the share of equal elements there,
    if any.
    """
    if error["is_float"]:
        return say_decibels(find_judged_snr(error))
    return f"{say_share(error['worst_batch_agreement'])} equal" if error["element_count"] else "n/a"


def find_judged_snr(error: dict[str, Any]) -> JsonNumber:
    """The SNR in dB by which a tensor of floats is judged: of its worst batch, where that has one."""
    worst: JsonNumber = error["worst_batch_snr_db"]
    overall: JsonNumber = error["snr_db"]
    return overall if math.isnan(decode_number(worst)) else worst


def say_mark(found: dict[str, Any]) -> str:
    """What an output's line says of it, of the document: "ok", "WRONG", or that it was empty in every batch."""
    if not found["passed"]:
        return "WRONG"
    return "ok" if found["error"]["element_count"] else NOTHING_COMPARED


def say_outcome(verification: dict[str, Any]) -> str:
    """How a verification of the document ended, in a word or two."""
    if verification["passed"]:
        return "passed"
    is_wrong = any(not found["passed"] for found in verification["outputs"])
    return "failed" if is_wrong else NOTHING_COMPARED


def _say(value: JsonNumber, form: str) -> str:
    number = decode_number(value)
    return "n/a" if math.isnan(number) else f"{number:{form}}"


def say_count(count: int) -> str:
    """All digits below 100,000, three of them from there on."""
    return str(count) if count < 100_000 else _scale(count).replace(" ", "")


def say_bytes(size: int | None) -> str:
    return "not there" if size is None else f"{_scale(size)}B"


def say_flops(flops: int) -> str:
    return f"{_scale(flops)}FLOP"


def say_flops_share(share: Mapping[str, Any]) -> str:
    """How many of the FLOPs run in FP16 and of which operators they are, of the document's share."""
    unknown = share["unknown_flops_nodes"]
    left_out = f"; FLOPs of {say_plural(unknown, 'node')} unknown" if unknown else ""
    if not share["flops"]:
        return f"no FLOP in products ({_PRODUCTS}), which alone are counted{left_out}"
    part = f"{say_flops(share['fp16_flops'])} of {say_flops(share['flops'])} ({say_share(share['fp16_flops_share'])})"
    return f"{part} in products ({_PRODUCTS}){left_out}"


def say_share(share: JsonNumber) -> str:
    """A ratio as a percentage, never rounded up to 100 % nor down to 0 %."""
    percent = 100 * decode_number(share)
    if math.isnan(percent):
        return "n/a"
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return "<0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def say_batches(count: int, changed_count: int = 0) -> str:
    """How many batches, and how many copies of them that are changed a little."""
    batches = say_plural(count, "batch", "batches")
    return (
        f"{batches} and {say_plural(changed_count, 'changed copy', 'changed copies')}"
        if changed_count
        else batches
    )


def say_unobserved(not_observed: Mapping[str, str]) -> Iterator[str]:
    """Of tensors, and bodies of control flow, that have no range, with the reason; of the first 20 each."""
    for name, reason in islice(not_observed.items(), _MOST_UNOBSERVED):
        yield f"{name} was not observed: {reason}."
    if len(not_observed) > _MOST_UNOBSERVED:
        yield f"{len(not_observed) - _MOST_UNOBSERVED} more were not observed: see ranges.h5."


def say_foreign(counts: Mapping[str, int]) -> str:
    """Which operators nobody looked into, in words."""
    named = ", ".join(f"{name} ({say_plural(count, 'node')})" for name, count in counts.items())
    return f"Not looked into: {named}. What operators of other domains compute inside may overflow where no tensor shows it."


def say_fused(fused: Mapping[str, Any]) -> str:
    """What --refuse-layernorm did, in words."""
    count, left = say_plural(len(fused["outputs"]), "LayerNorm"), fused["left"]
    rest = f" {len(left)} more stay as they are: {left[0]['output']}, {left[0]['reason']}." if left else ""
    error = say_number(fused["max_relative_error"])
    return (
        f"{count} of {fused['source']} became LayerNormalization; outputs differ by at most {error} of their largest "
        f"magnitude in FP32.{rest}"
    )


def _scale(amount: float) -> str:
    for scale, letter in _DECIMAL:
        if amount >= scale:
            return f"{amount / scale:.3g} {letter}"
    return f"{amount:g} "

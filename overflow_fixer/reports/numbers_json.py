"""Numbers in JSON, which has no NaN and no infinity.

A number that is not finite is written as one of the strings "NaN", "Infinity" and "-Infinity", in
a field that is a number otherwise. The bare tokens NaN and Infinity, which Python's json writes
and reads by default, are not JSON: they are never written, and refused when read.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

JsonNumber: TypeAlias = "float | str"

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_number(value: float) -> JsonNumber:
    """A finite float as it is; NaN, inf and -inf as their strings. -0.0 keeps its sign."""
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def decode_number(value: JsonNumber) -> float:
    """What `encode_number` encoded, bit for bit but for a NaN's payload.

    Raises ValueError for any other string.
    """
    if not isinstance(value, str):
        return float(value)
    if value not in _NON_FINITE:
        raise ValueError(f"{value!r} is not a number")
    return _NON_FINITE[value]


def encode_record(record: Any) -> dict[str, Any]:
    """A dataclass's fields by name, in its order: records in it likewise, tuples as lists, floats as encode_number does."""
    return {one.name: _encode(getattr(record, one.name), one.type) for one in fields(record)}


def _encode(value: Any, kind: Any) -> Any:
    """Of a field that is annotated so: numpy's numbers, too, as JSON's."""
    if kind in ("float", "int"):
        return encode_number(value) if kind == "float" else int(value)
    if isinstance(value, tuple):
        return [encode_record(one) if is_dataclass(one) else one for one in value]
    return value


def dump_json(document: Any) -> str:
    """Indented JSON text, encodable as UTF-8 whatever the names hold.

    Raises ValueError for a float that is not finite and did not go through `encode_number`.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parse_json(text: str) -> Any:
    """Strict JSON: ValueError for NaN, Infinity, a number over 1.8e308, a key that an object has twice, or what is not JSON."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_read_object,
            parse_constant=_refuse,
            parse_float=_read_float,
            parse_int=_read_int,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Python's json takes the last of two values of one key, in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:40]!r} is given twice in one object")
    return found


def _refuse(token: str) -> float:
    raise ValueError(f"{token} is not a JSON number")


def _read_float(token: str) -> float:
    value = float(token)
    return value if math.isfinite(value) else _refuse(token[:20])


def _read_int(token: str) -> int:
    _read_float(token)
    return int(token)

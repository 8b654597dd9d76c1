from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.records import Finding, HiddenClass, Pin
from overflow_fixer.reports.numbers_json import (
    decode_number,
    dump_json,
    encode_number,
    encode_record,
    parse_json,
)


def _bits(value: float) -> bytes:
    return struct.pack(">d", math.nan if math.isnan(value) else value)


@given(st.floats())
def test_every_float_comes_back_bit_for_bit(value: float) -> None:
    text = dump_json({"n": encode_number(value)})
    assert _bits(decode_number(parse_json(text)["n"])) == _bits(value)


@given(st.floats(width=32))
def test_a_numpy_float32_is_taken_exactly(value: float) -> None:
    assert _bits(decode_number(encode_number(np.float32(value)))) == _bits(value)


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_what_is_not_finite_is_a_string(value: float, text: str) -> None:
    assert encode_number(value) == text


@pytest.mark.parametrize("text", ["nan", "inf", "1.0", ""])
def test_another_string_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        decode_number(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bare_token_is_never_written(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"n": value})


@pytest.mark.parametrize("text", ['{"pins": [1], "n": 0, "pins": []}', '[{"a": {"pins": 1, "pins": 1}}]'])
def test_a_key_that_an_object_has_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the key 'pins' is given twice"):
        parse_json(text)
    assert parse_json('{"a": {"pins": 1}, "pins": [{"a": 2}]}') == {"a": {"pins": 1}, "pins": [{"a": 2}]}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"n": -Infinity}', "1e999", "-1e999", "9" * 400])
def test_a_number_that_json_or_a_float_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON number"):
        parse_json(text)


def test_a_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 200_000)


def test_a_file_name_that_is_not_utf8_survives() -> None:
    name = b"caf\xe9.npz".decode("utf-8", "surrogateescape")
    text = dump_json([name, "模型"])
    assert json.loads(text.encode("utf-8")) == [name, "模型"]
    assert "模型" in text


def test_a_record_is_its_fields_in_their_order_with_the_records_in_it() -> None:
    finding = Finding("threshold", "n", "t", float(np.float32(2.5)), math.nan, "large", None, "pin", "low")
    described = encode_record(Pin("n", "Add", ("a", "b"), (finding,)))
    assert list(described) == ["node", "op_type", "outputs", "findings"]
    assert described["outputs"] == ["a", "b"]
    assert described["findings"] == [
        {
            "rule": "threshold",
            "node": "n",
            "tensor": "t",
            "value": 2.5,
            "limit": "NaN",
            "reason": "large",
            "batch": None,
            "action": "pin",
            "severity": "low",
        }
    ]


def test_numpy_s_numbers_in_a_record_are_json_s() -> None:
    counts = np.arange(4, dtype=np.int64)
    finding = Finding("threshold", "n", "t", np.float32(1.5), 1, "large")  # type: ignore[arg-type]
    text = dump_json([encode_record(HiddenClass("y", *counts)), encode_record(finding)])
    hidden, found = parse_json(text)
    assert hidden == {"tensor": "y", "value": 0, "count": 1, "elements": 2, "equal": 3}
    assert (found["value"], found["limit"]) == (1.5, 1.0)

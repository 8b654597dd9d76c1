"""What a zoo says of a model while it runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from overflow_fixer.cli.zoo_display import describe
from overflow_fixer.zoo.outcomes import Basis, ZooOutcome, ZooResult


def _outcome(snr_db: float, mismatched: int) -> ZooOutcome:
    result = ZooResult(
        backend="onnx",
        artifact=Path("m.fp16.onnx"),
        size_bytes=1,
        pins=("a", "b"),
        clamp_count=0,
        naive_snr_db=None,
        naive_mismatched=None,
        fixed_snr_db=snr_db,
        fixed_mismatched=mismatched,
        fp16_node_share=0.5,
        fp16_flops_share=0.5,
        latency_ms={},
        stage_seconds={},
    )
    basis = Basis(settings="s", versions={}, timeout_minutes=1.0, memory_gib=None)
    named = {"name": "m", "model": Path("m.onnx"), "folder": Path("m"), "message": "", "basis": basis}
    return ZooOutcome(kind="not_verified", result=result, seconds=1.0, **named)


@pytest.mark.parametrize(
    ("snr_db", "mismatched", "said"),
    [
        (61.54, 0, "m: not verified, 2 pins, 61.5 dB, 1.0 s"),
        (math.nan, 0, "m: not verified, 2 pins, n/a dB, 1.0 s"),
        (math.nan, 12, "m: not verified, 2 pins, n/a dB, 12 mismatched, 1.0 s"),
    ],
)
def test_one_line_tells_the_snr_and_what_does_not_match(snr_db: float, mismatched: int, said: str) -> None:
    assert describe(_outcome(snr_db, mismatched)) == said


def _failed(count: int) -> ZooOutcome:
    message = " ".join(["it", "holds", *(f"{number}," for number in range(count)), "Remove", "the", "batch."])
    return _outcome(61.54, 0).model_copy(update={"kind": "failed", "result": None, "message": message})


def test_a_paragraph_is_said_whole() -> None:
    outcome = _failed(99)
    assert describe(outcome) == f"m: failed, 1.0 s: {outcome.message}"


def test_of_a_long_message_the_beginning_and_what_to_do_are_said_and_where_it_is_whole() -> None:
    outcome = _failed(999)
    said = describe(outcome)
    assert said.startswith("m: failed, 1.0 s: it holds 0, 1, ")
    whole = f" (whole: {Path('m') / 'outcome.json'})"
    assert said.endswith(f"998, Remove the batch.{whole}")
    shown = said.removesuffix(whole)
    assert set(shown.split()) <= {*outcome.message.split(), "m:", "failed,", "1.0", "s:", "..."}
    assert len(shown) < 1030


def test_warnings_are_counted() -> None:
    outcome = _outcome(61.54, 0)
    assert outcome.result is not None
    for warnings, said in ((("a",), ", 1 warning, "), (("a", "b"), ", 2 warnings, ")):
        result = outcome.result.model_copy(update={"warnings": warnings})
        assert said in describe(outcome.model_copy(update={"result": result}))


def test_one_pin_is_no_plural() -> None:
    outcome = _outcome(61.54, 0)
    assert outcome.result is not None
    one = outcome.model_copy(update={"result": outcome.result.model_copy(update={"pins": ("a",)})})
    assert ", 1 pin, " in describe(one)

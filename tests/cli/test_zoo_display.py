"""What a zoo says of a model while it runs."""

from __future__ import annotations

import io
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from overflow_fixer.cli.zoo_display import ZooDisplay, describe
from overflow_fixer.config import FixConfig
from overflow_fixer.zoo.entries import ZooEntry
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


def test_a_name_breaks_no_line() -> None:
    outcome = _outcome(61.54, 0).model_copy(update={"name": "m\n[2/2] n: fixed\x1b[2J"})
    assert describe(outcome).startswith(r"m\n[2/2] n: fixed\x1b[2J: not verified, 2 pins, ")


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


@dataclass
class _Work:
    entry: ZooEntry
    attempt: int = 1
    seconds: float = 2.0
    peak_bytes: int = 3_000_000

    def read_progress(self) -> tuple[str, int, int]:
        return "scan", 1, 4

    def take_outcome(self) -> None:
        """It runs."""

    def stop(self) -> None:
        """It goes on."""

    kill = stop


def test_the_live_table_has_names_to_the_letter() -> None:
    names = ("b [v1]", "x[/a]", "bert:cat:", "[red]", "last")
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    config = FixConfig.model_validate({"model": "m.onnx", "calib": "random"})
    with ZooDisplay(9, console) as display:
        display.show_running([_Work(ZooEntry(name, config)) for name in names])
        deadline = time.monotonic() + 10
        while names[-1] not in written.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)  # it is drawn some times a second
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    for name in names:
        assert re.search(rf"^ {re.escape(name)} +scan 1/4 +2 +3 *$", said, re.MULTILINE)

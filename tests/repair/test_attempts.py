"""Which of two attempts is better."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_memory_calibration import node
from repair_trials import TOLERANCE, Trial, cancelling

from overflow_fixer.records import Engine, Finding, Pin, Tolerance
from overflow_fixer.repair.attempts import Attempt, is_better, is_hopeless, may_lose_by_tf32


def _engine(tf32: bool = True, seen: int = 0, hidden: int = 0) -> Engine:
    return Engine("8.6", "GPU", (9, 0), "weak", "obey", 9, 1, 0, 0, hidden, tf32=tf32, tf32_layers=seen)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Trial(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")]).first()


def _with(attempt: Attempt, passed: bool = False, wrong: int = 3, **error: Any) -> Attempt:
    verification = attempt.verification
    (verdict,) = verification.outputs
    if "snr_db" in error:
        error["worst_batch_snr_db"] = error["snr_db"]
    changed = replace(verdict, passed=passed, error=replace(verdict.error, **error))
    bad = [e for e in verification.trace if e.snr_db < 30][:1] * wrong
    return replace(attempt, verification=replace(verification, outputs=(changed,), trace=tuple(bad)))


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"passed": True, "snr_db": 31.0}, {"snr_db": 50.0}),
        ({"mismatched": 1, "snr_db": -5.0}, {"mismatched": 2, "snr_db": 20.0}),
        ({"snr_db": 10.6}, {"snr_db": 10.0}),
        ({"snr_db": 10.0, "wrong": 2}, {"snr_db": 10.4, "wrong": 3}),
        (
            {"mismatched": 8, "compared": 0, "snr_db": math.nan, "wrong": 1},
            {"mismatched": 8, "compared": 0, "wrong": 2},
        ),
    ],
)
def test_an_attempt_is_better_and_the_other_is_not(
    better: dict[str, Any], worse: dict[str, Any], attempt: Attempt
) -> None:
    one, other = _with(attempt, **better), _with(attempt, **worse)
    assert is_better(one, other, TOLERANCE)
    assert not is_better(other, one, TOLERANCE)


def test_an_equal_attempt_is_not_better(attempt: Attempt) -> None:
    assert not is_better(attempt, attempt, TOLERANCE)
    assert not is_better(_with(attempt, snr_db=10.4), _with(attempt, snr_db=10.0), TOLERANCE)


def test_each_output_is_held_against_its_own_tolerance(attempt: Attempt) -> None:
    assert _with(attempt, snr_db=25.0).worst_margin_db(Tolerance()) == -5
    assert _with(attempt, snr_db=25.0).worst_margin_db(Tolerance(per_output={"y": 20.0})) == 5
    assert _with(attempt, compared=0).worst_margin_db(Tolerance()) == math.inf
    assert math.isnan(_with(attempt, compared=0).worst_snr_db)


def test_what_does_not_match_in_an_output_counts_once_though_its_parts_are_judged_too(
    attempt: Attempt,
) -> None:
    whole, part = _with(attempt, mismatched=2), _with(attempt, mismatched=2, part="[:, 4:]")
    outputs = (*whole.verification.outputs, *part.verification.outputs)
    judged = replace(attempt, verification=replace(attempt.verification, outputs=outputs))
    assert judged.mismatched == 2


@pytest.mark.parametrize(
    ("error", "snr_db"),
    [
        ({"compared": 0, "mismatched": 8}, math.nan),
        ({"compared": 6, "mismatched": 2, "worst_batch_snr_db": 40.0}, 40.0),
        ({"compared": 0, "mismatched": 0}, 65.0),
        ({"compared": 0, "mismatched": 8, "is_float": False}, 65.0),
    ],
)
def test_the_worst_snr_is_not_that_of_healthy_outputs_beside_one_that_has_none(
    error: dict[str, Any], snr_db: float, attempt: Attempt
) -> None:
    broken, healthy = _with(attempt, **error), _with(attempt, passed=True, snr_db=65.0)
    outputs = (*broken.verification.outputs, *healthy.verification.outputs)
    found = replace(attempt, verification=replace(attempt.verification, outputs=outputs)).worst_snr_db
    assert found == pytest.approx(snr_db, nan_ok=True)


@pytest.mark.parametrize(
    ("error", "hopeless"),
    [
        ({"mismatched": 2, "reference_nan": 2, "snr_db": 40.0}, True),
        ({"mismatched": 3, "reference_nan": 2, "snr_db": 40.0}, False),
        ({"mismatched": 2, "reference_nan": 2, "snr_db": 20.0}, False),
        ({"mismatched": 0, "reference_nan": 2, "snr_db": 40.0}, False),
    ],
)
def test_only_what_fails_by_nan_of_fp32_alone_is_hopeless(
    error: dict[str, Any], hopeless: bool, attempt: Attempt
) -> None:
    (verdict,) = _with(attempt, **error).verification.outputs
    assert is_hopeless(verdict.error, TOLERANCE) is hopeless


@pytest.mark.parametrize(
    ("engine", "pinned", "may"),
    [
        (_engine(seen=1), False, True),
        (_engine(hidden=1), True, True),
        (_engine(hidden=1), False, False),
        (_engine(), True, False),
        (_engine(tf32=False, seen=1, hidden=1), True, False),
        (None, True, False),
    ],
    ids=["seen", "hidden", "hidden, nothing pinned", "not in TF32", "forbidden", "no engine"],
)
def test_what_runs_in_tf32_or_may_do_so_unseen_may_lose_by_it(
    attempt: Attempt, engine: Engine | None, pinned: bool, may: bool
) -> None:
    finding = Finding("user", "MatMul_y", "y", 1.0, 1.0, "")
    pins = (Pin("MatMul_y", "MatMul", ("y",), (finding,)),) if pinned else ()
    artifact = replace(attempt.artifact, engine=engine)
    changed = replace(attempt, plan=replace(attempt.plan, pins=pins), artifact=artifact)
    assert may_lose_by_tf32(changed) is may
    assert not may_lose_by_tf32(_with(changed, mismatched=1))
    assert may_lose_by_tf32(_with(changed, mismatched=1, is_float=False)) is may

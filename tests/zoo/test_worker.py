"""What one model of a zoo came to, as its worker tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from zoo_models import make_entry, write_model

from overflow_fixer.config import FixConfig
from overflow_fixer.model_file import external_data
from overflow_fixer.reports.numbers_json import encode_number, parse_json
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.worker import Job, run_job


@pytest.mark.parametrize(
    ("asked", "kind", "code"),
    [
        ({}, "fixed", 0),
        ({"verify": {"min_snr_db": 200.0}, "repair": {"max_rounds": 0}}, "not_verified", 1),
        ({"calib": "nowhere"}, "failed", 4),
        ({"model": "nowhere.onnx"}, "failed", 3),
    ],
)
def test_a_model_is_fixed_only_where_it_was_verified(
    asked: dict[str, Any], kind: str, code: int, tmp_path: Path
) -> None:
    given = make_entry(write_model(tmp_path, "m")).config.model_dump()
    config = FixConfig.model_validate({**given, **asked})
    job = Job.of(ZooEntry("m", config), threads=1)
    outcome = run_job(job)
    assert (outcome.kind, outcome.exit_code, outcome.passed) == (kind, code, kind == "fixed")
    assert (outcome.result is not None) is (code in (0, 1))


def test_shares_are_those_of_the_models_report_where_it_has_no_products_too(tmp_path: Path) -> None:
    config = make_entry(write_model(tmp_path, "m")).config
    job = Job.of(ZooEntry("m", config), threads=1)
    result = run_job(job).result
    assert result is not None
    told = parse_json((config.folder / "report.json").read_text())["share"]
    assert encode_number(result.fp16_node_share) == told["fp16_node_share"] == pytest.approx(1 / 3)
    assert encode_number(result.fp16_flops_share) == told["fp16_flops_share"] == "NaN"


def test_a_model_that_memory_has_no_room_for_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its weights are looked for in it once more."""

    def fail(path: Path, **settings: bool) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(external_data, "read_model", fail)
    config = make_entry(write_model(tmp_path, "m")).config
    job = Job.of(ZooEntry("m", config), threads=1)
    assert run_job(job).kind == "out_of_memory"

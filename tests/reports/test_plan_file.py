from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_factories import CONTROL, HOSTILE, SHA, make_crowded, make_lost, make_pin, make_plan, make_report

from overflow_fixer import __version__
from overflow_fixer.errors import OutputError, PlanError
from overflow_fixer.records import Clamp, Finding, Pin, PrecisionPlan
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.plan_file import load_plan, read_reported, save_plan

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["NaN", HOSTILE, CONTROL]
)
_FINDINGS = st.builds(
    Finding,
    rule=_TEXTS,
    node=_TEXTS,
    tensor=_TEXTS,
    value=st.floats(),
    limit=st.floats(),
    reason=_TEXTS,
    batch=st.none() | _TEXTS,
    action=st.sampled_from(["pin", "clamp", "none"]),
)
_NAMES = st.lists(_TEXTS, max_size=3).map(tuple)
_PINS = st.builds(Pin, _TEXTS, _TEXTS, _NAMES, st.lists(_FINDINGS, max_size=3).map(tuple))
_PLANS = st.builds(
    PrecisionPlan,
    model_sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    threshold=st.floats(),
    pins=st.lists(_PINS, max_size=3).map(tuple),
    clamps=st.lists(st.builds(Clamp, _TEXTS, st.floats(), _TEXTS, _NAMES), max_size=3).map(tuple),
    considered=st.lists(_FINDINGS, max_size=3).map(tuple),
    tf32=st.booleans(),
)


@given(plan=_PLANS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_plan_comes_back_exactly(tmp_path: Path, plan: PrecisionPlan) -> None:
    save_plan(plan, tmp_path / "plan.json")
    assert repr(load_plan(tmp_path / "plan.json")) == repr(plan)  # repr tells every float, NaN and -0.0 too


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("make", [make_report, make_lost, make_crowded])
def test_a_report_and_its_plan_file_agree(tmp_path: Path, make: Any, tf32: bool) -> None:
    report = make(tmp_path)
    report = replace(report, plan=replace(report.plan, tf32=tf32))
    save_plan(report.plan, tmp_path / "plan.json")
    assert repr(load_plan(tmp_path / "plan.json")) == repr(report.plan)
    assert repr(read_reported(build_document(report))) == repr(report.plan)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(make_plan(make_pin("/a"), make_pin("/b", value=math.inf)), path)
    return path


def test_a_plan_file_is_stamped(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema_version"] == "1.2"
    assert document["tool_version"] == __version__
    assert document["model_sha256"] == SHA
    assert document["pins"][1]["findings"][0]["value"] == "Infinity"


def test_an_unwritable_plan_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="could not be written"):
        save_plan(make_plan(), tmp_path / "file" / "plan.json")


def _edit(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    message = str(caught.value)
    assert caught.value.exit_code == 5
    assert str(path) in message
    assert "Write it with fix-fp16 plan" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema_version": "9.0"}, "its schema_version is '9.0'"),
        ({"model_sha256": "abc"}, "model_sha256: 'abc'"),
        ({"threshold": "high"}, "threshold: 'high'"),
        ({"threshold": True}, "threshold: True"),
        ({"pins": {}}, "pins: {} is not of type 'array'"),
        ({"pins": ["/a"]}, "pins[0]: '/a' is not of type 'object'"),
        ({"pins": [{"node": "/a"}]}, "pins[0]: "),
        ({"clamps": [{"tensor": 1, "magnitude": 1, "reason": "", "covers": []}]}, "clamps[0].tensor: 1"),
        ({"nodes": []}, "'nodes' was unexpected"),
    ],
)
def test_a_wrong_entry_is_named(path: Path, changes: dict[str, Any], complaint: str) -> None:
    assert complaint in _edit(path, **changes)


def test_an_unknown_action_is_refused(path: Path) -> None:
    pins = json.loads(path.read_text())["pins"]
    pins[1]["findings"][0]["action"] = "drop"
    assert "pins[1].findings[0].action: 'drop'" in _edit(path, pins=pins)


def test_a_truncated_plan_is_not_half_read(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(PlanError, match="is not JSON"):
        load_plan(path)


def test_a_plan_with_a_key_twice_is_refused(path: Path) -> None:
    path.write_text(f'{path.read_text().rstrip()[:-1]}, "pins": []}}')
    with pytest.raises(PlanError, match=r"the key 'pins' is given twice in one object\. Expected a plan as"):
        load_plan(path)


def test_of_a_plan_that_is_not_there_what_makes_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "plan.json")
    assert "plan.json is not there. Expected the plan that fix-fp16 plan writes" in str(caught.value)
    assert "entry" not in str(caught.value)

"""The summary of a zoo: its document, its files, and what changed since an earlier one."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
from zoo_models import ZOO_SCHEMA

from overflow_fixer.errors import ConfigError
from overflow_fixer.reports.numbers_json import parse_json
from overflow_fixer.reports.schemas import read_schema
from overflow_fixer.zoo.outcomes import Basis, ZooOutcome, ZooResult
from overflow_fixer.zoo.summary import build_document, compare, load_summary, write_summary

HOSTILE = "<script>alert(1)</script>"


def _result(folder: Path, pins: tuple[str, ...] = ("a", "b"), **changes: Any) -> ZooResult:
    values = {
        "backend": "onnx",
        "artifact": folder / "m.fp16.onnx",
        "size_bytes": 1234,
        "pins": pins,
        "clamp_count": 0,
        "naive_snr_db": float("nan"),
        "naive_mismatched": 3,
        "fixed_snr_db": float("inf"),
        "fixed_mismatched": 0,
        "fp16_node_share": 0.75,
        "fp16_flops_share": 1.0,
        "latency_ms": {},
        "stage_seconds": {"scan": 1.0},
    }
    return ZooResult.model_validate({**values, **changes})


def _outcome(folder: Path, name: str, kind: str = "fixed", **changes: Any) -> ZooOutcome:
    versions = changes.pop("versions", {"overflow_fixer": "0.1.0"})
    content = changes.pop("content", "c" * 64)
    values = {
        "name": name,
        "model": Path(f"{name}.onnx"),
        "folder": folder / name,
        "kind": kind,
        "message": "it went so",
        "basis": Basis(
            settings="s", versions=versions, timeout_minutes=1.0, memory_gib=None, content=content
        ),
        "exit_code": 0,
        "result": _result(folder) if kind in ("fixed", "not_verified") else None,
        "seconds": 2.5,
    }
    return ZooOutcome.model_validate({**values, **changes})


def test_models_stand_by_name_with_counts_and_links(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.txt").write_text("")
    (tmp_path / "a" / "report.html").write_text("")
    document = build_document(
        Path("zoo.toml"), tmp_path, [_outcome(tmp_path, "b", "crashed"), _outcome(tmp_path, "a")]
    )
    assert document["counts"] == {"crashed": 1, "fixed": 1}
    assert not document["passed"]
    a, b = document["models"]
    assert (a["name"], a["report"], a["log"]) == ("a", "a/report.html", "a/log.txt")
    assert (b["name"], b["report"], b["log"], b["result"]) == ("b", None, "b/log.txt", None)


def test_the_report_of_an_earlier_run_is_not_linked_as_that_of_one_that_failed(tmp_path: Path) -> None:
    outcome = _outcome(tmp_path, "m", "failed")
    outcome.folder.mkdir()
    (outcome.folder / "report.html").write_text("of a run before")
    (found,) = build_document(Path("zoo"), tmp_path, [outcome])["models"]
    assert found["report"] is None


def test_the_files_say_the_same(tmp_path: Path) -> None:
    timed = _result(tmp_path, latency_ms={"fixed": 1.5, "FP32": 3.0})
    outcomes = [
        _outcome(tmp_path, "a"),
        _outcome(tmp_path, "b", result=timed),
        _outcome(tmp_path, "c", "timed_out"),
    ]
    document = build_document(Path("zoo.toml"), tmp_path, outcomes)
    json_file, html_file, csv_file = write_summary(document, tmp_path)
    jsonschema.validate(parse_json(json_file.read_text()), read_schema(ZOO_SCHEMA))
    assert parse_json(json_file.read_text()) == document
    earlier = load_summary(json_file)
    assert earlier == load_summary(tmp_path)
    assert compare(earlier, document["models"]) == compare(document, document["models"])
    rows = list(csv.DictReader(io.StringIO(csv_file.read_text())))
    assert [(row["name"], row["outcome"], row["pin_count"], row["latency_FP32_ms"]) for row in rows] == [
        ("a", "fixed", "2", ""),
        ("b", "fixed", "2", "3.0"),
        ("c", "timed_out", "", ""),
    ]
    html = html_file.read_text()
    assert all(text in html for text in ("zoo.toml", "timed out", "75.0 %", "fixed 1.5, FP32 3"))


def test_what_does_not_match_is_counted_beside_the_snr(tmp_path: Path) -> None:
    broken = _result(tmp_path, naive_mismatched=1536, fixed_snr_db=65.64, fixed_mismatched=7)
    alone = _result(tmp_path, naive_snr_db=None, naive_mismatched=None)
    outcomes = [_outcome(tmp_path, "a", result=broken), _outcome(tmp_path, "b", result=alone)]
    _, html_file, csv_file = write_summary(build_document(Path("z"), tmp_path, outcomes), tmp_path)
    rows = csv.DictReader(io.StringIO(csv_file.read_text()))
    columns = ("naive_snr_db", "naive_mismatched", "fixed_snr_db", "fixed_mismatched")
    assert [[row[column] for column in columns] for row in rows] == [
        ["NaN", "1536", "65.64", "7"],
        ["", "", "Infinity", "0"],
    ]
    cells = re.findall('<td class="n">([^<]*)</td>', html_file.read_text())
    assert cells[1:5] == ["n/a", "1536", "65.6", "7"]
    assert cells[10:14] == ["–", "–", "inf", "0"]


def test_one_model_is_no_plural(tmp_path: Path) -> None:
    for names, said in (("a", "1 model: "), ("ab", "2 models: ")):
        outcomes = [_outcome(tmp_path, name) for name in names]
        html = write_summary(build_document(Path("z"), tmp_path, outcomes), tmp_path)[1].read_text()
        assert f"<p>{said}" in html


def test_shares_read_as_in_a_models_report(tmp_path: Path) -> None:
    shares = {"a": 0.9999, "b": float("nan")}
    results = {name: _result(tmp_path, fp16_node_share=share) for name, share in shares.items()}
    outcomes = [_outcome(tmp_path, name, result=result) for name, result in results.items()]
    html = write_summary(build_document(Path("z"), tmp_path, outcomes), tmp_path)[1].read_text()
    cells = re.findall('<td class="n">([^<]*)</td>', html)
    assert (cells[5], cells[14]) == ("&gt;99.9 %", "n/a")


def test_what_a_report_warns_of_stands_in_every_file(tmp_path: Path) -> None:
    outcomes = [_outcome(tmp_path, "a", result=_result(tmp_path, warnings=("near", "<b>", "unseen")))]
    outcomes += [_outcome(tmp_path, "b"), _outcome(tmp_path, "c", "failed")]
    document = build_document(Path("z"), tmp_path, outcomes)
    _, html_file, csv_file = write_summary(document, tmp_path)
    assert document["models"][0]["result"]["warnings"] == ["near", "<b>", "unseen"]
    rows = csv.DictReader(io.StringIO(csv_file.read_text()))
    assert [row["warning_count"] for row in rows] == ["3", "0", ""]
    found = re.findall("<li>(.*?)</li>", html_file.read_text())
    assert found == ["near", "&lt;b&gt;", "unseen"]


def test_names_and_messages_are_text_in_html(tmp_path: Path) -> None:
    outcome = _outcome(tmp_path, HOSTILE, message=HOSTILE)
    html = write_summary(build_document(Path(HOSTILE), tmp_path, [outcome]), tmp_path)[1].read_text()
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html


def test_a_comparison_tells_what_newly_fails_and_which_plans_changed(tmp_path: Path) -> None:
    def summary(*outcomes: ZooOutcome, earlier: Any = None) -> Any:
        return build_document(Path("z"), tmp_path, outcomes, earlier)

    old = {"overflow_fixer": "0.1.0", "tensorrt": "8.6.0"}
    new = {"overflow_fixer": "0.1.0", "tensorrt": "10.0.1"}
    earlier = summary(
        _outcome(tmp_path, "same", versions=old),
        _outcome(tmp_path, "breaks", versions=old),
        _outcome(tmp_path, "mends", "crashed", versions=old, content=""),
        _outcome(tmp_path, "pins", versions=old, content="d" * 64),
        _outcome(tmp_path, "stays", "crashed", versions=old),
        _outcome(tmp_path, "gone", versions=old),
    )
    now = summary(
        _outcome(tmp_path, "same", versions=new),
        _outcome(tmp_path, "breaks", "not_verified", versions=new),
        _outcome(tmp_path, "mends", versions=new),
        _outcome(tmp_path, "pins", versions=new, result=_result(tmp_path, ("b", "c"))),
        _outcome(tmp_path, "stays", "not_verified", versions=new),
        _outcome(tmp_path, "come", versions=new),
        earlier=earlier,
    )
    assert now["comparison"] == {
        "tool_version": earlier["tool_version"],
        "newly_failing": ["breaks"],
        "newly_passing": ["mends"],
        "changed_plans": [{"name": "pins", "added": ["c"], "removed": ["a"]}],
        "changed_content": ["pins"],
        "changed_versions": {"tensorrt": ["8.6.0", "10.0.1"]},
        "added": ["come"],
        "removed": ["gone"],
    }
    jsonschema.validate(now, read_schema(ZOO_SCHEMA))
    html = write_summary(now, tmp_path)[1].read_text()
    assert all(text in html for text in ("breaks", "tensorrt 8.6.0 → 10.0.1", "Plans with other pins"))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"schema_version": "0.9", "models": []}',
        '{"models": [3]}',
        '{"schema_version": "1.0", "tool_version": "1", "models": [], "models": []}',
        None,
    ],
)
def test_what_is_no_summary_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "zoo-report.json").write_text(content)
    with pytest.raises(ConfigError, match="Check the path given to --compare"):
        load_summary(tmp_path)


def test_links_are_relative_and_open_wherever_the_folder_is_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    outcomes = [
        _outcome(old, "a b#1?/50%25:&"),
        _outcome(old, "bad", "failed"),
        _outcome(old, "gone", "failed"),
    ]
    for outcome, names in zip(outcomes, (("report.html", "log.txt"), ("log.txt",), ()), strict=True):
        outcome.folder.mkdir(parents=True)
        for name in names:
            (outcome.folder / name).write_text(f"{name} of {outcome.name}")
    write_summary(build_document(Path("zoo"), old, outcomes), old)
    old.rename(new)
    found = re.findall('<a href="([^"]*)">([^<]*)</a>', (new / "zoo-report.html").read_text())
    links = [(unescape(text), (new / unquote(unescape(link))).read_text()) for link, text in found]
    good, bad = "a b#1?/50%25:&", "bad"
    assert links == [
        (good, f"report.html of {good}"),
        ("report", f"report.html of {good}"),
        ("log", f"log.txt of {good}"),
        (bad, f"log.txt of {bad}"),
        ("log", f"log.txt of {bad}"),
    ]
    rows = list(csv.DictReader(io.StringIO((new / "zoo-report.csv").read_text())))
    assert [(row["report"], row["log"]) for row in rows] == [
        (f"{good}/report.html", f"{good}/log.txt"),
        ("", "bad/log.txt"),
        ("", ""),
    ]


def test_a_folder_beside_the_zoos_is_linked_too(tmp_path: Path) -> None:
    outcome = _outcome(tmp_path / "elsewhere", "m")
    outcome.folder.mkdir(parents=True)
    (outcome.folder / "report.html").write_text("")
    (found,) = build_document(Path("zoo"), tmp_path / "out", [outcome])["models"]
    assert found["report"] == "../elsewhere/m/report.html"

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_factories import make_error, make_finding, make_report

from overflow_fixer.errors import OutputError
from overflow_fixer.records import OutputVerdict, Verification
from overflow_fixer.reports import RENDERERS, write_reports
from overflow_fixer.reports.document import SCHEMA_VERSION


@pytest.mark.parametrize("kind", ["json", "html", "text"])
def test_every_format_tells_the_verdict(tmp_path: Path, kind: str) -> None:
    assert "FIXED and verified: 2 outputs within tolerance" in RENDERERS[kind](make_report(tmp_path))


@pytest.mark.parametrize("kind", ["html", "text"])
def test_an_output_without_an_element_is_not_called_ok(tmp_path: Path, kind: str) -> None:
    """Beside one that is right, and alone."""
    empty = OutputVerdict(make_error("logits", element_count=0, snr_db=math.nan), True, "it had no element")
    right = OutputVerdict(make_error("boxes"), True, "")
    for outputs, count in (((empty, right), 1), ((empty,), 0)):
        found = Verification(outputs, 3)
        told = re.sub(r"<[^>]*>", " ", RENDERERS[kind](make_report(tmp_path, naive=found, fixed=found)))
        assert told.count("nothing compared") >= 2
        assert len(re.findall(r"\bok\b", told)) == 2 * count
    assert "failed" not in told


@pytest.mark.parametrize("kind", ["html", "text"])
def test_none_of_an_output_without_an_element_is_said_to_be_equal(tmp_path: Path, kind: str) -> None:
    error = make_error("labels", element_count=0, is_float=False, worst_batch_agreement=1.0)
    found = Verification((OutputVerdict(error, True, ""), OutputVerdict(make_error("boxes"), True, "")), 3)
    told = RENDERERS[kind](make_report(tmp_path, naive=found, fixed=found))
    assert "nothing compared" in told
    assert "% equal" not in told


@pytest.mark.parametrize("kind", ["html", "text"])
def test_a_finding_that_pins_nothing_is_not_said_to_leave_its_node_in_fp16(tmp_path: Path, kind: str) -> None:
    """The node may be pinned for another finding, as /conv3 is."""
    report = make_report(tmp_path)
    aside = (make_finding("/conv3", "mask", action="none"),)
    told = RENDERERS[kind](replace(report, plan=replace(report.plan, considered=aside)))
    assert re.search("1 finding (for the record, which|that) pins nothing", told)
    assert not re.search("left in FP16|not pinned", told)


def test_there_is_no_other_format() -> None:
    assert set(RENDERERS) == {"json", "html", "text"}


def test_both_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = write_reports(make_report(tmp_path), folder)
    assert written == (folder / "report.json", folder / "report.html")
    assert sorted(folder.iterdir()) == sorted(written)
    assert json.loads(written[0].read_text(encoding="utf-8"))["verdict"]["passed"] is True
    assert written[1].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_report_does_not_list_itself(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    listed = (*report.files, tmp_path / "report.json", tmp_path / "report.html")
    path, _ = write_reports(replace(report, files=listed), tmp_path)
    names = [Path(file["path"]).name for file in json.loads(path.read_text())["files"]]
    assert names == ["ranges.h5", "plan.json", "model.fp16.onnx"]


def test_an_old_report_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("old")
    write_reports(make_report(tmp_path), tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == SCHEMA_VERSION


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="could not be written"):
        write_reports(make_report(tmp_path), tmp_path / "file" / "out")

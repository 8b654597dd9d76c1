"""`fix-fp16 zoo`: what it says, what it leaves, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from zoo_models import write_model

from overflow_fixer.cli import main
from overflow_fixer.reports.numbers_json import parse_json
from overflow_fixer.reports.schemas import read_schema
from overflow_fixer.zoo.summary import ZOO_SCHEMA

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["zoo", *map(str, arguments)])
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_model(tmp_path / "zoo", name)
    return tmp_path / "zoo"


def test_a_zoo_is_fixed_and_told_model_by_model(run: Run, zoo: Path, tmp_path: Path) -> None:
    code, out, err = run(zoo, "--out", tmp_path / "out", "--workers", 2)
    assert code == 0
    lines = err.splitlines()
    assert [line[:6] for line in lines] == ["[1/2] ", "[2/2] "]
    assert all(": fixed, 2 pins, " in line for line in lines)
    assert out.startswith("2 fixed. Summary: ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "one",
        "two",
        "zoo-report.json",
        "zoo-report.html",
        "zoo-report.csv",
    }
    code, _, err = run(zoo, "--out", tmp_path / "out")
    assert (code, err.count("finished before")) == (0, 2)


def test_one_that_fails_is_exit_code_1_and_failed_runs_it_again(run: Run, tmp_path: Path) -> None:
    zoo = write_model(tmp_path / "zoo", "one").parent
    broken = write_model(zoo, "broken", lambda content: b"no model")
    code, _, err = run(zoo, "--out", tmp_path / "out")
    assert code == 1
    assert "broken: failed" in err
    document = parse_json((tmp_path / "out" / "zoo-report.json").read_text())
    jsonschema.validate(document, read_schema(ZOO_SCHEMA))
    assert [(found["report"], found["log"]) for found in document["models"]] == [
        (None, "broken/log.txt"),
        ("one/report.html", "one/log.txt"),
    ]
    assert "Expected" in (tmp_path / "out" / "broken" / "log.txt").read_text()
    write_model(zoo, "broken")
    code, out, err = run(zoo, "--out", tmp_path / "out", "--failed")
    assert (code, err.count("\n")) == (0, 1)
    assert "broken: fixed" in err
    assert out.startswith("2 fixed.")
    assert broken.is_file()


def test_only_some(run: Run, zoo: Path, tmp_path: Path) -> None:
    code, out, _ = run(
        zoo, "--out", tmp_path / "out", "--only", "t*", "--json", "--compare", _earlier(run, tmp_path)
    )
    document = json.loads(out)
    assert (code, [model["name"] for model in document["models"]]) == (0, ["two"])
    jsonschema.validate(document, read_schema(ZOO_SCHEMA))
    assert document["comparison"]["newly_passing"] == ["two"]
    assert document["comparison"]["removed"] == ["one"]


def _earlier(run: Run, tmp_path: Path) -> Path:
    """The summary of a run in which both failed."""
    for name in ("one", "two"):
        write_model(tmp_path / "spoilt", name, lambda content: b"no model")
    run(tmp_path / "spoilt", "--out", tmp_path / "earlier", "-q")
    return tmp_path / "earlier"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "three"], "--only three matches no model"),
        (["--gpus", "one"], "--gpus one is no list of numbers"),
        (["--compare", "nowhere"], "nowhere cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(
    run: Run, zoo: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    code, _, err = run(zoo, "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert told in err
    assert not (tmp_path / "out").exists()


def test_a_zoo_file_is_exit_code_2_where_it_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zoo.toml").write_text("[[model]]\npath = 3\n")
    code, _, err = run(tmp_path / "zoo.toml")
    assert code == 2
    assert "line 2: path: input should be a valid string" in err
    assert "line 1: calib: field required" in err

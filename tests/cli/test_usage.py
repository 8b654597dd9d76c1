"""Command lines that cannot be used: one paragraph, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from zoo_models import write_model

from overflow_fixer.cli import main

Refuse = Callable[..., str]


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    def run(*args: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        assert stop.value.code == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        return told

    return run


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ("skan", "m.onnx"),
            "'skan' is neither a verb (fix, scan, plan, build, verify, report, zoo, doctor) nor",
        ),
        (("skan", "m.onnx"), "nor the path of a model. Did you mean scan? See fix-fp16 --help"),
        (("m.onnx", "--calib", "d", "--out", ""), "'--out': \"\" names nothing. Expected the path"),
        (("scan", "m.onnx", "--calib", "d", "--out", ""), "'--out': \"\" names nothing. Expected the path"),
        (("build", "m.onnx", "--calib", ""), "'--calib': \"\" names nothing. Expected the path"),
        (("report", ""), '"" names nothing. Expected the path'),
        (("docter",), "Did you mean doctor? See"),
        (
            ("run", "m.onnx"),
            "'run' is neither a verb (fix, scan, plan, build, verify, report, zoo, doctor) nor the path of",
        ),
    ],
)
def test_a_word_that_was_meant_as_a_verb_is_named(refuse: Refuse, args: tuple[str, ...], told: str) -> None:
    assert told in refuse(*args)


@pytest.mark.parametrize(
    ("args", "page"),
    [
        (("m.onnx", "--masks", "no"), "fix-fp16 fix --help"),
        (("scan", "m.onnx", "--observe", "no"), "fix-fp16 scan --help"),
        (("plan", "m.onnx", "--calib", "d"), "fix-fp16 plan --help"),
        (("scan", "--merge", "a", "b"), "fix-fp16 scan --help"),
        (("report",), "fix-fp16 report --help"),
    ],
)
def test_the_help_that_is_named_is_that_of_the_verb(refuse: Refuse, args: tuple[str, ...], page: str) -> None:
    assert f"See {page} for what is expected." in refuse(*args)


def test_a_file_is_never_taken_for_a_mistyped_verb(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("skan.onnx", "./nowhere", "skan"):
        Path(name).touch()
        assert "No calibration data was named" in refuse(name)


def test_a_model_that_is_not_there_is_told_before_data_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for args in (["m.onx"], ["./nowhere"], ["scan", "m.onx"], ["verify", "m.onx"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        told = capsys.readouterr().err
        assert stop.value.code == 3, told
        assert f"{Path(args[-1])} cannot be read: No such file or directory. Expected an ONNX model" in told
        assert told.count("\n") == 1


def test_a_value_that_does_not_fit_is_told_with_its_flag(refuse: Refuse) -> None:
    told = refuse("m.onnx", "--calib", "data", "--threshold", "-1", "--batch-size", "0")
    assert "from --threshold: plan.threshold: input should be greater than 0, not -1.0" in told
    assert "from --batch-size: calibration: batch_size must be at least 1, not 0" in told


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no folder that is worked in")
def test_a_working_folder_that_was_removed_is_told(
    refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path, "m")
    zoo = tmp_path / "zoo.toml"
    zoo.write_text(f"[[model]]\npath = '{model}'\ncalib = 'random'\n")
    (tmp_path / "data").mkdir()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for args in ([str(model), "--calib", str(tmp_path / "data")], ["zoo", str(zoo)]):
        told = refuse(*args)
        assert told.startswith("fix-fp16: the working folder is not there any more. Expected one")


@pytest.mark.parametrize(
    ("flag", "verbs"),
    [
        (("--observe", "outputs"), ("plan", "build", "verify", "report")),
        (("--fast",), ("plan", "build", "verify", "report")),
        (("--provider", "cuda"), ("plan", "build", "verify", "report")),
        (("--verbose",), ("scan", "build", "verify", "report")),
        (("-v",), ("scan", "build", "verify", "report")),
    ],
)
def test_a_flag_that_a_verb_does_not_read_is_refused(
    refuse: Refuse, flag: tuple[str, ...], verbs: tuple[str, ...]
) -> None:
    for verb in verbs:
        told = refuse(verb, "m.onnx", *flag)
        assert "No such option" in told
        assert flag[0] in told


@pytest.mark.parametrize("flag", [("--fresh",), ("--fast",), ("--observe", "outputs"), ("--provider", "cpu")])
def test_what_a_scan_alone_heeds_is_refused_beside_ranges(refuse: Refuse, flag: tuple[str, ...]) -> None:
    told = refuse("m.onnx", "--calib", "random", "--ranges", "ranges.h5", *flag)
    assert "--ranges was given with --" in told
    assert flag[0] in told


@pytest.mark.parametrize(
    "flag",
    [
        ("--ranges", "ranges.h5"),
        ("--plan", "p.json"),
        ("--backend", "onnx"),
        ("--io-types", "fp16"),
        ("--typing", "strong"),
        ("--profile", "x:1x3:1x3:1x3"),
        ("--workspace-gib", "2"),
        ("--optimization-level", "0"),
        ("--tactic-source", "CUBLAS"),
        ("--timing-cache", "all.cache"),
        ("--compare",),
        ("--no-compare",),
    ],
)
def test_what_nothing_reads_beside_an_artifact_is_refused(refuse: Refuse, flag: tuple[str, ...]) -> None:
    told = refuse("verify", "m.onnx", "--calib", "random", "--artifact", "typed.onnx", *flag)
    assert f"--artifact was given with {flag[0].replace('no-', '')}. Expected one of them" in told

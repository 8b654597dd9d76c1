"""A run that was stopped or killed goes on behind the trials that it had finished."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_factories import make_engine_report, make_lost, make_report
from zoo_models import make_entry, write_model

from overflow_fixer.backends import BACKENDS
from overflow_fixer.config import BuildOptions, FixConfig, make_config
from overflow_fixer.pipeline import fix
from overflow_fixer.records import Artifact, FixReport, Verification
from overflow_fixer.reports.numbers_json import parse_json
from overflow_fixer.trials import bench
from overflow_fixer.trials.bench import Bench
from overflow_fixer.trials.finished import Trial, adopt_trials, drop_files, make_key, note_trial
from overflow_fixer.trials.folders import TrialFolders

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"


def _finish(folder: Path, report: FixReport, key: str = "k") -> Trial:
    """A finished trial of a report's artifact, with a file of three bytes."""
    folder.mkdir(parents=True)
    path = folder / "model.engine"
    path.write_bytes(b"abc")
    artifact = replace(report.artifact, path=path, files=(path,))
    note_trial(key, artifact, report.fixed)
    return Trial(key, artifact, report.fixed, (3,))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder in which a run that was killed had its trials."""
    run = tmp_path / ".trials-killed"
    run.mkdir()
    (run / "trials").touch()
    return run


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[TrialFolders]:
    """The folders of the run that comes next."""
    trials = TrialFolders(tmp_path)
    yield trials
    trials.close(lambda folder: False)


@pytest.mark.parametrize("make", [make_report, make_engine_report, make_lost])
def test_what_is_adopted_is_what_was_noted_to_the_last_bit(
    tmp_path: Path, make: Any, killed: Path, trials: TrialFolders
) -> None:
    noted = _finish(killed / "7", make(tmp_path))
    adopted = adopt_trials(tmp_path, trials)["k"]
    assert adopted.folder in trials
    assert adopted.artifact.path.read_bytes() == b"abc"
    moved = replace(noted.artifact, path=adopted.artifact.path, files=adopted.artifact.files)
    assert repr(adopted.artifact) == repr(moved)
    assert repr(adopted.verification) == repr(noted.verification)
    assert not killed.exists()


def test_what_is_not_whole_is_removed(tmp_path: Path, killed: Path, trials: TrialFolders) -> None:
    report = make_report(tmp_path)
    for number, spoil in enumerate(
        (
            lambda folder: (folder / "trial.json").write_text("{"),
            lambda folder: (folder / "trial.json").write_text('{"key": "k"}'),
            lambda folder: (folder / "trial.json").unlink(),
            lambda folder: (folder / "model.engine").write_bytes(b"ab"),
            lambda folder: (folder / "model.engine").unlink(),
        )
    ):
        folder = killed / str(number)
        _finish(folder, report)
        spoil(folder)
    assert adopt_trials(tmp_path, trials) == {}
    assert not killed.exists()


def test_of_trials_of_the_same_that_two_runs_had_finished_one_is_adopted(
    tmp_path: Path, killed: Path, trials: TrialFolders
) -> None:
    report = make_report(tmp_path)
    _finish(killed / "0", report)
    other = tmp_path / ".trials-killed-too"
    _finish(other / "0", report)
    (other / "trials").touch()
    adopted = adopt_trials(tmp_path, trials)
    assert adopted["k"].artifact.path.read_bytes() == b"abc"
    left = [path for path in tmp_path.glob(".trials-*/*") if path.is_dir()]
    assert left == [adopted["k"].folder]


def test_without_its_files_a_trial_still_tells_what_was_found(
    tmp_path: Path, killed: Path, trials: TrialFolders
) -> None:
    _finish(killed / "0", make_report(tmp_path))
    drop_files(killed / "0")
    adopted = adopt_trials(tmp_path, trials)["k"]
    assert (adopted.sizes, adopted.artifact.path.exists()) == ((), False)


def test_a_key_is_of_every_part() -> None:
    keys = {make_key("a", 1), make_key("a", 2), make_key("b", 1), make_key("a"), make_key(["a", 1])}
    assert len(keys) == 5
    assert make_key({"x": 1, "y": Path("p")}) == make_key({"y": Path("p"), "x": 1})


class _Counted:
    """Counts what a backend emits and runs; raises KeyboardInterrupt at the verification numbered `stop`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.emitted = self.verified = 0
        self.stop: int | None = None
        backend, verify = BACKENDS["onnx"], Bench.verify

        def emit(*args: Any) -> Artifact:
            self.emitted += 1
            return backend.emit(*args)

        def counted(bench: Bench, *args: Any) -> Verification:
            if self.verified == self.stop:
                raise KeyboardInterrupt
            self.verified += 1
            return verify(bench, *args)

        monkeypatch.setitem(BACKENDS, "onnx", replace(backend, emit=emit))
        monkeypatch.setattr(Bench, "verify", counted)


def _comparable(folder: Path) -> Any:
    """The report but for what is measured in seconds, with the bytes of the model."""
    document = parse_json((folder / "report.json").read_text())
    del document["durations_seconds"]
    return document, (folder / "model.fp16.onnx").read_bytes()


@pytest.mark.parametrize("stop", [0, 1])
def test_a_stopped_job_repeats_no_trial_that_it_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    config = FixConfig(
        model=SAMPLE / "model.onnx",
        calib=SAMPLE / "data",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx"),
    )
    fix(config)
    undisturbed = _comparable(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    counted = _Counted(monkeypatch)
    counted.stop = stop
    with pytest.raises(KeyboardInterrupt):
        fix(config)
    assert counted.verified == stop
    counted.stop = None
    assert fix(config).passed
    assert counted.verified == 2
    assert _comparable(tmp_path / "out") == undisturbed
    assert list((tmp_path / "out").glob(".trials-*")) == []


def _ask_more(config: FixConfig, monkeypatch: pytest.MonkeyPatch) -> FixConfig:
    return config.model_copy(update={"verify": config.verify.model_copy(update={"min_snr_db": 31.0})})


def _change_data(config: FixConfig, monkeypatch: pytest.MonkeyPatch) -> FixConfig:
    """The first batch becomes the same as the second."""
    first, second, *_ = sorted(Path(config.calib).iterdir())
    shutil.copy(second, first)
    return config


def _upgrade(config: FixConfig, monkeypatch: pytest.MonkeyPatch) -> FixConfig:
    monkeypatch.setattr(bench, "__version__", "another")
    return config


@pytest.mark.parametrize(
    ("change", "verified"), [(_ask_more, 3), (_change_data, 3), (_upgrade, 3), (None, 2)]
)
def test_other_settings_data_or_versions_make_other_trials(
    change: Any, verified: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SAMPLE / "data", tmp_path / "data")
    config = FixConfig(
        model=SAMPLE / "model.onnx",
        calib=tmp_path / "data",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx"),
    )
    counted = _Counted(monkeypatch)
    counted.stop = 1
    with pytest.raises(KeyboardInterrupt):
        fix(config)
    counted.stop = None
    other = config if change is None else change(config, monkeypatch)
    assert fix(other, existing="replace").passed
    assert counted.verified == verified


def test_a_job_that_fails_leaves_no_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("as a fault does")

    monkeypatch.setattr(Bench, "ship", fail)
    with pytest.raises(RuntimeError, match="as a fault does"):
        fix(make_entry(write_model(tmp_path, "m")).config)
    assert list((tmp_path / "out" / "m").glob(".trials-*")) == []


REPAIR = {
    "model": str(SAMPLE / "model.onnx"),
    "calib": str(SAMPLE / "data"),
    "out": "out",
    "build": {"backend": "onnx"},
    "verify": {"min_snr_db": 72},
    "repair": {"max_rounds": 4},
}
KILLED_REPAIR = """
import json, os, signal, sys
from overflow_fixer.config import make_config
from overflow_fixer.pipeline import fix
from overflow_fixer.trials.bench import Bench

verify, left = Bench.verify, int(sys.argv[2])

def count(bench, *arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return verify(bench, *arguments)

Bench.verify = count
fix(make_config(None, json.loads(sys.argv[1])))
"""


def _repair(folder: Path) -> tuple[int, int]:
    """Verifications, and rounds of the repair, of a run in the folder."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        counted = _Counted(patch)
        report = fix(make_config(None, REPAIR))
        assert report.artifact.path.is_file()
    return counted.verified, len(report.rounds)


def _kill_repair(folder: Path, stop: int) -> None:
    """A run in the folder that is killed at the verification numbered `stop`."""
    folder.mkdir()
    command = [sys.executable, "-c", KILLED_REPAIR, json.dumps(REPAIR), str(stop)]
    assert subprocess.run(command, cwd=folder, check=False).returncode == -signal.SIGKILL


def test_a_repair_that_was_killed_builds_no_round_again(tmp_path: Path) -> None:
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    verified, rounds = _repair(undisturbed)
    assert rounds > 3
    _kill_repair(killed, stop=verified - 1)
    shutil.copytree(killed, tmp_path / "bare")
    assert _repair(killed) == (1, rounds)
    assert _comparable(killed / "out") == _comparable(undisturbed / "out")
    assert list((killed / "out").glob(".trials-*")) == []
    for trial in (tmp_path / "bare" / "out").glob(".trials-*/*/"):
        drop_files(trial)  # as where other rounds won, under another budget
    assert _repair(tmp_path / "bare") == (2, rounds)
    assert _comparable(tmp_path / "bare" / "out") == _comparable(undisturbed / "out")

"""A zoo goes on where it was stopped, and runs again only what changed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from in_process_host import InProcessHost
from onnxruntime_extensions import get_library_path
from zoo_models import AddModel, make_entry, write_model

from overflow_fixer.config import FixConfig
from overflow_fixer.errors import CalibrationError, ConfigError
from overflow_fixer.locks import hold_folder
from overflow_fixer.reports.numbers_json import parse_json
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.fixing import fix_zoo
from overflow_fixer.zoo.machine import Machine
from overflow_fixer.zoo.outcomes import load_outcome
from overflow_fixer.zoo.pool import Host

MACHINE = Machine(workers=2, threads=1, memory_gib=8.0)
HERE = InProcessHost()
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def _fix(*entries: ZooEntry, force: bool = False, host: Host = HERE) -> dict[str, bool]:
    """Whether each outcome was there already."""
    return {found.name: found.is_earlier for found in fix_zoo(entries, host, force=force)}


def test_what_is_finished_is_not_run_again_and_what_failed_neither(add_model: AddModel) -> None:
    entries = [make_entry(add_model("good")), make_entry(add_model("bad", lambda content: b"no"))]
    assert _fix(*entries, host=MACHINE) == {"good": False, "bad": False}
    before = {path: path.stat().st_mtime_ns for path in entries[0].folder.iterdir()}
    assert _fix(*entries, host=MACHINE) == {"good": True, "bad": True}
    assert {path: path.stat().st_mtime_ns for path in entries[0].folder.iterdir()} == before
    assert _fix(*entries, force=True, host=MACHINE) == {"good": False, "bad": False}


def test_a_folder_for_temporary_files_that_cannot_be_used_is_not_needed(
    add_model: AddModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container whose file system is read-only but for the results has none."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not_there"))
    (found,) = fix_zoo([make_entry(add_model("good"))], MACHINE)
    assert found.passed, found.message


def _move(entry: ZooEntry, name: str, out: Path) -> ZooEntry:
    return replace(entry, name=name, config=entry.config.model_copy(update={"out": out}))


def test_a_folder_that_was_copied_is_judged_by_its_own_files(add_model: AddModel, tmp_path: Path) -> None:
    entry = make_entry(add_model("good"))
    _fix(entry)
    copy = _move(entry, "copy", tmp_path / "copy")
    shutil.copytree(entry.folder, copy.folder)
    (copy.folder / "good.fp16.onnx").unlink()
    assert _fix(copy) == {"copy": False}
    assert (copy.folder / "good.fp16.onnx").is_file()


@pytest.mark.parametrize("host", [HERE, MACHINE])
def test_a_folder_that_was_moved_is_not_run_again(host: Host, add_model: AddModel, tmp_path: Path) -> None:
    entry = make_entry(add_model("good"))
    _fix(entry)
    moved = _move(entry, "moved", entry.folder.rename(tmp_path / "moved"))
    (found,) = fix_zoo([moved], host)
    assert (found.is_earlier, found.name, found.folder) == (True, "moved", moved.folder)
    assert found.result is not None
    assert found.result.artifact == moved.folder / "good.fp16.onnx"


def test_a_zoo_is_not_run_again_from_another_working_folder(
    add_model: AddModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make_entry(add_model("good"))
    for place, is_earlier in ((tmp_path, False), (entry.config.model.parent / "out", True)):
        monkeypatch.chdir(place)
        names = ("model", "calib", "out")
        paths = {name: Path(os.path.relpath(tmp_path / getattr(entry.config, name))) for name in names}
        here = replace(entry, config=entry.config.model_copy(update=paths))
        (found,) = fix_zoo([here], MACHINE)
        assert (found.is_earlier, found.model) == (is_earlier, here.config.model)
        assert found.passed


@pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is told on Linux")
def test_a_model_whose_folder_was_in_use_is_run_again(add_model: AddModel) -> None:
    entry = make_entry(add_model("good"))
    entry.folder.mkdir(parents=True)
    with hold_folder(entry.folder):
        (found,) = fix_zoo([entry], HERE)
    assert (found.kind, found.exit_code) == ("failed", 2)
    assert f"in use by process {os.getpid()}" in found.message
    assert _fix(entry) == {"good": False}
    assert _fix(entry) == {"good": True}


def _touch(entry: ZooEntry) -> ZooEntry:
    os.utime(entry.config.model)
    os.utime(Path(entry.config.calib))
    return entry


def _change_model(entry: ZooEntry) -> ZooEntry:
    other = write_model(entry.config.model.parent / "other", entry.name, size=16)
    shutil.copy(other, entry.config.model)
    shutil.copy(other.with_suffix(".npz"), entry.config.calib)
    return entry


def _change_data(entry: ZooEntry) -> ZooEntry:
    np.savez(entry.config.calib, x=np.full((4, 8), 0.5, np.float32))
    return entry


def _change_settings(entry: ZooEntry) -> ZooEntry:
    plan = entry.config.plan.model_copy(update={"threshold": 5000.0})
    return replace(entry, config=entry.config.model_copy(update={"plan": plan}))


def _add_library(entry: ZooEntry) -> ZooEntry:
    library = entry.config.model.with_suffix(".so")
    shutil.copy(get_library_path(), library)
    return replace(entry, config=entry.config.model_copy(update={"custom_ops": (library,)}))


def _change_library(entry: ZooEntry) -> ZooEntry:
    """By a byte that is not loaded."""
    with entry.config.custom_ops[0].open("ab") as file:
        file.write(b" ")
    return entry


def _change_limits(entry: ZooEntry) -> ZooEntry:
    return replace(entry, timeout_minutes=7.0, memory_gib=4.0, priority=3, retries=0)


def _lose_artifact(entry: ZooEntry) -> ZooEntry:
    (entry.folder / f"{entry.name}.fp16.onnx").unlink()
    return entry


def _tear_artifact(entry: ZooEntry) -> ZooEntry:
    os.truncate(entry.folder / f"{entry.name}.fp16.onnx", 100)
    return entry


@pytest.mark.parametrize("name", ["ranges.h5", "plan.json", "report.json", "report.html"])
def test_a_model_whose_report_or_plan_is_gone_runs_again(add_model: AddModel, name: str) -> None:
    entry = make_entry(add_model("m"))
    _fix(entry)
    (entry.folder / name).unlink()
    assert _fix(entry) == {"m": False}
    assert (entry.folder / name).is_file()
    assert _fix(entry) == {"m": True}


def test_a_model_runs_again_only_if_content_settings_or_results_changed(add_model: AddModel) -> None:
    entry = make_entry(add_model("m"))
    _fix(entry)
    for change, is_earlier in (
        (_touch, True),
        (_change_limits, True),
        (_change_settings, False),
        (_change_data, False),
        (_change_model, False),
        (_lose_artifact, False),
        (_tear_artifact, False),
    ):
        entry = change(entry)
        assert _fix(entry) == {"m": is_earlier}, change
        assert _fix(entry) == {"m": True}, change
    assert (entry.folder / "m.fp16.onnx").is_file()


def test_a_model_runs_again_if_a_library_changed(add_model: AddModel) -> None:
    """In processes of their own: a library that was loaded stays as it was."""
    entry = make_entry(add_model("m"))
    _fix(entry)
    for change in (_add_library, _change_library):
        entry = change(entry)
        assert _fix(entry, host=MACHINE) == {"m": False}, change
        assert _fix(entry, host=MACHINE) == {"m": True}, change


def test_new_files_in_a_folder_of_data_are_seen(add_model: AddModel, tmp_path: Path) -> None:
    model = add_model("m")
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(model.with_suffix(".npz"), data / "0.npz")
    entry = make_entry(model)
    entry = replace(entry, config=entry.config.model_copy(update={"calib": data}))
    _fix(entry)
    assert _fix(entry) == {"m": True}
    shutil.copy(model.with_suffix(".npz"), data / "1.npz")
    assert _fix(entry) == {"m": False}


def test_new_data_behind_a_link_in_a_folder_of_data_are_seen(add_model: AddModel, tmp_path: Path) -> None:
    entry = _with_data(make_entry(add_model("m")), tmp_path / "data")
    for place in (tmp_path / "elsewhere", tmp_path / "data"):
        place.mkdir()
    np.save(tmp_path / "elsewhere" / "0.npy", np.ones((1, 8), np.float32))
    (tmp_path / "data" / "x").symlink_to(tmp_path / "elsewhere")
    _fix(entry)
    assert _fix(entry) == {"m": True}
    np.save(tmp_path / "elsewhere" / "0.npy", np.full((1, 8), 3, np.float32))
    assert _fix(entry) == {"m": False}


def test_weights_that_were_missing_or_torn_are_seen_once_they_are_there(tmp_path: Path) -> None:
    path, weights = _write_with_weights(tmp_path)
    content, entry = weights.read_bytes(), make_entry(path)
    weights.unlink()
    for given, kind in ((None, "failed"), (content[:4], "failed"), (content, "fixed")):
        if given is not None:
            weights.write_bytes(given)
        (found,) = fix_zoo([entry], HERE)
        assert (found.kind, found.is_earlier) == (kind, False)
        assert _fix(entry) == {"m": True}


def test_a_model_that_ran_out_of_time_is_run_again_once_its_weights_are_others(tmp_path: Path) -> None:
    path, weights = _write_with_weights(tmp_path)
    hasty = replace(make_entry(path), timeout_minutes=1e-6)
    (found,) = fix_zoo([hasty], MACHINE)
    assert found.kind == "timed_out"
    assert _fix(hasty, host=MACHINE) == {"m": True}
    weights.write_bytes(np.zeros(4, np.float32).tobytes())
    assert _fix(hasty, host=MACHINE) == {"m": False}


def _write_with_weights(folder: Path) -> tuple[Path, Path]:
    """A model with its data beside it, and the file of its weights."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Mul (x, w) }'
    path, weights = folder / "m.onnx", folder / "w.bin"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location=weights.name, size_threshold=0)
    np.savez(path.with_suffix(".npz"), x=np.ones(4, np.float32))
    return path, weights


def _with_data(entry: ZooEntry, calib: Path | str) -> ZooEntry:
    return replace(entry, config=entry.config.model_copy(update={"calib": calib}))


def test_other_data_are_run_whatever_was_finished_with_and_the_same_elsewhere_are_not(
    add_model: AddModel, tmp_path: Path
) -> None:
    entry = make_entry(add_model("m"))
    for place in ("data/0.npz", "data/1.npz", "moved/0.npz", "moved/1.npz"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(entry.config.calib, tmp_path / place)
    for calib, is_earlier in (
        (tmp_path / "data", False),
        ("random", False),
        (tmp_path / "data" / "0.npz", False),
        (tmp_path / "data", False),
        (tmp_path / "moved", True),
    ):
        changed = _with_data(entry, calib)
        assert _fix(changed) == {"m": is_earlier}, calib
        assert _fix(changed) == {"m": True}, calib
        told = parse_json((entry.folder / "report.json").read_text())["calibration"]
        assert told["synthetic"] is (calib == "random")
        assert is_earlier or told["source"].startswith(str(calib))


def test_a_scan_that_bad_data_ended_begins_anew_once_they_are_mended(
    add_model: AddModel, tmp_path: Path
) -> None:
    """What was scanned by then is of other data."""
    model = add_model("m")
    data = tmp_path / "data"
    data.mkdir()
    with np.load(model.with_suffix(".npz")) as arrays:
        feeds = dict(arrays)
    np.savez(data / "0.npz", **feeds)
    np.savez(data / "1.npz", **{name: np.full_like(array, np.nan) for name, array in feeds.items()})
    entry = make_entry(model)
    entry = replace(entry, config=entry.config.model_copy(update={"calib": data}))
    assert [found.exit_code for found in fix_zoo([entry], HERE)] == [CalibrationError.exit_code]
    assert (entry.folder / "ranges.h5").is_file()
    (data / "1.npz").unlink()
    assert [found.kind for found in fix_zoo([entry], HERE)] == ["fixed"]


def test_random_data_are_no_path(add_model: AddModel) -> None:
    entry = make_entry(add_model("m"))
    entry = replace(entry, config=entry.config.model_copy(update={"calib": "random"}))
    (found,) = fix_zoo([entry], HERE)
    assert found.kind == "fixed"
    assert found.result is not None
    assert "random" in found.result.warnings[0]


def test_a_limit_that_was_passed_is_tried_again_once_it_is_another(add_model: AddModel) -> None:
    entry = replace(make_entry(add_model("m")), timeout_minutes=1e-6)
    assert _fix(entry, host=MACHINE) == {"m": False}
    assert _fix(entry, host=MACHINE) == {"m": True}
    found = load_outcome(entry)
    assert found is not None
    assert found.kind == "timed_out"
    assert _fix(replace(entry, timeout_minutes=5.0), host=MACHINE) == {"m": False}


def test_configs_go_by_their_stems_and_two_of_a_name_are_refused(add_model: AddModel, tmp_path: Path) -> None:
    entry = make_entry(add_model("m"))
    (found,) = fix_zoo([entry.config], HERE)
    assert (found.name, found.kind) == ("m", "fixed")
    other = FixConfig.model_validate({**entry.config.model_dump(), "out": tmp_path / "elsewhere"})
    with pytest.raises(ConfigError, match="the name 'm'"):
        list(fix_zoo([entry.config, other], HERE))
    with pytest.raises(ConfigError, match="the output folder"):
        list(fix_zoo([entry, replace(entry, name="n")], HERE))


def _comparable(folder: Path) -> dict[str, Any]:
    """What a run leaves, but for what is measured in seconds or bytes of memory."""
    summary = parse_json((folder / "zoo-report.json").read_text())
    for model in summary["models"]:
        del model["seconds"], model["peak_memory_bytes"], model["attempts"]
        if model["result"]:
            del model["result"]["stage_seconds"], model["result"]["artifact"]
    models = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.fp16.onnx")}
    return {"models": summary["models"], "counts": summary["counts"], "files": models}


def _start(zoo: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "overflow_fixer",
        "zoo",
        str(zoo),
        "--out",
        str(out),
        "--workers",
        "2",
        "-q",
    ]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=_heed_ctrl_c)


def _heed_ctrl_c() -> None:
    """What a shell starts in the background, these tests perhaps, ignores it, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_killed_at_random_moments_it_comes_to_the_same_end(tmp_path: Path) -> None:
    zoo, out = tmp_path / "zoo", tmp_path / "out"
    for index in range(3):
        write_model(zoo, f"m{index}", (lambda content: content[:40]) if index == 1 else None)
    assert _start(zoo, tmp_path / "undisturbed").wait() == 1
    rng = np.random.default_rng(9)
    kills = 0
    for number in (*rng.permutation(SIGNALS), *rng.permutation(SIGNALS)):
        process = _start(zoo, out)
        time.sleep(rng.uniform(0.3, 2.0))
        process.send_signal(number)
        kills += process.wait() not in (0, 1)
    assert _start(zoo, out).wait() == 1
    assert kills
    assert _comparable(out) == _comparable(tmp_path / "undisturbed")
    assert not list(out.rglob(".trials-*"))

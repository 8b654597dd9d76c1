"""Files carried to a machine that does not see them, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_factories import make_report
from zoo_models import make_entry, write_model

from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.errors import OutputError
from overflow_fixer.pipeline import fix
from overflow_fixer.ranges.store import load_recording
from overflow_fixer.trials.finished import adopt_trials, note_trial
from overflow_fixer.trials.folders import TrialFolders
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.parcels import (
    list_results,
    move_entry,
    pack,
    pack_results,
    place_below,
    put_in_place,
    unpack,
)


@pytest.fixture
def entry(tmp_path: Path) -> ZooEntry:
    folder = tmp_path / "here"
    build = BuildOptions(backend="onnx", timing_cache=folder / "timings" / "timing.cache")
    return ZooEntry(
        "m",
        FixConfig(model=folder / "m.onnx", calib=str(folder / "data"), out=folder / "out" / "m", build=build),
    )


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_files_and_folders_come_out_as_they_went_in(tmp_path: Path) -> None:
    files = {"a.bin": b"\0\xff" * 9, "deep/b.txt": b"text", "empty": b""}
    paths = [_write(tmp_path / "from" / name, content) for name, content in files.items()]
    (tmp_path / "from" / "folder").mkdir()
    unpack(pack([*paths, tmp_path / "from" / "folder", tmp_path / "missing"]), tmp_path / "to")
    there = place_below(tmp_path / "to", tmp_path / "from")
    assert {name: (there / name).read_bytes() for name in files} == files
    assert list((there / "folder").iterdir()) == []
    assert not place_below(tmp_path / "to", tmp_path / "missing").exists()


def test_a_place_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    _write(tmp_path / "to", b"")
    with pytest.raises(OutputError):
        unpack({"/a": np.zeros(1, np.uint8)}, tmp_path / "to")


def test_an_entry_is_moved_with_all_of_its_files_but_not_what_is_relative(
    entry: ZooEntry, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    config = move_entry(entry, root).config
    assert config.model == root / entry.config.model.relative_to("/")
    assert str(config.calib) == f"{root}{entry.config.calib}"
    assert config.folder == root / entry.folder.relative_to("/")
    assert config.build.timing_cache == root / str(entry.config.build.timing_cache)[1:]
    nearby = ZooEntry("m", FixConfig(model=Path("m.onnx"), calib="random"))
    assert move_entry(nearby, root) == nearby


def test_what_is_told_there_of_paths_is_right_here(entry: ZooEntry, tmp_path: Path) -> None:
    root = tmp_path / "root"
    moved = move_entry(entry, root)
    _write(moved.folder / "report.json", f'{{"model": "{moved.config.model}"}}'.encode())
    _write(moved.folder / "m.engine", str(root).encode())
    results = pack_results(moved, root)
    put_in_place(results, [], entry.folder)
    assert (entry.folder / "report.json").read_text() == f'{{"model": "{entry.config.model}"}}'
    assert (entry.folder / "m.engine").read_text() == str(root)


def test_what_does_not_come_back_is_gone_here_with_the_folders_that_it_leaves_empty(entry: ZooEntry) -> None:
    stays = _write(entry.folder / "report.json", b"{}")
    gone = [_write(entry.folder / ".trials-x" / "0" / name, b"") for name in ("m.engine", "trial.json")]
    cache = entry.config.build.timing_cache
    assert cache is not None
    cache.parent.mkdir()
    put_in_place(pack([stays]), map(str, [stays, *gone, cache]), entry.folder)
    assert list(entry.folder.iterdir()) == [stays]
    assert cache.parent.is_dir()


def test_files_of_a_relative_folder_that_come_back_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("zoo") / "m"
    stays, gone = _write(folder / "ranges.h5", b"1"), _write(folder / ".trials-x" / "0" / "trial.json", b"")
    results = pack([stays])
    put_in_place(results, map(str, [stays, gone]), folder)
    assert list(folder.iterdir()) == [stays]


def test_trials_of_a_killed_run_are_gone_on_behind_on_another_machine(
    entry: ZooEntry, tmp_path: Path
) -> None:
    killed = TrialFolders(entry.folder)
    report = make_report(tmp_path)
    path = _write(killed.name_next() / "m.fp16.onnx", b"abc")
    note_trial("k", replace(report.artifact, path=path, files=(path,)), report.fixed)
    killed.close(lambda folder: True)
    unpack(pack(list_results(entry)), tmp_path / "root")
    there = move_entry(entry, tmp_path / "root").folder
    trials = TrialFolders(there)
    assert adopt_trials(there, trials)["k"].artifact.path.read_bytes() == b"abc"
    trials.close(lambda folder: False)
    assert list(there.iterdir()) == []


def test_what_only_a_run_needs_is_no_result(entry: ZooEntry) -> None:
    for name in (".progress.json", ".outcome.json.lock", ".report.json.1-ab.tmp", ".ray-0"):
        _write(entry.folder / name, b"")
    kept = _write(entry.folder / "outcome.json", b"{}")
    cache = entry.config.build.timing_cache
    assert list_results(entry) == [kept, cache]


def test_ranges_name_model_and_data_by_where_they_lie_here(tmp_path: Path) -> None:
    entry, root = make_entry(write_model(tmp_path / "here", "m")), tmp_path / "root"
    unpack(pack([entry.config.model, Path(entry.config.calib)]), root)
    moved = move_entry(entry, root)
    fix(moved.config)
    put_in_place(pack_results(moved, root), (), entry.folder)
    found = load_recording(entry.folder / "ranges.h5")
    assert found.model_path == str(entry.config.model)
    assert [part.calibration for part in found.parts] == [str(entry.config.calib)]


def test_what_is_not_there_is_not_packed_nor_what_no_file_can_be_called(tmp_path: Path) -> None:
    assert pack([tmp_path / "lost.bin", tmp_path / ("w" * 300)]) == {}

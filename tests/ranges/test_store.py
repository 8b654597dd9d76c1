"""ranges.h5: everything comes back, and what is not one is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from edited_ranges import edit_ranges
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import NAMES, assert_same_recording, recordings
from scan_cases import MemoryBatches, StoppingBatches, stop_before
from ways_to_observe import assert_same_table

from overflow_fixer import __version__
from overflow_fixer.errors import ModelError, OutputError, PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges, load_ranges
from overflow_fixer.ranges.recording import FORMAT_VERSION, Recording
from overflow_fixer.ranges.store import load_header, load_recording, save_recording

RECORDINGS = st.lists(NAMES, unique=True, max_size=4).flatmap(lambda tensors: recordings(tuple(tensors)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDINGS)
def test_everything_comes_back(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "ranges.h5"
    save_recording(recording, path)
    found = load_recording(path)
    assert_same_recording(found, recording)
    assert_same_table(found.table(), recording.table())
    assert found.table().model_stamp == recording.model_stamp
    header = load_header(path)
    assert (header.key, header.is_finished) == (recording.key, recording.is_finished)
    if recording.is_finished:
        assert_same_table(load_ranges(path), recording.table())
    else:
        with pytest.raises(PlanError, match="its scan was stopped"):
            load_ranges(path)


def test_the_layout_is_the_one_documented(
    small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path
) -> None:
    store = tmp_path / "out" / "ranges.h5"
    table = collect_ranges(small_graph, five_batches, store=store)
    assert load_ranges(store).model_stamp == table.model_stamp == small_graph.stamp
    with h5py.File(store) as file:
        for name in ("max_abs", "min", "max", "min_nonzero_abs"):
            assert file[name].dtype == np.float64
        for name in ("element_count", "nan_count", "inf_count", "over_fp16_count", "worst_batch"):
            assert file[name].dtype == np.int64
        assert file["tensor"].asstr()[:].tolist() == ["x", "w", "a", "y"]
        assert file["batches/name"].asstr()[:].tolist() == [f"batch{i}" for i in range(5)]
        assert file["batches/max_abs"].dtype == np.float32
        assert file["batches/max_abs"].shape == (4, 5)
        assert set(file["not_observed"]) == {"tensor", "reason"}
        assert {name: file["parts"][name][()].tolist() for name in file["parts"]} == {
            "calibration": [b"memory"],
            "fingerprint": [b"data"],
            "file": [b""],
            "synthetic": [False],
            "batch_count": [5],
        }
        attributes = dict(file.attrs)
    assert attributes["model_sha256"] == small_graph.sha256
    assert attributes["tool_version"] == __version__
    assert (attributes["calibration"], attributes["calibration_fingerprint"]) == ("memory", "data")
    assert (attributes["observe"], attributes["format_version"]) == ("reductions", FORMAT_VERSION)
    assert (attributes["batches_done"], attributes["batches_total"]) == (5, 5)
    assert (attributes["part_count"], attributes["synthetic"]) == (1, False)
    assert_same_table(load_ranges(store), table)


@pytest.fixture
def store(small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path) -> Path:
    """The file of a finished scan."""
    path = tmp_path / "out" / "ranges.h5"
    collect_ranges(small_graph, five_batches, store=path)
    return path


def test_what_is_no_ranges_file_is_refused(store: Path, tmp_path: Path) -> None:
    whole = store.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1]):
        store.write_bytes(content)
        with pytest.raises(PlanError, match=r"ranges\.h5 .* is not a ranges file"):
            load_ranges(store)
    with pytest.raises(PlanError, match="cannot be read"):
        load_ranges(tmp_path / "missing.h5")
    with pytest.raises(PlanError, match="cannot be read"):
        load_ranges(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("h5s.so: failed to map segment from shared object"),
        OSError("Can't synchronously read data (memory allocation failed for chunk)"),
    ],
)
def test_a_file_that_memory_has_no_room_for_is_not_told_as_a_bad_one(
    store: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_without_room(*given: object) -> None:
        raise error

    monkeypatch.setattr("overflow_fixer.ranges.store.open_hdf5", open_without_room)
    with pytest.raises(MemoryError, match=re.escape(str(error))):
        load_recording(store)


@pytest.mark.parametrize(
    "part",
    ["tensor", "nan_count", "batches/max_abs", "batches/name", "parts/file", "not_observed", "fractional"],
)
def test_a_file_that_lacks_a_part_is_refused(store: Path, part: str) -> None:
    with edit_ranges(store) as file:
        del file[part]
    with pytest.raises(PlanError, match=f"is not a ranges file of format {FORMAT_VERSION}"):
        load_ranges(store)


@pytest.mark.parametrize(
    ("attribute", "value"), [("format_version", 1), ("batches_done", 4), ("model_sha256", None)]
)
def test_a_file_that_contradicts_itself_is_refused(store: Path, attribute: str, value: Any) -> None:
    with edit_ranges(store) as file:
        del file.attrs[attribute]
        if value is not None:
            file.attrs[attribute] = value
    with pytest.raises(PlanError, match=f"is not a ranges file of format {FORMAT_VERSION}"):
        load_ranges(store)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min", np.zeros(3)),
        ("worst_batch", np.zeros((4, 1), np.int64)),
        ("batches/max_abs", np.zeros((4, 4), np.float32)),
        ("parts/batch_count", np.array([4])),
    ],
)
def test_columns_of_other_lengths_are_refused(store: Path, name: str, value: Any) -> None:
    with edit_ranges(store) as file:
        del file[name]
        file[name] = value
    with pytest.raises(PlanError, match="is not a ranges file"):
        load_ranges(store)


def test_a_name_that_hdf5_cannot_hold_is_refused(store: Path, tmp_path: Path) -> None:
    odd = replace(load_recording(store), tensors=("x", "w", "a\0b", "y"))
    with pytest.raises(ModelError, match="NUL"):
        save_recording(odd, tmp_path / "odd.h5")


def test_what_a_killed_writer_left_is_removed_when_it_is_old(store: Path) -> None:
    old = store.with_name(".ranges.h5.1-0123abcd.tmp")
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    save_recording(load_recording(store), store)
    assert list(store.parent.iterdir()) == [store]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from overflow_fixer.errors import OutputError
from overflow_fixer.ranges.store import load_recording, save_recording
recording = load_recording(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save_recording(recording, Path(sys.argv[1]))
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_write_that_runs_out_of_room_leaves_the_old_file(store: Path) -> None:
    before = store.read_bytes()
    command = [sys.executable, "-c", FULL_DISK, str(store)]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "could not be written" in said
    assert store.read_bytes() == before
    assert list(store.parent.iterdir()) == [store]


def test_a_scan_whose_store_cannot_be_written_says_so(
    small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="could not be written"):
        collect_ranges(small_graph, five_batches, store=tmp_path / "file" / "ranges.h5")


def test_the_first_error_is_told_when_the_store_fails_too(
    small_graph: Graph, five_batches: StoppingBatches, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    five_batches.error = ZeroDivisionError
    stop_before(2, small_graph, five_batches, tmp_path / "file" / "ranges.h5")


def test_who_stops_a_scan_is_told_that_it_could_not_be_kept(
    small_graph: Graph, five_batches: StoppingBatches, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    five_batches.stop = 2
    with pytest.raises(OutputError, match="could not be written"):
        collect_ranges(small_graph, five_batches, store=tmp_path / "file" / "ranges.h5")

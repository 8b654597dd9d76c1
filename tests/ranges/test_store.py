"""ranges.h5: everything comes back, what is not one is refused, and a stopped scan goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from scan_cases import MemoryBatches, assert_same_table, save_model, value_info

from overflow_fixer import __version__
from overflow_fixer.errors import ModelError, OutputError, PlanError
from overflow_fixer.graph import Graph, load_graph
from overflow_fixer.ranges import collect, collect_ranges, load_ranges, observers, save_ranges
from overflow_fixer.ranges.store import ScanKey, load_scan
from overflow_fixer.records import Batch, Range, RangeTable

COUNTS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@st.composite
def tables(draw: st.DrawFn) -> RangeTable:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    batches = draw(st.lists(NAMES, max_size=3))
    number = st.floats()
    ranges = tuple(
        Range(
            name,
            *(draw(number) for _ in range(4)),
            *(draw(COUNTS) for _ in range(4)),
            draw(st.integers(-1, 9)),
        )
        for name in names
    )
    matrix = draw(
        st.lists(st.floats(width=32), min_size=len(names) * len(batches), max_size=len(names) * len(batches))
    )
    shaped = np.array(matrix, np.float32).reshape(len(names), len(batches))
    skipped = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    return RangeTable("ab" * 32, draw(NAMES), draw(st.booleans()), ranges, tuple(batches), shaped, skipped)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_everything_comes_back(tmp_path: Path, table: RangeTable) -> None:
    path = tmp_path / "ranges.h5"
    save_ranges(table, path)
    found = load_ranges(path)
    assert_same_table(found, table)
    assert found.synthetic is table.synthetic
    assert type(found.ranges) is tuple


class Failing(MemoryBatches):
    """Data whose reading fails before the batch of index `stop`."""

    stop = 99

    def __iter__(self) -> Iterator[Batch]:
        for i, batch in enumerate(super().__iter__()):
            if i == self.stop:
                raise KeyboardInterrupt
            yield batch


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    weights = [numpy_helper.from_array(np.float32([3, -1e5]), "w")]
    return save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=["N", 2])], [value_info("y")], weights
    )


@pytest.fixture
def data() -> Failing:
    rng = np.random.default_rng(1)
    feeds = [{"x": (rng.standard_normal((3, 2)) * scale).astype(np.float32)} for scale in (1, 0, 9, 1, 4)]
    feeds[3]["x"][1] = np.nan
    return Failing(feeds)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the batches run, once each."""
    names: list[str] = []
    run = observers.run_session

    def recording(session: Any, outputs: Any, batch: Batch) -> Any:
        names.extend([batch.name] if names[-1:] != [batch.name] else [])
        return run(session, outputs, batch)

    monkeypatch.setattr(observers, "run_session", recording)
    return names


def stop_before(batch: int, graph: Graph, data: Failing, store: Path, **options: Any) -> None:
    data.stop = batch
    with pytest.raises(KeyboardInterrupt):
        collect_ranges(graph, data, store=store, **options)
    data.stop = 99


def test_the_layout_is_the_one_documented(graph: Graph, data: Failing, tmp_path: Path) -> None:
    store = tmp_path / "out" / "ranges.h5"
    table = collect_ranges(graph, data, store=store)
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
        attributes = dict(file.attrs)
    assert attributes["model_sha256"] == graph.sha256
    assert attributes["tool_version"] == __version__
    assert (attributes["calibration"], attributes["calibration_fingerprint"]) == ("memory", "data")
    assert (attributes["observe"], attributes["format_version"]) == ("reductions", 1)
    assert (attributes["batches_done"], attributes["batches_total"]) == (5, 5)
    assert not attributes["synthetic"]
    assert_same_table(load_ranges(store), table)


@pytest.mark.parametrize("done", [1, 2, 3, 4])
@pytest.mark.parametrize("observe", ["reductions", "outputs"])
def test_a_stopped_scan_goes_on_to_the_same_result(
    graph: Graph, data: Failing, tmp_path: Path, runs: list[str], done: int, observe: Any
) -> None:
    whole = collect_ranges(graph, data, observe=observe)
    store = tmp_path / "ranges.h5"
    stop_before(done, graph, data, store, observe=observe)
    partial, key = load_scan(store)
    assert (len(partial.batch_names), key.batches_total) == (done, 5)
    with pytest.raises(PlanError, match=f"{done} of 5 batches"):
        load_ranges(store)
    runs.clear()
    told: list[tuple[int, int]] = []
    table = collect_ranges(
        graph, data, observe=observe, store=store, progress=lambda *counts: told.append(counts)
    )
    assert runs == [f"batch{i}" for i in range(done, 5)]
    assert told[0] == (done + 1, 5)
    assert_same_table(table, whole)
    assert_same_table(load_ranges(store), whole)


def test_a_finished_scan_is_taken_as_it_is(
    graph: Graph, data: Failing, tmp_path: Path, runs: list[str]
) -> None:
    store = tmp_path / "ranges.h5"
    whole = collect_ranges(graph, data, store=store)
    runs.clear()
    before = store.stat().st_mtime_ns
    assert_same_table(collect_ranges(graph, data, store=store), whole)
    assert (runs, store.stat().st_mtime_ns) == ([], before)
    assert_same_table(collect_ranges(graph, data, store=store, resume=False), whole)
    assert len(runs) == 5


@pytest.mark.parametrize("change", ["model", "data", "fingerprint", "count", "observe", "version", "file"])
def test_a_scan_of_something_else_starts_anew(
    graph: Graph, data: Failing, tmp_path: Path, runs: list[str], change: str
) -> None:
    store = tmp_path / "ranges.h5"
    stop_before(3, graph, data, store)
    options: dict[str, Any] = {}
    if change == "model":
        graph = replace(graph, sha256="0" * 64)
    elif change in ("data", "fingerprint"):
        data.fingerprint = "other" if change == "data" else ""
    elif change == "count":
        data._feeds = data._feeds[:4]
    elif change == "observe":
        options["observe"] = "outputs"
    elif change == "version":
        with h5py.File(store, "r+") as file:
            file.attrs["tool_version"] = "0.0.0"
    else:
        store.write_bytes(b"not a ranges file")
    runs.clear()
    table = collect_ranges(graph, data, store=store, **options)
    assert runs == [f"batch{i}" for i in range(len(data))]
    assert_same_table(load_ranges(store), table)


def test_checkpoints_are_left_on_the_way(
    graph: Graph, data: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "ranges.h5"
    seen: list[int] = []

    def look(done: int, total: int) -> None:
        seen.append(len(load_scan(store)[0].batch_names) if store.exists() else 0)

    monkeypatch.setattr(collect, "CHECKPOINT_SECONDS", 0.0)
    collect_ranges(graph, data, store=store, progress=look)
    assert seen == [1, 2, 3, 4, 5]
    monkeypatch.setattr(collect, "CHECKPOINT_SECONDS", 1e9)
    store.unlink()
    seen.clear()
    collect_ranges(graph, data, store=store, progress=look)
    assert seen == [0, 0, 0, 0, 0]
    assert len(load_ranges(store).batch_names) == 5


def test_what_is_no_ranges_file_is_refused(graph: Graph, data: Failing, tmp_path: Path) -> None:
    store = tmp_path / "ranges.h5"
    collect_ranges(graph, data, store=store)
    whole = store.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1]):
        store.write_bytes(content)
        with pytest.raises(PlanError, match=r"ranges\.h5 .* is not a ranges file"):
            load_ranges(store)
    with pytest.raises(PlanError, match="cannot be read"):
        load_ranges(tmp_path / "missing.h5")
    with pytest.raises(PlanError, match="cannot be read"):
        load_ranges(tmp_path)


@pytest.mark.parametrize("part", ["tensor", "nan_count", "batches/max_abs", "batches/name", "not_observed"])
def test_a_file_that_lacks_a_part_is_refused(graph: Graph, data: Failing, tmp_path: Path, part: str) -> None:
    store = tmp_path / "ranges.h5"
    collect_ranges(graph, data, store=store)
    with h5py.File(store, "r+") as file:
        del file[part]
    with pytest.raises(PlanError, match="is not a ranges file of format 1"):
        load_ranges(store)


@pytest.mark.parametrize(
    ("attribute", "value"), [("format_version", 2), ("batches_done", 4), ("model_sha256", None)]
)
def test_a_file_that_contradicts_itself_is_refused(
    graph: Graph, data: Failing, tmp_path: Path, attribute: str, value: Any
) -> None:
    store = tmp_path / "ranges.h5"
    collect_ranges(graph, data, store=store)
    with h5py.File(store, "r+") as file:
        del file.attrs[attribute]
        if value is not None:
            file.attrs[attribute] = value
    with pytest.raises(PlanError, match="is not a ranges file of format 1"):
        load_ranges(store)


def test_columns_of_other_lengths_are_refused(graph: Graph, data: Failing, tmp_path: Path) -> None:
    store = tmp_path / "ranges.h5"
    collect_ranges(graph, data, store=store)
    with h5py.File(store, "r+") as file:
        del file["min"]
        file["min"] = np.zeros(3)
    with pytest.raises(PlanError, match="is not a ranges file"):
        load_ranges(store)


def test_a_name_that_hdf5_cannot_hold_is_refused(tmp_path: Path) -> None:
    found = Range("a\0b", 1, 1, 1, 1, 1, 0, 0, 0, 0)
    table = RangeTable("ab", "c", False, (found,), ("b",), np.ones((1, 1), np.float32))
    with pytest.raises(ModelError, match="NUL"):
        save_ranges(table, tmp_path / "ranges.h5")


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from overflow_fixer.errors import OutputError
from overflow_fixer.ranges import load_ranges, save_ranges
table = load_ranges(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save_ranges(table, Path(sys.argv[1]))
except OutputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_write_that_runs_out_of_room_leaves_the_old_file(
    graph: Graph, data: Failing, tmp_path: Path
) -> None:
    store = tmp_path / "out" / "ranges.h5"
    collect_ranges(graph, data, store=store)
    before = store.read_bytes()
    command = [sys.executable, "-c", FULL_DISK, str(store)]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "could not be written" in said
    assert store.read_bytes() == before
    assert list(store.parent.iterdir()) == [store]


def test_a_scan_whose_store_cannot_be_written_says_so(graph: Graph, data: Failing, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="could not be written"):
        collect_ranges(graph, data, store=tmp_path / "file" / "ranges.h5")


def test_the_first_error_is_told_when_the_store_fails_too(
    graph: Graph, data: Failing, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    stop_before(2, graph, data, tmp_path / "file" / "ranges.h5")


def test_keys_differ_with_the_model_file(graph: Graph, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(graph.path.read_bytes().replace(b"Exp", b"Abs"))
    keys = {ScanKey(g.sha256, "data", "reductions", 1) for g in (graph, load_graph(other))}
    assert len(keys) == 2

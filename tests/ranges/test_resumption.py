"""A stopped scan goes on, and nothing else that is in its place is replaced without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
from edited_ranges import edit_ranges
from onnx import helper
from scan_cases import MemoryBatches, StoppingBatches, save_model, stop_before, value_info
from ways_to_observe import assert_same_table

import overflow_fixer
from overflow_fixer.errors import CalibrationError, PlanError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect, collect_ranges, load_ranges, merge_ranges
from overflow_fixer.ranges.recording import FORMAT_VERSION
from overflow_fixer.ranges.resumption import Existing
from overflow_fixer.ranges.store import load_recording


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "out" / "ranges.h5"


@pytest.mark.parametrize("done", [1, 2, 3, 4])
@pytest.mark.parametrize("observe", ["reductions", "outputs"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_stopped_scan_goes_on_to_the_same_result(
    small_graph: Graph,
    five_batches: StoppingBatches,
    store: Path,
    runs: list[str],
    done: int,
    observe: Any,
    error: type[BaseException],
) -> None:
    whole = collect_ranges(small_graph, five_batches, observe=observe)
    five_batches.error = error
    stop_before(done, small_graph, five_batches, store, observe=observe)
    assert len(load_recording(store).batch_names) == done
    with pytest.raises(PlanError, match=f"{done} of 5 batches"):
        load_ranges(store)
    runs.clear()
    told: list[tuple[int, int]] = []
    five_batches.source = "moved"
    table = collect_ranges(
        small_graph, five_batches, observe=observe, store=store, progress=lambda *counts: told.append(counts)
    )
    assert runs == [f"batch{i}" for i in range(done, 5)]
    assert told == [(i, 5) for i in range(done, 6)]
    assert table.calibration == "moved"
    assert_same_table(replace(table, calibration="memory"), whole)
    assert_same_table(load_ranges(store), table)


def test_a_finished_scan_is_taken_as_it_is(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, runs: list[str]
) -> None:
    whole = collect_ranges(small_graph, five_batches, store=store)
    runs.clear()
    before = store.stat().st_mtime_ns
    for existing in get_args(Existing)[:-1]:
        assert_same_table(collect_ranges(small_graph, five_batches, store=store, existing=existing), whole)
    assert (runs, store.stat().st_mtime_ns) == ([], before)
    assert_same_table(collect_ranges(small_graph, five_batches, store=store, existing="overwrite"), whole)
    assert len(runs) == 5


CHANGES = {
    "model": "the model's sha256 (",
    "data": "the calibration data's fingerprint (data there, other now)",
    "no fingerprint": "perhaps the calibration data, which have no fingerprint",
    "count": "the number of batches (5 there, 4 now)",
    "observe": "the setting observe (reductions there, outputs now)",
    "tool": "overflow_fixer's version (0.0.0 there,",
    "ONNX Runtime": "ONNX Runtime's version (0.0.0 there,",
    "format": f"the file's format (1 there, {FORMAT_VERSION} now)",
}


def make_change(
    change: str, graph: Graph, data: StoppingBatches, store: Path
) -> tuple[Graph, dict[str, Any]]:
    """The graph and the options of a scan that differs from the one in `store` in this."""
    attributes = {"tool": "tool_version", "ONNX Runtime": "onnxruntime_version", "format": "format_version"}
    if change in attributes:
        with edit_ranges(store) as file:
            file.attrs[attributes[change]] = 1 if change == "format" else "0.0.0"
    elif change in ("data", "no fingerprint"):
        data.fingerprint = "other" if change == "data" else ""
    elif change == "count":
        data._feeds = data._feeds[:4]
    elif change == "model":
        other = graph.path.with_name("other.onnx")
        other.write_bytes(graph.path.read_bytes().replace(b"Exp", b"Abs"))
        graph = load_graph(other)
    return graph, {"observe": "outputs"} if change == "observe" else {}


def check_begins_anew(
    graph: Graph, data: MemoryBatches, store: Path, runs: list[str], **options: Any
) -> None:
    """Every batch is run, and the store holds what comes of that."""
    runs.clear()
    table = collect_ranges(graph, data, store=store, **options)
    assert runs == [f"batch{i}" for i in range(len(data))]
    assert_same_table(load_ranges(store), table)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("existing", ["keep", "renew"])
def test_an_unfinished_scan_of_something_else_is_refused_with_what_changed(
    small_graph: Graph,
    five_batches: StoppingBatches,
    store: Path,
    runs: list[str],
    change: str,
    existing: Any,
) -> None:
    stop_before(3, small_graph, five_batches, store)
    graph, options = make_change(change, small_graph, five_batches, store)
    before = store.read_bytes()
    runs.clear()
    with pytest.raises(PlanError) as refused:
        collect_ranges(graph, five_batches, store=store, existing=existing, **options)
    said = str(refused.value)
    assert "holds an unfinished scan (3 of 5 batches), and this one differs in " in said
    assert CHANGES[change] in said
    assert said.count("there,") == (change != "no fingerprint") + (change == "no fingerprint")
    assert "--fresh" in said
    assert (runs, store.read_bytes()) == ([], before)
    for replacing in ("replace", "overwrite"):
        store.write_bytes(before)
        check_begins_anew(graph, five_batches, store, runs, existing=replacing, **options)


@pytest.mark.parametrize("change", CHANGES)
def test_a_finished_scan_of_something_else_is_refused_or_renewed(
    small_graph: Graph, five_batches: StoppingBatches, store: Path, runs: list[str], change: str
) -> None:
    collect_ranges(small_graph, five_batches, store=store)
    graph, options = make_change(change, small_graph, five_batches, store)
    with pytest.raises(PlanError, match="holds a finished scan of 5 batches, and this one differs in"):
        collect_ranges(graph, five_batches, store=store, **options)
    before = store.read_bytes()
    for existing in ("renew", "replace"):
        store.write_bytes(before)
        check_begins_anew(graph, five_batches, store, runs, existing=existing, **options)


@pytest.mark.parametrize("existing", ["renew", "overwrite"])
def test_a_finished_scan_outlives_one_that_fails_in_its_place(
    small_graph: Graph,
    five_batches: MemoryBatches,
    store: Path,
    existing: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before its first checkpoint, that is."""
    collect_ranges(small_graph, five_batches, store=store)
    before = store.read_bytes()
    wrong = MemoryBatches([*five_batches._feeds[:3], {"x": np.ones((7, 7, 7), np.float32)}], "wrong data")
    with pytest.raises(CalibrationError, match="batch3"):
        collect_ranges(small_graph, wrong, store=store, existing=existing)
    assert store.read_bytes() == before
    monkeypatch.setattr(collect, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(CalibrationError, match="batch3"):
        collect_ranges(small_graph, wrong, store=store, existing=existing)
    assert load_recording(store).batch_names == ("batch0", "batch1", "batch2")


@pytest.mark.parametrize("existing", ["keep", "renew", "replace"])
def test_a_file_of_something_else_is_never_replaced_silently(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, existing: Any
) -> None:
    collect_ranges(small_graph, five_batches, store=store)
    whole = store.read_bytes()
    with h5py.File(store.with_name("foreign.h5"), "w") as file:
        file["weights"] = [1.0]
    for content in (b"", b"notes", whole[:-1], store.with_name("foreign.h5").read_bytes()):
        store.write_bytes(content)
        with pytest.raises(PlanError, match="is not a ranges file"):
            collect_ranges(small_graph, five_batches, store=store, existing=existing)
        assert store.read_bytes() == content
    table = collect_ranges(small_graph, five_batches, store=store, existing="overwrite")
    assert_same_table(load_ranges(store), table)


def test_a_merge_is_never_replaced_by_a_scan(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, tmp_path: Path
) -> None:
    others = MemoryBatches([{"x": five_batches._feeds[0]["x"] + 1}], "other data")
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for file, data in zip(files, (five_batches, others), strict=True):
        collect_ranges(small_graph, data, store=file)
    merge_ranges(files, store)
    for existing in get_args(Existing)[:-1]:
        with pytest.raises(PlanError, match=r"holds a merge of 2 scans \(6 batches\).*Go on from the merge"):
            collect_ranges(small_graph, five_batches, store=store, existing=existing)
    merge_ranges(files, store)
    with pytest.raises(PlanError, match="holds a merge of 2 scans"):
        merge_ranges(files[::-1], store)
    merge_ranges(files[::-1], store, existing="overwrite")
    assert load_ranges(store).batch_names[0] == "part 1 (memory): batch0"


def test_checkpoints_are_left_on_the_way(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(done: int, total: int) -> None:
        seen.append(len(load_recording(store).batch_names) if store.exists() else 0)

    monkeypatch.setattr(collect, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(collect, "_CHECKPOINT_SHARE", 1e9)
    collect_ranges(small_graph, five_batches, store=store, progress=look)
    assert seen == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(collect, "CHECKPOINT_SECONDS", 1e9)
    store.unlink()
    seen.clear()
    collect_ranges(small_graph, five_batches, store=store, progress=look)
    assert seen == [0] * 6
    assert len(load_ranges(store).batch_names) == 5


def test_slow_checkpoints_are_rare(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of one second, and batches of three: the next is due twenty seconds after it."""
    now, writes = [0.0], []
    write = collect.save_recording

    def write_slowly(recording: Any, path: Path) -> None:
        writes.append(len(recording.batch_names))
        now[0] += 1
        write(recording, path)

    def tick(done: int, total: int) -> None:
        now[0] += 3

    monkeypatch.setattr(collect, "save_recording", write_slowly)
    monkeypatch.setattr(collect.time, "monotonic", lambda: now[0])
    data = MemoryBatches(list(five_batches._feeds) * 4)
    collect_ranges(small_graph, data, store=store, progress=tick)
    assert writes == [3, 10, 17, 20]


@pytest.mark.parametrize("second", [MemoryError("again"), OSError("Can't write data"), PlanError("torn")])
def test_the_first_error_is_told_where_what_is_done_cannot_be_written(
    small_graph: Graph,
    five_batches: StoppingBatches,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    second: Exception,
) -> None:
    def refuse(*_: Any) -> None:
        raise second

    monkeypatch.setattr(collect, "save_recording", refuse)
    five_batches.error = CalibrationError
    stop_before(2, small_graph, five_batches, store)


_WITHOUT_MEMORY = """
import resource
from pathlib import Path
import numpy as np
from overflow_fixer.errors import FixError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch

taken = []

class Batches:
    source, synthetic, fingerprint = "two", False, "f"

    def __len__(self):
        return 2

    def __iter__(self):
        yield Batch("first", {"x": np.ones(4, np.float32)})
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
        while True:
            taken.append(bytearray(1 << 20))

try:
    collect_ranges(load_graph(Path("model.onnx")), Batches(), store=Path("ranges.h5"))
except FixError as error:
    print("Memory ran out" in str(error))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is limited otherwise")
def test_what_is_done_is_written_where_memory_has_run_out_before_hdf5_was_loaded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    save_model(tmp_path / "model.onnx", nodes, [value_info("x", dims=[4])], [value_info("y")])
    root = str(Path(overflow_fixer.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-500:]
    assert load_recording(tmp_path / "ranges.h5").batch_names == ("first",)

"""Merging scans of parts: exact, in any grouping, and refused where it would not be what one scan gives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from recordings import assert_same_recording, recordings
from scan_cases import (
    MemoryBatches,
    StoppingBatches,
    assert_same,
    save_model,
    stop_before,
    value_info,
)
from ways_to_observe import assert_same_table

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges, load_ranges, merge_ranges
from overflow_fixer.ranges.merge import join
from overflow_fixer.ranges.recording import Recording
from overflow_fixer.ranges.store import load_recording, save_recording
from overflow_fixer.records import Batch

TENSORS = ("x", "a", "y")
PARTS = st.integers(2, 5).flatmap(
    lambda count: st.tuples(*(recordings(TENSORS, number) for number in range(count)))
)


def join_by_chance(parts: Sequence[Recording], chance: random.Random) -> Recording:
    """Neighbours joined until one is left, any two or more at a time."""
    left = list(parts)
    while len(left) > 1:
        start = chance.randrange(len(left) - 1)
        stop = chance.randrange(start + 2, len(left) + 1)
        left[start:stop] = [join(left[start:stop])]
    return left[0]


@settings(max_examples=60, deadline=None)
@given(PARTS, st.randoms(use_true_random=False))
def test_any_grouping_gives_the_same(parts: tuple[Recording, ...], chance: random.Random) -> None:
    finished = [replace(part, key=replace(part.key, batches_total=len(part.batch_names))) for part in parts]
    joined = join(finished)
    assert_same_recording(join_by_chance(finished, chance), joined)
    assert joined.fractional == frozenset().union(*(part.fractional for part in parts))
    assert joined.model_path == max(part.model_path for part in parts)  # of those that tell it, which agree


class Single(MemoryBatches):
    """One of the batches, with the name it has in the whole."""

    def __init__(self, feeds: Sequence[dict[str, np.ndarray]], index: int) -> None:
        super().__init__([feeds[index]], f"data {index}")
        self.name = f"batch{index}"

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            yield replace(batch, name=self.name)


def test_a_merge_is_what_one_scan_of_all_the_data_gives(small_graph: Graph, tmp_path: Path) -> None:
    """Eight batches scanned one by one, and the files merged in any grouping."""
    rng = np.random.default_rng(3)
    feeds = [{"x": (rng.standard_normal((i + 1, 2)) * 10**i).astype(np.float32)} for i in range(8)]
    feeds[4]["x"][0] = np.nan
    feeds[5] = feeds[7]
    singles = [tmp_path / f"{i}.h5" for i in range(8)]
    for i, file in enumerate(singles):
        collect_ranges(small_graph, Single(feeds, i), store=file)
    whole = collect_ranges(small_graph, MemoryBatches(feeds))
    for seed in range(5):
        chance, files = random.Random(seed), list(singles)
        while len(files) > 1:
            start = chance.randrange(len(files) - 1)
            stop = chance.randrange(start + 2, len(files) + 1)
            merged = tmp_path / f"{seed} {len(files)}.h5"
            merge_ranges(files[start:stop], merged)
            files[start:stop] = [merged]
        assert_same_table(load_ranges(files[0]), whole)


@pytest.fixture
def files(small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path) -> list[Path]:
    """Three finished scans: of the five batches, and of one batch each."""
    found = []
    for name, feeds in (
        ("a", five_batches._feeds),
        ("b", [{"x": np.float32([[1, 2]])}]),
        ("c", [{"x": np.float32([[9, 2]])}]),
    ):
        data = MemoryBatches(feeds, f"data {name}")
        data.source = f"calib_{name}"
        found.append(tmp_path / name / "ranges.h5")
        collect_ranges(small_graph, data, store=found[-1])
    return found


def test_every_number_is_traced_to_its_batch_and_file(files: list[Path], tmp_path: Path) -> None:
    store = tmp_path / "merged" / "ranges.h5"
    table = merge_ranges(files, store)
    assert table.calibration == "calib_a, calib_b, calib_c"
    assert table.batch_names[0] == "part 1 (calib_a): batch0"
    assert table.batch_names[1:5] == ("batch1", "batch2", "batch3", "batch4")
    assert table.batch_names[5:] == ("part 2 (calib_b): batch0", "part 3 (calib_c): batch0")
    assert_same_table(load_ranges(store), table)
    parts = load_recording(store).parts
    assert [(part.file, part.fingerprint, part.batch_count) for part in parts] == [
        (str(files[0]), "data a", 5),
        (str(files[1]), "data b", 1),
        (str(files[2]), "data c", 1),
    ]
    first, last = load_ranges(files[0]), load_ranges(files[2])
    assert table.by_tensor["w"].element_count == 2 * 7
    assert table.by_tensor["w"].worst_batch == 0
    assert table.by_tensor["x"].max_abs == max(first.by_tensor["x"].max_abs, last.by_tensor["x"].max_abs)
    with h5py.File(store) as file:
        assert file.attrs["part_count"] == 3


def test_the_order_of_the_files_decides_that_of_the_batches_alone(files: list[Path]) -> None:
    one, other = merge_ranges(files), merge_ranges(files[::-1])
    by_name = [{r.tensor: replace(r, worst_batch=0) for r in table.ranges} for table in (one, other)]
    assert_same(by_name[0].values(), by_name[1].values())
    np.testing.assert_array_equal(one.batch_max_abs, other.batch_max_abs[:, [2, 3, 4, 5, 6, 1, 0]])
    for tensor in ("x", "a"):
        assert (
            one.batch_max_abs[:, one.by_tensor[tensor].worst_batch].tolist() in other.batch_max_abs.T.tolist()
        )


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("model_sha256", "0" * 64, "the model's sha256 ("),
        ("observe", "outputs", "the setting observe (reductions in "),
        ("tool_version", "0.0.0", "overflow_fixer's version"),
        ("onnxruntime_version", "0.0.0", "ONNX Runtime's version"),
    ],
)
def test_scans_of_different_things_are_refused(
    files: list[Path], attribute: str, value: Any, words: str
) -> None:
    other = load_recording(files[1])
    save_recording(replace(other, key=replace(other.key, **{attribute: value})), files[1])
    with pytest.raises(PlanError, match="cannot be merged") as refused:
        merge_ranges(files)
    assert words in str(refused.value)
    assert f"{files[0]} and {files[1]} cannot be merged" in str(refused.value)


def test_tensors_that_differ_are_refused(files: list[Path]) -> None:
    other = load_recording(files[1])
    save_recording(replace(other, tensors=("x", "w", "b", "y")), files[1])
    with pytest.raises(PlanError, match="differ in the tensors observed"):
        merge_ranges(files)


def test_an_unfinished_part_is_refused(
    small_graph: Graph, five_batches: StoppingBatches, files: list[Path], tmp_path: Path
) -> None:
    five_batches.fingerprint = "unfinished"
    stop_before(2, small_graph, five_batches, tmp_path / "u.h5")
    with pytest.raises(PlanError, match=r"u\.h5 holds 2 of 5 batches"):
        merge_ranges([*files, tmp_path / "u.h5"], tmp_path / "merged.h5")
    assert not (tmp_path / "merged.h5").exists()


def test_the_same_data_twice_are_refused(files: list[Path], tmp_path: Path) -> None:
    """Once named twice, and once in a merge."""
    with pytest.raises(PlanError, match="are scans of the same data"):
        merge_ranges([files[0], files[0]])
    for i, pair in enumerate((files[:2], files[1:])):
        merge_ranges(pair, tmp_path / f"{i}.h5")
    with pytest.raises(PlanError, match="are scans of the same data") as refused:
        merge_ranges([tmp_path / "0.h5", tmp_path / "1.h5"])
    merges = [f"{tmp_path / name} (with {files[1]} in it)" for name in ("0.h5", "1.h5")]
    assert str(refused.value).startswith(f"{merges[0]} and {merges[1]} are scans")
    with pytest.raises(PlanError) as refused:
        merge_ranges([tmp_path / "0.h5", files[1]])
    assert str(refused.value).startswith(f"{merges[0]} and {files[1]} are scans")


def test_parts_that_overlap_are_refused(
    small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path
) -> None:
    for name, feeds in {"a.h5": five_batches._feeds, "b.h5": five_batches._feeds[:3]}.items():
        collect_ranges(small_graph, MemoryBatches(feeds, name), store=tmp_path / name)
    with pytest.raises(PlanError, match="both hold batch batch0"):
        merge_ranges([tmp_path / "a.h5", tmp_path / "b.h5"])


def test_data_that_have_no_fingerprint_are_not_taken_for_the_same(small_graph: Graph, tmp_path: Path) -> None:
    for name, value in (("a.h5", 1), ("b.h5", 2)):
        data = MemoryBatches([{"x": np.float32([[value, 0]])}], fingerprint="")
        collect_ranges(small_graph, data, store=tmp_path / name)
    assert merge_ranges([tmp_path / "a.h5", tmp_path / "b.h5"]).by_tensor["x"].max_abs == 2


def test_without_a_tensor_no_two_batches_are_taken_for_one(tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    kind = TensorProto.INT64
    graph = save_model(tmp_path / "m.onnx", [node], [value_info("x", kind, [1])], [value_info("y", kind)])
    for name in "ab":
        collect_ranges(graph, MemoryBatches([{"x": np.array([1])}], name), store=tmp_path / f"{name}.h5")
    assert len(merge_ranges([tmp_path / "a.h5", tmp_path / "b.h5"]).batch_names) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_less_than_two_files_are_nothing_to_merge(files: list[Path], count: int) -> None:
    with pytest.raises(PlanError, match="nothing to merge"):
        merge_ranges(files[:count])

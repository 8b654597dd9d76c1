"""What damage a ranges file tells of by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scan_cases import MemoryBatches

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges, load_ranges, merge_ranges
from overflow_fixer.ranges.integrity import BLOCK_BYTES, check_values
from overflow_fixer.ranges.recording import Recording
from overflow_fixer.ranges.store import load_recording


@pytest.fixture
def store(small_graph: Graph, five_batches: MemoryBatches, tmp_path: Path) -> Path:
    """The file of a finished scan of the tensors x, w, a and y."""
    path = tmp_path / "ranges.h5"
    collect_ranges(small_graph, five_batches, store=path)
    return path


def _drop_last(file: Any) -> None:
    for name in [name for name, found in file.items() if isinstance(found, h5py.Dataset)]:
        if name != "fractional":
            _replace(file, name, file[name][:-1])
    _replace(file, "batches/max_abs", file["batches/max_abs"][:-1])


def _replace(file: Any, name: str, values: Any) -> None:
    del file[name]
    file[name] = values


DAMAGES: dict[str, Callable[[Any], object]] = {
    "all NaN": lambda file: file["max_abs"].__setitem__(..., np.nan),
    "all NaN in batches too": lambda file: [
        file[name].__setitem__(..., np.nan) for name in ("max_abs", "batches/max_abs")
    ],
    "negative": lambda file: file["max_abs"].__setitem__(2, -5),
    "ten times": lambda file: file["max_abs"].__setitem__(2, 10 * file["max_abs"][2]),
    "a minimum": lambda file: file["min"].__setitem__(1, 0.5),
    "a count": lambda file: file["over_fp16_count"].__setitem__(1, 1),
    "a worst batch that is not there": lambda file: file["worst_batch"].__setitem__(2, 77),
    "another worst batch": lambda file: file["worst_batch"].__setitem__(2, 4 - file["worst_batch"][2]),
    "an unknown tensor": lambda file: file["tensor"].__setitem__(2, b"nosuch"),
    "a tensor twice": lambda file: file["tensor"].__setitem__(2, file["tensor"][3]),
    "a batch's name": lambda file: file["batches/name"].__setitem__(0, b"other"),
    "a row less": _drop_last,
    "the observing": lambda file: file.attrs.__setitem__("observe", "outputs"),
    "the model": lambda file: file.attrs.__setitem__("model_sha256", "0" * 64),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(store: Path, damage: str) -> None:
    with h5py.File(store, "r+") as file:
        DAMAGES[damage](file)
    with pytest.raises(PlanError, match="is not what was written, by the checksum"):
        load_ranges(store)


def test_no_byte_can_change_what_is_read(store: Path) -> None:
    whole, random = store.read_bytes(), np.random.default_rng(3)
    for place in (0, 511, 512, len(whole) - 1, *random.integers(0, len(whole), 150).tolist()):
        damaged = bytearray(whole)
        damaged[place] ^= int(random.integers(1, 256))
        store.write_bytes(damaged)
        with pytest.raises(PlanError, match="is not a ranges file of format"):
            load_recording(store)


@pytest.mark.parametrize("cut", [0, 100, 512, 513, -1])
def test_a_file_that_is_cut_short_is_refused(store: Path, cut: int) -> None:
    store.write_bytes(store.read_bytes()[:cut])
    with pytest.raises(PlanError, match="is not a ranges file of format"):
        load_recording(store)


def test_a_file_that_lost_its_checksum_is_refused(store: Path) -> None:
    store.write_bytes(store.read_bytes()[BLOCK_BYTES:])
    with h5py.File(store) as file:
        assert len(file["tensor"]) == 4
    with pytest.raises(PlanError, match="it has no checksum in front of it"):
        load_recording(store)


def test_a_damaged_scan_is_neither_gone_on_with_nor_merged(
    small_graph: Graph, five_batches: MemoryBatches, store: Path, tmp_path: Path
) -> None:
    with h5py.File(store, "r+") as file:
        file["max_abs"][...] = np.nan
    with pytest.raises(PlanError, match="is not a ranges file"):
        collect_ranges(small_graph, five_batches, store=store)
    with pytest.raises(PlanError, match="is not a ranges file"):
        merge_ranges([store, store], tmp_path / "merged.h5")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensors": ("x", "w", "x", "y")}, "twice"),
        ({"worst_batch": np.array([0, 0, 5, 0])}, "none of its 5"),
        ({"batch_max_abs": np.ones((4, 5), np.float32)}, "not the largest"),
    ],
)
def test_values_that_no_scan_records_are_refused_whatever_the_checksum(
    store: Path, change: dict[str, Any], words: str
) -> None:
    recording: Recording = load_recording(store)
    assert not recording.inner
    check_values(recording)
    with pytest.raises(ValueError, match=words):
        check_values(replace(recording, **change))

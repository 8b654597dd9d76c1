"""Kernel timings, and the cuDNN that would abort the process that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overflow_fixer.backends.tensorrt import timings


def _load(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make it look as if this process had loaded these files of `folder`."""
    lines = (f"7f00-7f01 r-xp 00000000 00:1f 42    {folder / name}" for name in names)
    maps = folder / "maps"
    maps.write_text("\n".join(("7f02-7f03 rw-p 00000000 00:00 0", *lines)))
    monkeypatch.setattr(timings, "_MAPS", maps)


def test_without_cudnn_nothing_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _load(tmp_path, monkeypatch, "libnvinfer.so.10", "libcudnn.so.9")
    assert timings.find_obstacle() is None


def test_a_cudnn_whose_parts_lie_beside_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    _load(folder, monkeypatch, "libcudnn.so.8")
    (folder / "libcudnn_ops_infer.so.8").touch()
    assert timings.find_obstacle() is None


def test_a_cudnn_without_its_parts_would_abort_so_no_timings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "_PART", "libcudnn_nowhere.so.8")  # the real one may be on this machine
    _load(tmp_path, monkeypatch, "libcudnn.so.8")
    assert timings.find_obstacle() == "kernel timings are not kept: libcudnn_nowhere.so.8 of cuDNN is missing"
    assert not timings.attach_timings(None, tmp_path / "timing.cache")


def test_where_loaded_libraries_cannot_be_told_timings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "_MAPS", tmp_path / "nowhere")
    assert timings.find_obstacle() is None

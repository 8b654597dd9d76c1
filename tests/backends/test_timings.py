"""Kernel timings, and the cuDNN that would abort the process that keeps them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from fake_tensorrt import Plan, Script, fake_tensorrt

from overflow_fixer.backends.tensorrt import timings
from overflow_fixer.backends.tensorrt.logger import make_logger


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
    assert timings.find_obstacle() == (
        "kernel timings are not kept, so each build takes them anew: libcudnn_nowhere.so.8 is missing, which cuDNN 8 has beside "
        "libcudnn.so.8"
    )
    assert not timings.attach_timings(None, tmp_path / "timing.cache")


def test_where_loaded_libraries_cannot_be_told_timings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "_MAPS", tmp_path / "nowhere")
    assert timings.find_obstacle() is None


def test_of_builds_side_by_side_none_loses_what_another_found(tmp_path: Path) -> None:
    path, barrier = tmp_path / "all.cache", Barrier(8)
    path.write_bytes(b"here:earlier")

    def build(number: int) -> str | None:
        trt = fake_tensorrt("10.0", Script(outcomes=[Plan(timed=b"kernel %d" % number)]))
        builder = trt.Builder(make_logger(trt))
        config = builder.create_builder_config()
        assert timings.attach_timings(config, path)
        assert builder.build_serialized_network(builder.create_network(), config) is not None
        barrier.wait()
        return timings.save_timings(config, path)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(build, range(8))) == [None] * 8
    names = set(path.read_bytes().removeprefix(b"here:").splitlines())
    assert names == {b"earlier", *(b"kernel %d" % number for number in range(8))}

"""A folder of models with their data beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.folder import read_folder
from overflow_fixer.zoo.zoo_file import read_zoo_file


def _touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("files", "data"),
    [
        (["m.onnx", "m.calib/0.npz", "m.npz"], "m.calib"),
        (["m.onnx", "m.npz", "calib/m/0.npz"], "m.npz"),
        (["m.onnx", "m.json", "calib/0.npz"], "m.json"),
        (["m.onnx", "other.onnx", "other.h5", "calib/m/0.npz"], "calib/m"),
        (["m.onnx", "data/0.npz"], "data"),
    ],
)
def test_data_are_looked_for_in_this_order(tmp_path: Path, files: list[str], data: str) -> None:
    _touch(tmp_path, *files)
    entries = {entry.name: entry for entry in read_folder(tmp_path).entries}
    assert entries["m"].config.calib == tmp_path / data


def test_models_lie_at_any_depth_and_results_and_hidden_ones_are_none(tmp_path: Path) -> None:
    _touch(tmp_path, "a/x.onnx", "a/x.npz", "b/c/y.onnx", "b/c/y.npz", ".hidden/z.onnx", "a/x.fp16.onnx")
    _touch(tmp_path, "a/.x.onnx", "a/.x.npz")
    _touch(tmp_path, "x.fp16/fused/x.onnx", "a.zoo/y/fused/y.onnx", "a.zoo/y/outcome.json")
    _touch(tmp_path, "fused/w.onnx", "fused/w.npz", "log.txt")
    zoo = read_folder(tmp_path, tmp_path / "out")
    assert [entry.name for entry in zoo.entries] == ["a/x", "b/c/y", "fused/w"]
    assert zoo.entries[1].folder == tmp_path / "out" / "b/c/y"


def test_links_are_followed_and_spellings_do_not_matter(tmp_path: Path) -> None:
    _touch(tmp_path, "elsewhere/two/m.onnx", "elsewhere/two/m.npz", "zoo/one/M.ONNX", "zoo/one/M.npz")
    _touch(tmp_path, "zoo/one/X.FP16.ONNX")
    (tmp_path / "zoo" / "two").symlink_to("../elsewhere/two")
    (tmp_path / "zoo" / "again").symlink_to("../elsewhere/two")
    (tmp_path / "zoo" / "one" / "round").symlink_to("..")
    (tmp_path / "elsewhere" / "two" / "self").symlink_to(".")
    (tmp_path / "zoo" / "nowhere").symlink_to("gone")
    (tmp_path / "zoo" / "one" / "out").symlink_to("../..")  # where models without data are
    _touch(tmp_path, "lacking.onnx")
    assert [entry.name for entry in read_folder(tmp_path / "zoo").entries] == ["again/m", "one/M"]


def test_a_folder_named_as_a_model_is_none_and_models_in_it_are(tmp_path: Path) -> None:
    _touch(tmp_path, "a.onnx", "a.npz", "repository.onnx/m.onnx", "repository.onnx/calib/0.npz")
    (tmp_path / "empty.onnx").mkdir()
    assert [entry.name for entry in read_folder(tmp_path).entries] == ["a", "repository.onnx/m"]
    (tmp_path / "zoo.toml").write_text('[[model]]\npath = "*.onnx"\ncalib = "{stem}.npz"\n')
    assert [entry.name for entry in read_zoo_file(tmp_path / "zoo.toml").entries] == ["a"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"m\xff.onnx")
    try:
        _touch(tmp_path, name, os.fsdecode(b"m\xff.npz"), "ok.onnx", "ok.npz")
    except OSError:
        pytest.skip("this file system takes no such names")
    with pytest.raises(
        ConfigError, match=r"cannot be used as a zoo: the path '.*m\\udcff.onnx' is not UTF-8"
    ):
        read_folder(tmp_path)
    (tmp_path / "zoo.toml").write_text('[[model]]\npath = "*.onnx"\ncalib = "{stem}.npz"\n')
    with pytest.raises(ConfigError, match=r"line 1: .*m\\udcff.onnx' is not UTF-8"):
        read_zoo_file(tmp_path / "zoo.toml")


def test_results_go_beside_the_caller_by_default(tmp_path: Path) -> None:
    _touch(tmp_path, "a.onnx", "a.npz")
    assert read_folder(tmp_path).folder == Path(f"{tmp_path.name}.zoo")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["a.onnx", "b.onnx", "calib/0.npz"], "no data was found for"),
        ([], "it has no .onnx file"),
    ],
)
def test_a_model_without_data_is_refused_before_anything_runs(
    tmp_path: Path, files: list[str], told: str
) -> None:
    _touch(tmp_path, *files)
    with pytest.raises(ConfigError, match=told) as refused:
        read_folder(tmp_path)
    assert all(name in str(refused.value) for name in files if name.endswith(".onnx"))

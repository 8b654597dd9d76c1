"""Files appear whole or not at all."""

import builtins
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from overflow_fixer.errors import ModelError, OutputError
from overflow_fixer.files import (
    has_unfinished,
    make_folder,
    need_folder,
    open_hdf5,
    refuse_os_errors,
    replace_file,
    replace_files,
    sha256_of,
    write_text,
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "one")
    with pytest.raises(RuntimeError):
        _write_half(path)
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_writers_leave_that_were_killed_is_known_from_a_users_files(tmp_path: Path) -> None:
    for name in (".a.tmp", "a.7-0123abcd.tmp", "trials"):
        (tmp_path / name).touch()
    assert not has_unfinished(tmp_path)
    assert not has_unfinished(tmp_path / "nothing")
    with replace_file(tmp_path / "b.txt") as temporary:
        temporary.touch()
        assert has_unfinished(tmp_path)
    assert not has_unfinished(tmp_path)


def _write_half(path: Path) -> None:
    with replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def _write_both(path: Path, text: str) -> None:
    with replace_files(path) as staged:
        assert staged.name == path.name
        assert list(staged.parent.iterdir()) == []
        for file in (staged, staged.with_name(f"{path.name}.data")):
            file.write_text(text)
            if text == "half":
                raise RuntimeError


def test_files_that_belong_together_are_replaced_together(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.onnx"
    for text in ("one", "two"):
        _write_both(path, text)
        with pytest.raises(RuntimeError):
            _write_both(path, "half")
        found = {file.name: file.read_text() for file in path.parent.iterdir()}
        assert found == {"a.onnx": text, "a.onnx.data": text}


def test_the_file_that_the_others_belong_to_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it finds the others there; a disk that fails before leaves the old one."""
    _write_both(tmp_path / "a.onnx", "one")
    moved: list[str] = []

    def move(source: Path, target: Path) -> None:
        moved.append(target.name)
        raise OSError("the disk is gone")

    monkeypatch.setattr("os.replace", move)
    with pytest.raises(OutputError, match="could not be written"):
        _write_both(tmp_path / "a.onnx", "two")
    assert moved == ["a.onnx.data"]
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "a.onnx": "one",
        "a.onnx.data": "one",
    }


def test_data_of_an_earlier_file_does_not_stay_beside_one_without(tmp_path: Path) -> None:
    _write_both(tmp_path / "a.onnx", "one")
    (tmp_path / "b.onnx.data").write_text("another's")
    with replace_files(tmp_path / "a.onnx") as staged:
        staged.write_text("two")
    assert {file.name for file in tmp_path.iterdir()} == {"a.onnx", "b.onnx.data"}


def test_data_stay_where_no_earlier_file_was_that_had_them(tmp_path: Path) -> None:
    (tmp_path / "a.onnx.data").write_text("another's")
    with replace_files(tmp_path / "a.onnx") as staged:
        staged.write_text("one")
    assert {file.name for file in tmp_path.iterdir()} == {"a.onnx", "a.onnx.data"}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="could not be written"):
        write_text(tmp_path / "file" / "a.txt", "text")
    with pytest.raises(OutputError, match="could not be written"):
        make_folder(tmp_path / "file" / "folder")
    with pytest.raises(OutputError, match=r"a\.onnx could not be written"):
        _write_both(tmp_path / "file" / "a.onnx", "text")


def test_what_is_made_elsewhere_first_is_told_by_where_it_goes_and_how_large_it_is() -> None:
    def tell(path: str, size_bytes: int | None = None) -> str:
        with pytest.raises(OutputError) as told, refuse_os_errors(Path(path), size_bytes):
            raise OSError(28, "No space left on device")
        return str(told.value)

    staged = "q/.trials-gvd1aj92/0/.vit.fp16.onnx.26563-13435a3b.tmp/vit.fp16.onnx"
    assert tell(staged, 5_430_000).startswith(
        "q/vit.fp16.onnx could not be written: No space left on device. Expected a folder that can be written to, with room "
        "left on its disk for a file of 5.4 MB. Name another with --out"
    )
    assert tell("q/.trials-gvd1aj92/0").startswith("q could not be written")
    assert tell("/a/.hidden.tmp/x.json", 12_340).startswith("/a/.hidden.tmp/x.json could not be written")
    assert "for a file of 12.3 kB." in tell("x.json", 12_340)
    assert "left on its disk. Name" in tell("x.json")


def test_sha256_is_that_of_the_bytes_in_turn(tmp_path: Path) -> None:
    for name, data in (("a", b"x" * 5_000_000), ("b", b"yz")):
        (tmp_path / name).write_bytes(data)
    expected = hashlib.sha256(b"x" * 5_000_000 + b"yz").hexdigest()
    assert sha256_of([tmp_path / "a", tmp_path / "b"]) == expected


@pytest.mark.parametrize("error", [ModelError("typed.onnx cannot be read"), FileNotFoundError("gone")])
@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_removed_is_what_an_error_tells(
    error: Exception, again: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    @need_folder(folder)
    def fail() -> None:
        folder.rename(tmp_path / "elsewhere")
        if again:
            folder.mkdir()
        raise error

    with pytest.raises(OutputError, match="out was removed while it was in use") as told:
        fail()
    assert told.value.__cause__ is error


def test_other_errors_stay_where_the_folder_does(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"), need_folder(tmp_path):
        raise ModelError("typed.onnx cannot be read")
    with pytest.raises(ModelError, match="cannot be read"), need_folder(tmp_path / "never there"):
        raise ModelError("typed.onnx cannot be read")


@pytest.mark.parametrize(
    ("told", "raised"),
    [
        ("h5s.so: failed to map segment from shared object", MemoryError),
        ("No module named 'h5py'", ImportError),
    ],
)
def test_libraries_that_memory_has_no_room_for_are_a_want_of_memory(
    told: str, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name == "h5py":
            raise ImportError(told)
        return usual(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(raised, match=re.escape(told)):
        open_hdf5(tmp_path / "a.h5", "w")

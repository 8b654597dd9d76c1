"""Files appear whole or not at all."""

import hashlib
import os
from pathlib import Path

import pytest

from overflow_fixer.errors import OutputError
from overflow_fixer.files import make_folder, replace_file, sha256_of, write_text


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


def _write_half(path: Path) -> None:
    with replace_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="could not be written"):
        write_text(tmp_path / "file" / "a.txt", "text")
    with pytest.raises(OutputError, match="could not be written"):
        make_folder(tmp_path / "file" / "folder")


def test_sha256_is_that_of_the_bytes_in_turn(tmp_path: Path) -> None:
    for name, data in (("a", b"x" * 5_000_000), ("b", b"yz")):
        (tmp_path / name).write_bytes(data)
    expected = hashlib.sha256(b"x" * 5_000_000 + b"yz").hexdigest()
    assert sha256_of([tmp_path / "a", tmp_path / "b"]) == expected

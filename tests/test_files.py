"""Files appear whole or not at all."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from overflow_fixer.errors import OutputError
from overflow_fixer.files import hold_lock, make_folder, replace_file, sha256_of, write_text


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


def test_whoever_holds_the_lock_of_a_path_is_alone(tmp_path: Path) -> None:
    path, barrier = tmp_path / "deep" / "count", Barrier(6)

    def add_one(_: int) -> None:
        barrier.wait()
        for _ in range(10):
            with hold_lock(path):
                write_text(path, str(int(path.read_text()) + 1 if path.exists() else 1))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add_one, range(6)))
    assert path.read_text() == "60"


def test_what_cannot_be_locked_goes_on_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.lock").mkdir()  # no file, so nothing to lock
    with hold_lock(tmp_path / "a.txt"):
        write_text(tmp_path / "a.txt", "written")
    assert (tmp_path / "a.txt").read_text() == "written"
    with hold_lock(tmp_path / "b.txt"), hold_lock(tmp_path / "b.txt", 0.01):
        write_text(tmp_path / "b.txt", "written")
    assert (tmp_path / "b.txt").read_text() == "written"

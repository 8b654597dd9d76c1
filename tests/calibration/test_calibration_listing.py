from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_fixer.calibration.listing import list_data, natural_key
from overflow_fixer.errors import CalibrationError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()


def names(root):
    listing = list_data(root)
    return [listing.name_of(file) for file in listing.files]


def fault(root):
    with pytest.raises(CalibrationError, match="Expected") as caught:
        list_data(root)
    assert str(root) in str(caught.value)
    return str(caught.value)


def test_documents_and_hidden_files_are_left_out(tmp_path):
    touch(tmp_path, "b.npz", ".DS_Store", "README", "README.md", "LICENSE", "make.py", "notes.txt", "c.toml")
    touch(tmp_path, ".cache/x.npz", "__pycache__/make.py")
    assert names(tmp_path) == ["b.npz"]


def test_natural_order(tmp_path):
    touch(tmp_path, "b10.npz", "b9.npz", "b09.npz", "a11.npz")
    assert names(tmp_path) == ["a11.npz", "b09.npz", "b9.npz", "b10.npz"]


@settings(deadline=None)
@given(st.lists(st.text(max_size=6), unique=True))
def test_the_order_is_total_and_of_numbers(texts):
    assert len({str(natural_key(text)) for text in texts}) == len(texts)
    sorted(texts, key=natural_key)
    assert natural_key("a2") < natural_key("a10") < natural_key("b1")


def test_files_of_subfolders_where_the_folder_has_none(tmp_path):
    touch(tmp_path, "y/10.npy", "y/2.npy", "x/1.npy", "README.md")
    assert names(tmp_path) == ["x/1.npy", "y/2.npy", "y/10.npy"]
    listing = list_data(tmp_path)
    assert listing.is_nested
    with pytest.raises(CalibrationError, match="has its data in subfolders"):
        listing.flat_files()


def test_a_file_is_the_only_one(tmp_path):
    touch(tmp_path, "a.npz", "b.npz")
    assert names(tmp_path / "a.npz") == ["a.npz"]
    assert list_data(tmp_path / "a.npz").flat_files() == (tmp_path / "a.npz",)


def test_a_folder_without_data_says_what_it_holds(tmp_path):
    assert "found: nothing" in fault(tmp_path)
    touch(tmp_path, "README.md", "sub/notes.txt")
    assert "found: README.md, sub" in fault(tmp_path)


def test_data_in_two_places_is_refused(tmp_path):
    touch(tmp_path, "a.npz", "more/b.npz")
    assert "both in itself (a.npz) and in a subfolder (more/b.npz)" in fault(tmp_path)


def test_a_path_that_is_not_there(tmp_path):
    assert "No such file" in fault(tmp_path / "missing")


def test_a_broken_link_is_not_passed_over(tmp_path):
    touch(tmp_path, "a.npz")
    (tmp_path / "b.npz").symlink_to(tmp_path / "gone.npz")
    assert names(tmp_path) == ["a.npz", "b.npz"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"b\xff.npz")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes no such names")
    with pytest.raises(CalibrationError, match=r"The name of the file '.*b\\udcff.npz' is not UTF-8"):
        list_data(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX has pipes with names")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.npz")
    for place in (tmp_path, tmp_path / "b.npz"):
        with pytest.raises(CalibrationError, match=r"b\.npz is not a regular file"):
            list_data(place)

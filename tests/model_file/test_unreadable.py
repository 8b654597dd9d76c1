"""What is said of a model file that cannot be read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.unreadable import check_there, refuse_unreadable


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be read: No such file.*Check the path\."):
        check_there(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be read: Not a directory"):
        check_there(tmp_path / "file" / "m.onnx")
    check_there(tmp_path / "file")
    check_there(Path("no\0path"))  # whoever opens it says so


def test_of_too_many_open_files_the_path_is_not_blamed() -> None:
    told = str(refuse_unreadable(Path("m.onnx"), OSError(errno.EMFILE, "Too many open files", "m.onnx")))
    assert told.startswith("m.onnx cannot be read: no more files can be opened")
    assert "Check the path" not in told


def test_one_without_permission_is_told_with_what_to_do() -> None:
    told = str(refuse_unreadable(Path("m.onnx"), PermissionError(13, "Permission denied", "m.onnx")))
    assert told.startswith(
        "m.onnx cannot be read: Permission denied. Expected an ONNX model file that this user may"
    )
    assert "permissions" in told

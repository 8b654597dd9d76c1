"""Files that are there and may not be read: told by whoever reads them, with its exit code and what to do.

By a user without the right to read whatever there is, which root has unless it gives it up.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from zoo_models import write_model

from overflow_fixer.cli import main

_MAY_ALL = hasattr(os, "geteuid") and os.geteuid() == 0
_VERSION_3 = 0x20080522
_READ_WHATEVER_THERE_IS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
Refuse = Callable[..., str]

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or (_MAY_ALL and sys.platform != "linux"),
    reason="here nothing is closed to this user",
)


def _call(name: str, data: ctypes.Array[ctypes.c_uint32]) -> None:
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    if getattr(ctypes.CDLL(None, use_errno=True), name)(header, data):
        raise OSError(ctypes.get_errno(), name)


@contextmanager
def _without_the_right() -> Iterator[None]:
    """This thread may not read whatever there is meanwhile, nor those that it starts."""
    if not _MAY_ALL:
        yield
        return
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the same of the rights from 32 on
    _call("capget", data)
    effective = data[0]
    data[0] &= ~_READ_WHATEVER_THERE_IS
    _call("capset", data)
    try:
        yield
    finally:
        data[0] = effective
        _call("capset", data)


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """What a command says that must end with the code."""
    monkeypatch.chdir(tmp_path)

    def run(code: int, *arguments: str) -> str:
        with _without_the_right(), pytest.raises(SystemExit) as stop:
            main([*arguments])
        told = capfd.readouterr().err
        assert stop.value.code == code, told
        assert told.count("\n") == 1
        assert "Expected" in told
        return told

    return run


@pytest.fixture
def closed(tmp_path: Path) -> Callable[[str], None]:
    """Closes a file of the folder, made where it is not there."""

    def close(name: str) -> None:
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0)

    return close


def test_a_model_is_refused_as_a_missing_one_is(
    refuse: Refuse, closed: Callable[[str], None], tmp_path: Path
) -> None:
    write_model(tmp_path, "m")
    closed("m.onnx")
    told = refuse(3, "m.onnx", "--calib", "m.npz")
    assert told.startswith("fix-fp16: m.onnx cannot be read: Permission denied.")
    assert "Change its permissions" in told


def test_settings_plans_and_libraries_are_refused_by_those_who_read_them(
    refuse: Refuse, closed: Callable[[str], None], tmp_path: Path
) -> None:
    write_model(tmp_path, "m")
    for name in ("c.toml", "p.json", "l.so"):
        closed(name)
    job = ["m.onnx", "--calib", "m.npz", "--backend", "onnx"]
    assert "The config file c.toml cannot be read: Permission" in refuse(2, *job, "--config", "c.toml")
    assert "The library l.so cannot be read: Permission" in refuse(2, *job, "--plugin", "l.so", "-q")
    assert "The zoo file c.toml cannot be read: Permission" in refuse(2, "zoo", "c.toml")
    assert "p.json cannot be read: Permission" in refuse(5, "build", "m.onnx", "--plan", "p.json")


def test_results_that_may_not_be_read_are_told_with_their_permissions(
    refuse: Refuse, closed: Callable[[str], None], tmp_path: Path
) -> None:
    write_model(tmp_path, "m")
    (tmp_path / "out").mkdir()
    for name in ("out/ranges.h5", "out/plan.json", "out/report.json"):
        closed(name)
    commands: list[tuple[int, list[str]]] = [
        (5, ["scan", "m.onnx", "--calib", "m.npz", "--out", "out"]),
        (5, ["plan", "m.onnx", "--out", "out"]),
        (5, ["build", "m.onnx", "--out", "out", "--backend", "onnx"]),
        (2, ["report", "out"]),
    ]
    for code, arguments in commands:
        told = refuse(code, *arguments)
        assert "cannot be read: Permission denied. Expected" in told
        assert "Change its permissions" in told


@pytest.mark.parametrize("closed", ["zoo", "zoo/detectors", "zoo/detectors/large"])
def test_a_folder_of_models_is_not_taken_for_an_empty_one(
    closed: str, refuse: Refuse, tmp_path: Path
) -> None:
    for folder in ("zoo", "zoo/detectors/large"):
        write_model(tmp_path / folder, "m")
    (tmp_path / closed).chmod(0)
    try:
        assert f"The folder {closed} cannot be read: Permission" in refuse(2, "zoo", "zoo")
    finally:
        (tmp_path / closed).chmod(0o700)


def test_a_hidden_folder_is_not_looked_into(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "zoo" / ".trash").mkdir(parents=True)
    (tmp_path / "zoo" / ".trash").chmod(0)
    try:
        assert "it has no .onnx file" in refuse(2, "zoo", "zoo")
    finally:
        (tmp_path / "zoo" / ".trash").chmod(0o700)

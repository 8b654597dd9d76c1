"""The wheel with the native library and without, built by hatchling from a copy of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parent.parent
LIBRARY = "overflow_fixer/native/libprobes.so"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "hatch_build.py"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "overflow_fixer", copy / "overflow_fixer", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return copy


def build(sources: Path, folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    env = {**os.environ, **environment}
    subprocess.run(command, cwd=sources, env=env, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_without_a_compiler_the_wheel_is_for_any_platform(sources: Path, tmp_path: Path) -> None:
    """An old library that lies there is not taken along."""
    (sources / LIBRARY).write_text("old")
    wheel = build(sources, tmp_path, CXX="false")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in ZipFile(wheel).namelist()


COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_with_a_compiler_it_is_for_this_one_and_any_python(sources: Path, tmp_path: Path) -> None:
    """One that is found on the way, and optimises nothing, which would take seconds."""
    (tmp_path / "bin").mkdir()
    quick = tmp_path / "bin" / "c++"
    quick.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
    quick.chmod(0o755)
    wheel = build(sources, tmp_path, PATH=f"{quick.parent}{os.pathsep}{os.environ['PATH']}")
    assert "-py3-none-" in wheel.name
    assert "any" not in wheel.name
    assert LIBRARY in ZipFile(wheel).namelist()

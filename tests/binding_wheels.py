"""The real TensorRT bindings without TensorRT: wheels of about 1 MB, imported over stub libraries.

A binding wheel holds the Python module alone; it links to libraries of half a gigabyte. Libraries that
define the few functions it asks for, each returning null, are enough to import it: classes, enums and
signatures are all there, and nothing can be built or run.

TENSORRT_BINDINGS names a folder to keep wheels in (pytest's cache otherwise). With
TENSORRT_BINDINGS_REQUIRED=1 a wheel that cannot be had fails the test instead of skipping it; a Python
for which a release has no wheel is a skip all the same.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parent
_TOOLS = ("gcc", "nm", "readelf")
_SYMBOL = re.compile(r"(create|getBuilder|getPlugin|getNvOnnx|initLibNv|_ZN\d*nv)")
_LIBRARY = re.compile(r"libnv[a-z_]+\.so\.\d+")


@dataclass(frozen=True)
class Release:
    """A binding wheel; `newest_python` is the last minor version of Python 3 that it was made for."""

    distribution: str
    version: str
    newest_python: int


RELEASES = (
    Release("tensorrt-bindings", "8.6.1", 11),
    Release("tensorrt-cu12-bindings", "10.0.1", 12),
    Release("tensorrt-cu12-bindings", "10.12.0.36", 13),
    Release("tensorrt-cu12-bindings", "10.16.1.11", 13),
    Release("tensorrt-cu13-bindings", "11.4.0.106", 14),
)
RELEASE_OF = {release.version: release for release in RELEASES}


class NoWheelError(Exception):
    """No such wheel exists for this Python or machine: a skip, always."""


class NotAvailableError(Exception):
    """The wheel exists, and could not be had or prepared here."""


def load(version: str, config: pytest.Config) -> dict[str, Any]:
    """What `describe` says of a release, once a run; skips (or fails) the test where it cannot."""
    found = _describe_once(RELEASE_OF[version], _folder(config))
    if isinstance(found, dict):
        return found
    is_required = os.environ.get("TENSORRT_BINDINGS_REQUIRED") == "1"
    if is_required and isinstance(found, NotAvailableError):
        pytest.fail(f"TENSORRT_BINDINGS_REQUIRED=1, and {found}", pytrace=False)
    pytest.skip(str(found))


def _folder(config: pytest.Config) -> Path | None:
    named = os.environ.get("TENSORRT_BINDINGS")
    if named:
        return Path(named).resolve()
    cache: pytest.Cache | None = getattr(config, "cache", None)
    return None if cache is None else Path(cache.mkdir("tensorrt_bindings"))


@lru_cache(maxsize=len(RELEASES))
def _describe_once(release: Release, folder: Path | None) -> dict[str, Any] | Exception:
    if folder is None:
        return NotAvailableError("pytest has no cache: name a folder for wheels in TENSORRT_BINDINGS")
    try:
        return describe(release, folder)
    except (NoWheelError, NotAvailableError) as reason:
        return reason


def describe(release: Release, folder: Path) -> dict[str, Any]:
    """What `binding_description.py` finds in the release, run in a process of its own.

    Raises NoWheelError or NotAvailableError with the reason.
    """
    check_platform(release)
    root = unpack(fetch(release, folder))
    build_stubs(root)
    package = _TESTS.parent / "overflow_fixer"
    environment = dict(os.environ, LD_LIBRARY_PATH=str(root / "stub"))
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (root / "front", root / "wheel", package.parent)))
    command = [sys.executable, str(_TESTS / "binding_description.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"{release.version}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}"
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def check_platform(release: Release) -> None:
    """Raises NoWheelError where the release has no wheel, NotAvailableError where a tool is missing."""
    machine = (sys.platform, platform.machine(), sys.implementation.name)
    if machine != ("linux", "x86_64", "cpython"):
        raise NoWheelError(f"stub libraries are made for CPython on Linux x86_64 alone, not {machine}")
    if sys.version_info[1] > release.newest_python:
        raise NoWheelError(
            f"{release.distribution} {release.version} has no wheel for Python 3.{sys.version_info[1]}"
        )
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise NotAvailableError(f"{', '.join(missing)} not found; stub libraries need {', '.join(_TOOLS)}")


def fetch(release: Release, folder: Path) -> Path:
    """The wheel, from the folder or downloaded into it."""
    found = _kept(release, folder)
    if found is None:
        _download(release, folder)
        found = _kept(release, folder)
    if found is None:
        raise NotAvailableError(f"pip left no wheel of {release.distribution} {release.version}")
    return found


def _kept(release: Release, folder: Path) -> Path | None:
    stem = f"{release.distribution.replace('-', '_')}-{release.version}-cp3{sys.version_info[1]}-*.whl"
    return next(iter(sorted(folder.glob(stem))), None)


def _download(release: Release, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"{release.distribution}=={release.version}"
    options = "--no-deps --only-binary=:all: --quiet --disable-pip-version-check --retries 1 --timeout 10"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder), wanted]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotAvailableError(f"pip took more than 180 seconds to download {wanted}") from error
    if ran.returncode != 0:
        raise NotAvailableError(
            f"pip could not download {wanted}: {(ran.stderr.strip().splitlines() or ['?'])[-1]}"
        )


def unpack(wheel: Path) -> Path:
    """The folder beside the wheel that holds its content; it appears whole or not at all."""
    root = wheel.parent / wheel.stem
    if not root.is_dir():
        with tempfile.TemporaryDirectory(dir=wheel.parent) as work:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(work, "new", "wheel"))
            front = Path(work, "new", "front", "tensorrt")
            front.mkdir(parents=True)
            (front / "__init__.py").write_text(
                "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n",
                encoding="utf-8",
            )
            _move_into_place(Path(work, "new"), root)
    return root


def build_stubs(root: Path) -> None:
    """Compile the libraries that the module asks for into `root/stub`."""
    if (root / "stub").is_dir():
        return
    module = root / "wheel" / "tensorrt_bindings" / "tensorrt.so"
    symbols = [
        line.split()[-1].split("@")[0] for line in _output("nm", "-D", "--undefined-only", str(module))
    ]
    wanted = [symbol for symbol in symbols if _SYMBOL.match(symbol)]
    with tempfile.TemporaryDirectory(dir=root) as work:
        source, stub = Path(work, "stub.c"), Path(work, "stub")
        stub.mkdir()
        source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in wanted))
        for library in sorted(set(_LIBRARY.findall("\n".join(_output("readelf", "-d", str(module)))))):
            _output(
                "gcc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(stub / library), str(source)
            )
        _move_into_place(stub, root / "stub")


def _move_into_place(new: Path, place: Path) -> None:
    try:
        new.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was faster
            raise


def _output(*command: str) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode != 0:
        raise NotAvailableError(f"{command[0]} failed: {(ran.stderr.strip().splitlines() or ['?'])[-1]}")
    return ran.stdout.splitlines()

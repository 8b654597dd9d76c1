"""Builds the optional library overflow_fixer/native/libprobes.so where there is a C++ compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = "overflow_fixer/native/probes.cpp"
_LIBRARY = "overflow_fixer/native/libprobes.so"
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti")
_FOR_EACH_CPU = ("-DPROBES_CLONES",)
"""Where the compiler and the system's C library can: the fast way of each kind of processor, chosen as it loads."""


class NativeProbes(BuildHookInterface[Any]):
    """Puts the library into the wheel, which is for this platform then; without a compiler the wheel is for any."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = Path(self.root, _LIBRARY)
        library.unlink(missing_ok=True)
        if not _compile(Path(self.root, _SOURCE), library):
            self.app.display_warning(
                f"{_LIBRARY} is not built: found no C++ compiler that can. Scans run without it."
            )
            return
        build_data["artifacts"].append(_LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _compile(source: Path, library: Path) -> bool:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        return False
    told = f'-DPROBES_SOURCE="{hashlib.sha256(source.read_bytes()).hexdigest()}"'
    for more in (_FOR_EACH_CPU, ()):
        command = [compiler, *_FLAGS, told, *more, str(source), "-o", str(library)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
    return False

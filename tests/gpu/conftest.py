"""What all tests of real engines share: the reason to skip them, and each network fixed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_fixes import Fixes
from gpu_results import format_results, read_surroundings

from overflow_fixer.backends.tensorrt import find_lack


@pytest.fixture(scope="session", autouse=True)
def engines_can_be_built() -> None:
    lack = find_lack()
    if lack is not None:
        pytest.skip(f"Engines cannot be built: {lack}.")


@pytest.fixture(scope="session")
def fixes(engines_can_be_built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixes]:
    """Fixes networks by name. At the end, the file that GPU_RESULTS names tells what was measured."""
    found = Fixes(tmp_path_factory.mktemp("networks"))
    yield found
    page = os.environ.get("GPU_RESULTS")
    if page and found.reports:
        Path(page).write_text(format_results(read_surroundings(), found.reports), encoding="utf-8")

"""Where Ray is missing, the error says what to install, as the docs do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.ray_module import import_ray

ZOO_DOC = Path(__file__).parents[2] / "docs" / "zoo.md"


def test_what_is_missing_is_installed_as_the_docs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(
        ConfigError, match=r"Ray cannot be imported: No module named 'ray'\. Expected"
    ) as told:
        import_ray()
    command = "pip install '.[ray]'"
    assert command in str(told.value)
    assert command in ZOO_DOC.read_text(encoding="utf-8")

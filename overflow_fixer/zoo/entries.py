"""What a zoo is made of: its models, each with its settings, its place and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overflow_fixer.config import FixConfig

SUMMARY = "zoo-report"
"""How the files of a zoo's summary are called, before their endings."""


@dataclass(frozen=True)
class ZooEntry:
    """One model of a zoo. `name` is unique in it and is the model's folder below the zoo's.

    `priority`: the greater begins first. `expected_minutes` decides among equals, the longest first; None where
    nobody said. `timeout_minutes` ends it; so does holding more than `memory_gib` (None: whatever the machine has).
    `retries`: how often a crash is tried again.
    """

    name: str
    config: FixConfig
    priority: int = 0
    expected_minutes: float | None = None
    timeout_minutes: float = 240.0
    memory_gib: float | None = None
    retries: int = 1

    @property
    def folder(self) -> Path:
        return self.config.folder


@dataclass(frozen=True)
class Zoo:
    """Every model of a zoo, in the order of the file; results go below `folder`. `source` is the file or folder."""

    source: Path
    folder: Path
    entries: tuple[ZooEntry, ...]

"""Trials that are finished, told in their folders, so that a run that was killed goes on behind them.

Once a trial's artifact is verified, `trial.json` beside it says so, and for what: the next run takes the trial where model,
data, settings, versions and plan are the same, and removes it otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from overflow_fixer.files import write_text
from overflow_fixer.records import Artifact, Verification
from overflow_fixer.trials.folders import TrialFolders, clear_abandoned

_FILE = "trial.json"
_ARTIFACT, _VERIFICATION = TypeAdapter(Artifact), TypeAdapter(Verification)


@dataclass(frozen=True)
class Trial:
    """A finished trial. `sizes` are those of the artifact's files in bytes; empty where they were not kept."""

    key: str
    artifact: Artifact
    verification: Verification
    sizes: tuple[int, ...]

    @property
    def folder(self) -> Path:
        return self.artifact.path.parent


def make_key(*parts: Any) -> str:
    """The same for the same parts: texts, numbers, and what JSON holds of them."""
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def note_trial(key: str, artifact: Artifact, verification: Verification) -> None:
    """Say in the artifact's folder that the trial is finished. Raises OutputError where that cannot be written."""
    sizes = [path.stat().st_size for path in artifact.files]
    _write(Trial(key, artifact, verification, tuple(sizes)))


def drop_files(folder: Path) -> None:
    """Remove the files of a trial that nothing needs, but not what was found of it."""
    found = _read(folder)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != _FILE:
            path.unlink(missing_ok=True)
    if found is not None:
        _write(replace(found, sizes=()))


def adopt_trials(folder: Path, trials: TrialFolders) -> dict[str, Trial]:
    """The finished trials of runs that are over, by key, each moved to the folders of this one; others are removed."""
    adopted: dict[str, Trial] = {}
    for abandoned in clear_abandoned(folder):
        found = _read(abandoned)
        if found is None or found.key in adopted:
            continue
        target = trials.name_next()
        with suppress(OSError):
            os.rename(abandoned, target)
            adopted[found.key] = replace(found, artifact=_move(found.artifact, target))
    return adopted


def is_finished(folder: Path) -> bool:
    return (folder / _FILE).is_file()


def _write(trial: Trial) -> None:
    document = {
        "key": trial.key,
        "artifact": asdict(trial.artifact),
        "verification": asdict(trial.verification),
        "sizes": trial.sizes,
    }
    write_text(trial.folder / _FILE, json.dumps(document, default=str))


def _read(folder: Path) -> Trial | None:
    """None where the trial is not finished, or its files are not what they were."""
    try:
        document = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        artifact = _move(_ARTIFACT.validate_python(document["artifact"]), folder)
        verification = _VERIFICATION.validate_python(document["verification"])
        sizes = tuple(document["sizes"])
        is_whole = not sizes or sizes == tuple(path.stat().st_size for path in artifact.files)
        return Trial(document["key"], artifact, verification, sizes) if is_whole else None
    except (OSError, ValueError, LookupError, TypeError, ValidationError):
        return None


def _move(artifact: Artifact, folder: Path) -> Artifact:
    files = tuple(folder / path.name for path in artifact.files)
    return replace(artifact, path=folder / artifact.path.name, files=files)

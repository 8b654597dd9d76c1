"""Exports of an older plan: each file says of which plan it is, and goes when another one is built, unless somebody changed it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from overflow_fixer.backends.tensorrt.exports.polygraphy import name_script

_MARK = "# Plan: "
_TEXT = ", text: "


def sign(text: str, plan_sha256: str) -> str:
    """The text of a script with a first line that says of which plan it is (see stamps.fingerprint), and tells a change of it."""
    return f"{_MARK}{plan_sha256}{_TEXT}{_hash(text)}\n{text}"


def remove_stale(model: Path, folder: Path, plan_sha256: str, written: Collection[Path]) -> None:
    """Remove what was exported of the model to `folder` for another plan; what is not signed, or was changed, is left alone."""
    for signed, others in _list_exports(model, folder):
        found = None if signed in written else _read_signature(signed)
        if found is not None and found != plan_sha256:
            for path in (*others, signed):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def remove_left_over(signed: Path, other: Path) -> None:
    """Remove what belongs to a file that is about to be written without it; where that one was changed, it is left alone."""
    if _read_signature(signed) is not None:
        with suppress(OSError):
            other.unlink(missing_ok=True)


def _list_exports(model: Path, folder: Path) -> tuple[tuple[Path, tuple[Path, ...]], ...]:
    """The file that is signed, and those that belong to it, of each kind."""
    script, listed, changed = (folder / f"{model.stem}.trtexec.{suffix}" for suffix in ("sh", "txt", "onnx"))
    scripts = tuple((folder / name_script(model, kind), ()) for kind in ("npps", "loader"))
    return (*scripts, (script, (listed, changed)))


def _read_signature(path: Path) -> str | None:
    """The plan of a file that is as it was written; None of any other."""
    try:
        first, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.fullmatch(rf"{_MARK}([0-9a-f]{{64}}){_TEXT}([0-9a-f]{{64}})", first)
    return found[1] if found is not None and found[2] == _hash(text) else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

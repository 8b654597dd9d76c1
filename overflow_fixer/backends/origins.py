"""What an artifact on disk says of the model and the plan that it was built from, without a look at its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from overflow_fixer.backends.mixed_onnx.emission import read_stamps
from overflow_fixer.backends.tensorrt.engine_file import sidecar_of
from overflow_fixer.errors import ModelError


class Origin(NamedTuple):
    """The SHA-256 of the model, and the plan's stamps.fingerprint; empty where it says nothing of them."""

    model_sha256: str
    plan_sha256: str


def read_origin(path: Path, backend: str) -> Origin:
    """That of the artifact of a backend, by its name in BACKENDS; of one that cannot be read an empty one."""
    try:
        if backend == "onnx":
            return Origin(*read_stamps(path))
        document = json.loads(sidecar_of(path).read_text(encoding="utf-8"))
        return Origin(str(document["model_sha256"]), str(document["plan_sha256"]))
    except (ModelError, OSError, ValueError, LookupError, TypeError):
        return Origin("", "")

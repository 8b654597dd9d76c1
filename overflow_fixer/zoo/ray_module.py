"""Ray itself, which a zoo needs on a cluster alone: the one place that imports it."""

from __future__ import annotations

import importlib
import os
from typing import Any

from overflow_fixer.errors import ConfigError


def import_ray() -> Any:
    """The module ray, told to send no usage statistics. Raises ConfigError where it is missing or broken."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"Ray cannot be imported: {' '.join(str(error).split())}. Expected it for --ray and --ray-address. Install it "
            "(pip install '.[ray]' in fix-fp16's folder), or leave them out: without, a zoo runs on this machine."
        ) from error

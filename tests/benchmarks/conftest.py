"""The benchmarks are no part of the package, so the repository itself goes on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

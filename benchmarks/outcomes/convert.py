"""`python -m benchmarks.outcomes.convert TOOL MODEL CALIB FOLDER`: one conversion in a process of its own, which may be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.outcomes.tools import TOOLS

FAILURE = "failure.txt"
"""What an exception said, in FOLDER."""


def main() -> None:
    tool, model, calib, folder = sys.argv[1:]
    try:
        TOOLS[tool](Path(model), Path(calib), Path(folder))
    except Exception as error:
        Path(folder, FAILURE).write_text(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()

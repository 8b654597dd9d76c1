"""Outcomes in a JSON file, written after each, so that a run that is ended goes on where it was."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.outcomes.judge import Outcome


class Kept:
    """By network and tool; without a path they are kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, dict[str, Outcome]] = {}
        if path is not None and path.exists():
            for network, tools in json.loads(path.read_text()).items():
                self._found[network] = {tool: Outcome(**found) for tool, found in tools.items()}

    def find(self, network: str, tool: str) -> Outcome | None:
        return self._found.get(network, {}).get(tool)

    def note(self, network: str, tool: str, found: Outcome) -> Outcome:
        self._found.setdefault(network, {})[tool] = found
        remark = " ".join(found.remark.split())[:300]
        print(
            f"{network}: {tool}: {found.verdict}, {found.snr_db:.1f} dB. {remark}",
            file=sys.stderr,
            flush=True,
        )
        if self._path is not None:
            plain = {
                name: {tool: asdict(one) for tool, one in tools.items()}
                for name, tools in self._found.items()
            }
            self._path.write_text(json.dumps(plain, indent=1) + "\n")
        return found

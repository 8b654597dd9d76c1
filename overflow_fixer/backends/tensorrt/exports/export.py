"""What is exported, and where to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overflow_fixer.backends.stamps import fingerprint
from overflow_fixer.backends.tensorrt.builder import allows_tf32
from overflow_fixer.backends.tensorrt.exports.chosen_pins import (
    Enforcement,
    ExportedPin,
    choose_enforcement,
    choose_pins,
)
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Artifact, BuildSettings, PrecisionPlan


@dataclass(frozen=True)
class Export:
    """The plan of `artifact`, which was built with `settings`, as files in `folder`."""

    graph: Graph
    plan: PrecisionPlan
    artifact: Artifact
    settings: BuildSettings
    folder: Path

    @property
    def plan_sha256(self) -> str:
        return fingerprint(self.plan, self.settings.io_types)

    @property
    def tf32(self) -> bool:
        return allows_tf32(self.settings, self.plan)

    @property
    def pins(self) -> tuple[ExportedPin, ...]:
        return choose_pins(self.graph, self.plan, self.artifact)

    @property
    def enforcement(self) -> Enforcement:
        pinned = {pin.node for pin in self.pins}
        return choose_enforcement(self.graph, pinned, self.artifact, self.settings.io_types)


def locate_model(path: Path) -> Path:
    """A model's whole path. A link to one stays a link: its external data is looked for beside that."""
    return path.parent.resolve() / path.name

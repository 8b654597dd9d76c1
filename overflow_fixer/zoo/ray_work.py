"""One model's task on a Ray cluster, until its outcome is here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.errands import Delivery, Errand, Report
from overflow_fixer.zoo.outcomes import Basis, Kind, ZooOutcome, make_outcome
from overflow_fixer.zoo.parcels import put_in_place
from overflow_fixer.zoo.ray_nodes import Ask

if TYPE_CHECKING:
    from overflow_fixer.zoo.ray_cluster import RayCluster

_LOSSES = 3
"""How often a model that was lost with its worker or node runs again."""


@dataclass(eq=False)
class Sent:
    """A parcel in the cluster's object store, for as long as this is held."""

    reference: Any


@dataclass(eq=False)
class RayWork:
    """One entry's task. `basis` is what it rests on as seen from here, `before` the files of the folder that were sent."""

    cluster: RayCluster
    entry: ZooEntry
    attempt: int
    ask: Ask
    errand: Errand
    basis: Basis
    sent: tuple[Sent, ...]
    before: tuple[str, ...]
    reference: Any = None
    report: Report | None = None
    delivery: Delivery | None = None
    loss: Exception | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self.report is None else self.report.seconds

    @property
    def peak_bytes(self) -> int:
        return 0 if self.report is None else self.report.peak_bytes

    def read_progress(self) -> tuple[str, int, int] | None:
        return None if self.report is None else self.report.progress

    def stop(self) -> None:
        self.cluster.stop(self)

    def kill(self) -> None:
        self.cluster.kill(self)

    def receive(self) -> None:
        """Take what came back, and put results in place that were not written there."""
        self.errand.token.unlink(missing_ok=True)
        try:
            self.delivery = self.cluster.get(self.reference)
        except self.cluster.ray.exceptions.RayError as error:
            self.loss = error
            return
        if self.delivery.results is not None:
            put_in_place(self.delivery.results, self.before, self.entry.folder)

    def take_outcome(self) -> ZooOutcome | None:
        """None where it is to run again: it was lost with its node, or needs files that were not sent."""
        if self.delivery is None:
            return self._explain_loss()
        if self.delivery.lacks_files:
            self.cluster.sends_files = True
        outcome = self.delivery.outcome
        if outcome is None:
            return None
        here = {os.path.abspath(file.path): file for file in self.errand.inputs}
        files = tuple(
            here.get(os.path.abspath(file.path), file).model_copy(update={"path": file.path})
            for file in outcome.basis.files
        )
        known = {"settings": self.basis.settings, "calib": self.basis.calib, "files": files}
        basis = outcome.basis.model_copy(update=known)
        return outcome.model_copy(update={"basis": basis})

    def _explain_loss(self) -> ZooOutcome | None:
        """None while it may run again; what ends here is not taken for finished later."""
        reason = " ".join(str(self.loss).split())[:500].rstrip(".")
        if isinstance(self.loss, self.cluster.ray.exceptions.OutOfMemoryError):
            return self._end(
                "out_of_memory",
                f"Ray ended it where a node's memory ran out: {reason}. Expected room for the model and one batch. Set "
                "memory_gib so that fewer models run beside it.",
            )
        self.cluster.losses[self.entry.name] += 1
        if self.cluster.losses[self.entry.name] <= _LOSSES:
            return None
        return self._end(
            "crashed",
            f"It was lost {_LOSSES + 1} times with the Ray worker that it ran on, the last time for: {reason}. Expected "
            "nodes that stay, with this version of fix-fp16 and a disk to write to. See the node's Ray logs; the same "
            "command runs it again.",
        )

    def _end(self, kind: Kind, message: str) -> ZooOutcome:
        return make_outcome(
            self.entry,
            self.basis.model_copy(update={"versions": {}}),
            kind,
            message,
            attempts=self.attempt,
            seconds=self.seconds,
            peak_memory_bytes=self.peak_bytes,
        )

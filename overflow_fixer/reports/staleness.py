"""Whether what a report tells of is still what lies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overflow_fixer.backends.origins import Origin, read_origin
from overflow_fixer.backends.stamps import fingerprint
from overflow_fixer.errors import BackendError, FixError, PlanError
from overflow_fixer.records import PrecisionPlan
from overflow_fixer.reports.document import Document
from overflow_fixer.reports.plan_file import find_earlier_plan, read_reported

_IO_TYPES = ("keep", "fp16")


def find_stale(document: Document, folder: Path) -> FixError | None:
    """What of the folder no longer fits its report: a BackendError about what was built, else a PlanError; None for nothing.

    The artifact is held against the report by its size and by the model and plan that it names; no weight is read. A plan
    that is not there any more is not missed: the report has it.
    """
    plan = read_reported(document)
    built, planned = list(_check_artifact(document, folder, plan)), list(_check_plan(folder, plan))
    if not built and not planned:
        return None
    text = (
        f"The report of {folder} no longer fits what is there: {'; '.join([*built, *planned])}. Expected the folder as it "
        "was verified. Its verdict is of what was there then: build and verify again, with fix-fp16 build and verify or "
        "fix-fp16 MODEL."
    )
    return BackendError(text) if built else PlanError(text)


def _check_artifact(document: Document, folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    backend = document["backend"]
    path = folder / Path(backend["artifact"]).name
    sizes = {Path(file["path"]).name: file["size_bytes"] for file in document["files"]}
    for name in (path.name, *{f"{path.name}.data"}.intersection(sizes)):
        if not (folder / name).is_file():
            yield f"{name} is not there"
        elif sizes.get(name) not in (None, (folder / name).stat().st_size):
            yield f"{name} has another size"
    if path.is_file():
        known = {Origin(plan.model_sha256, fingerprint(plan, io_types)) for io_types in _IO_TYPES}
        if read_origin(path, backend["name"]) not in known:
            yield f"{path.name} was not built from the plan that was verified"


def _check_plan(folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    path = folder / "plan.json"
    found = find_earlier_plan(path, plan.model_sha256)
    is_same = found is not None and fingerprint(found, "keep") == fingerprint(plan, "keep")
    if path.is_file() and not is_same:
        yield "plan.json is another plan than the one that was verified"

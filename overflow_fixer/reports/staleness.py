"""Whether what a report tells of is still what lies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overflow_fixer.backends.origins import Origin, read_origin
from overflow_fixer.backends.stamps import fingerprint
from overflow_fixer.errors import BackendError, FixError, PlanError
from overflow_fixer.files import name_data
from overflow_fixer.ranges import load_ranges
from overflow_fixer.ranges.recording import FORMAT_VERSION
from overflow_fixer.ranges.store import load_header
from overflow_fixer.records import PrecisionPlan, RangeTable
from overflow_fixer.reports.document import Document, describe_observed
from overflow_fixer.reports.numbers_json import JsonNumber, encode_number, parse_json
from overflow_fixer.reports.plan_file import find_earlier_plan, read_reported

_IO_TYPES = ("keep", "fp16")
_NAME, _PLAN = "report.json", "plan.json"


def find_stale(document: Document, folder: Path) -> FixError | None:
    """What of the folder no longer fits its report: a BackendError about what was built, else a PlanError; None for nothing.

    The artifact is held against the report by its size and by the model and plan that it names; no weight is read. The ranges
    are by their model and by what the report tells of them. A plan, or ranges, that are not there any more are not missed.
    """
    plan = read_reported(document)
    built = list(_check_artifact(document, folder, plan))
    planned = [*_check_plan(folder, plan), *_check_ranges(document, folder, plan)]
    if not built and not planned:
        return None
    text = (
        f"The report of {folder} no longer fits what is there: {'; '.join([*built, *planned])}. Expected the folder as it "
        "was verified. Its verdict is of what was there then: plan, build and verify again, with these verbs of fix-fp16 or "
        "fix-fp16 MODEL."
    )
    return BackendError(text) if built else PlanError(text)


def say_replaced_plan(folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    """That `plan` takes the place of another than the one of the report beside it; nothing without a report."""
    found = find_earlier_plan(folder / _PLAN, plan.model_sha256)
    if found is None or fingerprint(found, "keep") == fingerprint(plan, "keep"):
        return
    try:
        reported = read_reported(parse_json((folder / _NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    if fingerprint(found, "keep") != fingerprint(reported, "keep"):
        yield (
            f"{folder / _PLAN} was replaced: it held another plan than the one that was last verified there (edited by hand, made by "
            "fix-fp16 plan, or of a run that was killed), and this run made its own. To have such a plan built, use fix-fp16 build and "
            "fix-fp16 verify; to keep nodes in FP32, or out of it, in every run, --include-nodes and --exclude-nodes."
        )


def is_at_home(document: Document, file: Path) -> bool:
    """Whether the file of a report lies in the folder that it tells of, wherever that was moved to, and not alone elsewhere."""
    artifact = Path(document["backend"]["artifact"])
    is_beside = any((file.parent / name).is_file() for name in (artifact.name, _PLAN))
    return file.name == _NAME and (is_beside or artifact.parent.resolve() == file.parent.resolve())


def _check_artifact(document: Document, folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    backend = document["backend"]
    path = folder / Path(backend["artifact"]).name
    sizes = {Path(file["path"]).name: file["size_bytes"] for file in document["files"]}
    for name in (path.name, *{name_data(path).name}.intersection(sizes)):
        if not (folder / name).is_file():
            yield f"{name} is not there"
        elif sizes.get(name) not in (None, (folder / name).stat().st_size):
            yield f"{name} has another size"
    if path.is_file():
        known = {Origin(plan.model_sha256, fingerprint(plan, io_types)) for io_types in _IO_TYPES}
        if read_origin(path, backend["name"]) not in known:
            yield f"{path.name} was not built from the plan that was verified"


def _check_plan(folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    path = folder / _PLAN
    found = find_earlier_plan(path, plan.model_sha256)
    is_same = found is not None and fingerprint(found, "keep") == fingerprint(plan, "keep")
    if path.is_file() and not is_same:
        yield "plan.json is another plan than the one that was verified"


def _check_ranges(document: Document, folder: Path, plan: PrecisionPlan) -> Iterator[str]:
    """Of the ranges that were read, where they lay in the folder: others that lie there are none of the report's."""
    read = document["ranges"]["file"]
    path = folder / Path(read or "").name
    if read is None or not _were_beside(document, Path(read)) or not path.is_file():
        return
    try:
        key = load_header(path).key
        if key.model_sha256 != plan.model_sha256:
            yield f"{path.name} is of another model"
        elif key.format_version == FORMAT_VERSION and not _is_reported(load_ranges(path), document, plan):
            yield f"{path.name} is of another scan than the one that is reported"
    except PlanError:
        yield f"{path.name} is not that of a finished scan any more"


def _were_beside(document: Document, read: Path) -> bool:
    """Whether the ranges that were read lay in the folder of the artifact, wherever that was then."""
    return read.parent.resolve() == Path(document["backend"]["artifact"]).parent.resolve()


def _is_reported(ranges: RangeTable, document: Document, plan: PrecisionPlan) -> bool:
    """Wherever the data lay: of one scan, a path may be told in two ways."""
    observed = describe_observed(ranges, plan.threshold)
    nearest = document["confidence"]["nearest"]
    return (
        document["calibration"]["batch_names"] == list(ranges.batch_names)
        and {**document["ranges"], **observed} == document["ranges"]
        and all(_has_maximum(ranges, found["tensor"], found["max_abs"]) for found in nearest)
    )


def _has_maximum(ranges: RangeTable, tensor: str, reported: JsonNumber) -> bool:
    """Of a value inside a node, the table of tensors has nothing to hold it against."""
    found = ranges.by_tensor.get(tensor)
    return found is None or encode_number(found.max_abs) == reported

"""What becomes of the file that is already where a scan or a merge is to be stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from overflow_fixer.errors import PlanError
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges.recording import Recording, ScanKey, list_differences
from overflow_fixer.ranges.store import Header, load_header, load_recording

Existing = Literal["keep", "renew", "replace", "overwrite"]
"""What may become of a file in the way: "keep" replaces nothing but an earlier state of the same scan,
"renew" also a finished scan of something else (not a merge), "replace" an unfinished one, too, "overwrite" anything."""


def find_begun(path: Path, key: ScanKey, existing: Existing) -> Recording | None:
    """The recording at `path` to go on from, or None to begin anew.

    Raises PlanError, with what differs and what to do, for a file that `existing` protects: of another
    model, other data, settings or versions, of a merge, or one that is no ranges file at all.
    """
    if existing == "overwrite" or not os.path.exists(path):
        return None
    header = load_header(path)
    differences = list_differences(header.key, key, ("there", "now"))
    if not key.calibration_fingerprint:
        differences.append("perhaps the calibration data, which have no fingerprint to tell by")
    if not differences:
        return load_recording(path)
    if header.part_count == 1 and (existing == "replace" or (existing == "renew" and header.is_finished)):
        return None
    raise PlanError(
        f"{path} holds {_describe(header)}, and this one differs in {'; '.join(differences)}. Expected the same model, "
        f"data, settings and versions, so that every number in a file is of one scan. {_advise(path, header)}"
    )


def _describe(header: Header) -> str:
    batches = say_plural(header.key.batches_total, "batch", "batches")
    if header.part_count > 1:
        return f"a merge of {header.part_count} scans ({batches})"
    if header.is_finished:
        return f"a finished scan of {batches}"
    return f"an unfinished scan ({header.batches_done} of {batches})"


def _advise(path: Path, header: Header) -> str:
    start_over = "start over with --fresh, which replaces the file, or name another folder with --out"
    if header.part_count > 1:
        return f"Go on from the merge: fix-fp16 MODEL --calib PATH --ranges {path}; or {start_over}."
    if header.is_finished:
        return f"{start_over[0].upper()}{start_over[1:]}."
    return f"Put them back as they were to go on after its last batch; or {start_over}."

"""What was fused, run against the original in FP32."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from overflow_fixer.errors import CalibrationError, ModelError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Batch
from overflow_fixer.verification.comparison import open_reference

MAX_RELATIVE_ERROR = 1e-5


def prove_equal(graph: Graph, path: Path, batches: Iterable[Batch]) -> float:
    """The largest relative error of the model at `path`. Raises ModelError where it is not equal."""
    reference, candidate = open_reference(graph), open_reference(load_graph(path))
    worst: float | None = None
    for batch in batches:
        expected, found = reference.run(batch), candidate.run(batch)
        errors = {name: _relative_error(expected[name], found[name]) for name in reference.output_names}
        wrong = next((name for name, error in errors.items() if not error <= MAX_RELATIVE_ERROR), None)
        if wrong is not None:
            raise ModelError(_not_equal(graph, wrong, batch, errors[wrong]))
        worst = max(worst or 0.0, *errors.values())
    if worst is None:
        raise CalibrationError(
            "There was no batch to prove the fused model on. Expected at least one: without data nothing is proved. "
            "Check the calibration data."
        )
    return worst


def _not_equal(graph: Graph, name: str, batch: Batch, error: float) -> str:
    what = (
        f"differs by {error:.3g} of its largest magnitude"
        if math.isfinite(error)
        else "has another shape or type, NaN or infinities in other places, or other integers"
    )
    return (
        f"{graph.path} with its LayerNorms fused is not equal to itself: output {name!r} {what} in {batch.name}. Expected "
        f"at most {MAX_RELATIVE_ERROR:g}, NaN and infinities in the same places. Nothing was written; leave "
        "--refuse-layernorm out."
    )


def _relative_error(expected: Any, found: Any) -> float:
    """max |difference| / max |expected| over what is finite; inf where the outputs cannot be compared.

    NaN and infinities are equal where the other side has the same. Values that are not floats are equal or not.
    """
    if isinstance(expected, list):
        pairs = zip(expected, found, strict=False)
        return (
            max((_relative_error(*pair) for pair in pairs), default=0.0)
            if len(expected) == len(found)
            else math.inf
        )
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else math.inf
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(found)):
        return math.inf
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return math.inf
    reference, candidate = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    largest = float(np.abs(reference).max(initial=0.0))
    difference = float(np.abs(reference - candidate).max(initial=0.0))
    return difference / largest if largest else (math.inf if difference else 0.0)

"""What a scan records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from overflow_fixer.formats import headroom_bits


@dataclass(frozen=True)
class Range:
    """What was seen of one tensor, over all batches.

    `max_abs`, `min` and `max` are over every element that is not NaN, infinities included;
    `min_nonzero_abs` likewise, over the elements that are not zero. Each is NaN when no such
    element was seen. `min_nonzero_abs` is -inf where it was not taken: docs/numerics.md says where it is.
    Counts are totals over the batches (a constant is present in each).
    `over_fp16_count` counts |x| >= 65520, infinities included: what FP16 stores as infinity.
    `worst_batch` is the index of the first batch that holds `max_abs`, or -1 when there is none.
    """

    tensor: str
    max_abs: float
    min: float
    max: float
    min_nonzero_abs: float
    element_count: int
    nan_count: int
    inf_count: int
    over_fp16_count: int
    worst_batch: int

    @property
    def headroom(self) -> float:
        """log2(65504 / max_abs), in bits."""
        return headroom_bits(self.max_abs)

    @property
    def is_finite(self) -> bool:
        """Whether no NaN and no infinity was seen."""
        return self.nan_count + self.inf_count == 0


@dataclass(frozen=True)
class InnerRange:
    """What was seen of a value that a node computes inside, over all batches.

    `quantity` is one that docs/numerics.md names; its `seen.tensor` is "NODE: QUANTITY", and there is no
    `over_fp16_count` in it, no `min` of what cannot be negative, and no `min_nonzero_abs` but of what may be divided by,
    below 65520. Where it `is_bound`, no value of that kind was larger, and the true one may be smaller. `batch_max_abs` is
    float32 [batch].
    """

    node: str
    quantity: str
    is_bound: bool
    seen: Range
    batch_max_abs: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.empty(0, np.float32), repr=False, compare=False
    )


@dataclass(frozen=True, eq=False)
class RangeTable:
    """The ranges of every float tensor of a model, and each tensor's max_abs by batch.

    `batch_max_abs` is float32 [tensor, batch], in the order of `ranges` and `batch_names`; NaN
    where a batch had no element of the tensor that is not NaN.
    """

    model_sha256: str
    calibration: str
    synthetic: bool
    ranges: tuple[Range, ...]
    batch_names: tuple[str, ...]
    batch_max_abs: npt.NDArray[np.float32]
    not_observed: Mapping[str, str] = field(default_factory=dict)
    """Tensors that could not be observed, with the reason."""
    observe: str = "reductions"
    """How they were observed; see docs/scan.md. Values of "optimized" are those of other kernels."""
    provider: str = "cpu"
    """What ran the model: "cpu", "cuda" or "tensorrt"."""
    provider_lack: str | None = None
    """In a sentence, why that is not the provider that was asked for; None if it is."""

    inner: tuple[InnerRange, ...] = ()
    """Of values inside nodes, in the order of the graph."""
    model_stamp: str = ""
    """Of the model's files when they were hashed; see Graph.has_sha256."""
    fractional: frozenset[str] = frozenset()
    """The model's float inputs in which numbers were seen that are not whole."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of each data set that was scanned the path, by its CalibrationSet.fingerprint; of a scan without a store none."""

    @cached_property
    def by_tensor(self) -> Mapping[str, Range]:
        return {r.tensor: r for r in self.ranges}

    @cached_property
    def inner_of(self) -> Mapping[str, Mapping[str, InnerRange]]:
        """By the node's label, then by the quantity."""
        found: dict[str, dict[str, InnerRange]] = {}
        for inner in self.inner:
            found.setdefault(inner.node, {})[inner.quantity] = inner
        return found

    def get(self, tensor: str) -> Range | None:
        return self.by_tensor.get(tensor)

    def worst_batch_of(self, seen: Range) -> str | None:
        """The name of the batch that holds the max_abs of one of the table's ranges; None when there is none."""
        return None if seen.worst_batch < 0 else self.batch_names[seen.worst_batch]

"""The model's inputs, and the calibration data that are fed to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from overflow_fixer.annotations import need_type

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Dim = int | str | None
"""A fixed dimension, a symbolic one by its name, or one that nothing is known of."""


def is_fixed(dim: Dim) -> TypeGuard[int]:
    """Whether a dimension is a number; exporters write -1 for one that is not known."""
    return isinstance(dim, int) and dim >= 0


@dataclass(frozen=True)
class InputSpec:
    """What the model says of one input: its name, ONNX element type and dimensions.

    `elem_type` is an onnx.TensorProto.DataType; `dims` is None when even the rank is unknown.
    """

    name: str
    elem_type: int
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True)
class Batch:
    """One set of inputs, with the name of the file (and the sample in it) that it came from.

    `is_changed` where its values are not quite those of the file: see calibration.jittered. Arrays of any byte order may be
    given; `feeds` has them in the machine's, for ONNX Runtime reads bytes as if they were in that. Raises ConfigError for feeds that
    are no dict.
    """

    name: str
    feeds: Feeds
    is_changed: bool = False

    def __post_init__(self) -> None:
        need_type("Batch.feeds", self.feeds, Mapping[str, Any])
        swapped = {
            name: array.astype(array.dtype.newbyteorder("="))
            for name, array in self.feeds.items()
            if isinstance(array, np.ndarray) and not array.dtype.isnative
        }
        if swapped:
            object.__setattr__(self, "feeds", {**self.feeds, **swapped})


class CalibrationSet(Protocol):
    """Batches that are read one at a time and can be walked again.

    `source` names the data in the report; `synthetic` is True for random data; `fingerprint`
    changes when the data does.
    """

    @property
    def source(self) -> str: ...

    @property
    def synthetic(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __len__(self) -> int: ...

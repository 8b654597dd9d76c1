"""What a scan has recorded, in columns: the state of a scan, the content of a ranges file, a part of a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnxruntime

from overflow_fixer import __version__
from overflow_fixer.ranges.summaries import SUMMARY_FIELDS, Summaries, merge_summaries, no_summaries
from overflow_fixer.records import InnerRange, Range, RangeTable

FORMAT_VERSION = 11
"""Another for other columns, and for other rows of the same model: a scan cannot go on with those."""
_RUNS = "runs of "


@dataclass(frozen=True)
class ScanKey:
    """What a scan depends on: two scans with equal keys give equal ranges of tensors, bit for bit.

    Of values inside nodes they do if both ran with native probes, or both without; else to 1e-5: docs/scan.md.
    """

    model_sha256: str
    calibration_fingerprint: str
    observe: str
    batches_total: int
    provider: str = "cpu"
    small_values: str = "needed"
    custom_ops: str = ""
    tool_version: str = __version__
    onnxruntime_version: str = onnxruntime.__version__
    format_version: int = FORMAT_VERSION


_WORDS = {
    "model_sha256": "the model's sha256",
    "calibration_fingerprint": "the calibration data's fingerprint",
    "observe": "the setting observe",
    "batches_total": "the number of batches",
    "provider": "the provider",
    "small_values": "the setting small_values",
    "custom_ops": "the custom operators' libraries",
    "tool_version": "overflow_fixer's version",
    "onnxruntime_version": "ONNX Runtime's version",
    "format_version": "the file's format",
}
_SHOWN_CHARACTERS = 12


def list_differences(
    first: ScanKey, second: ScanKey, places: tuple[object, object], ignored: Sequence[str] = ()
) -> list[str]:
    """What differs between two keys, in words with both values and where each is; hashes are shortened."""
    values = [(f.name, getattr(first, f.name), getattr(second, f.name)) for f in fields(ScanKey)]
    return [
        f"{_WORDS[name]} ({_shorten(one)} {places[0]}, {_shorten(other)} {places[1]})"
        for name, one, other in values
        if one != other and name not in ignored
    ]


def _shorten(value: object) -> str:
    text = str(value) or "none"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


@dataclass(frozen=True)
class Part:
    """One scan of one data set: what a merge is made of. Its batches stand together, in their order.

    `file` is the ranges file that the part was merged from, as it was named then; "" for a scan's own.
    """

    calibration: str
    synthetic: bool
    fingerprint: str
    batch_count: int
    file: str = ""


@dataclass(frozen=True)
class Inner:
    """What a row that is about a value inside a node is about; see records.InnerRange."""

    node: str
    quantity: str
    is_bound: bool

    @property
    def name(self) -> str:
        return f"{self.node}: {self.quantity}"

    @property
    def runs_of(self) -> str | None:
        """For a row that counts the runs of a body, in its element_count: "OPERATOR.ATTRIBUTE"."""
        return self.quantity.removeprefix(_RUNS) if self.quantity.startswith(_RUNS) else None


def name_runs(node: str, op_type: str, attribute: str) -> tuple[str, str]:
    """The node and the quantity of the row that counts the runs of a body; see Inner.runs_of."""
    return node, f"{_RUNS}{op_type}.{attribute}"


@dataclass(frozen=True, eq=False)
class Recording:
    """The ranges of the batches in `batch_names`. Replaced whole, so that it is never half new.

    Each row is about one of `tensors` or, behind them, one of `inner`. `totals` are the summaries [row] over all
    batches, `worst_batch` int64 [row] as records.Range has it, `batch_max_abs` float32 [row, batch]. Batches are
    named as their own part names them.
    """

    key: ScanKey
    parts: tuple[Part, ...]
    tensors: tuple[str, ...]
    inner: tuple[Inner, ...]
    not_observed: Mapping[str, str]
    totals: Summaries
    worst_batch: npt.NDArray[np.int64]
    batch_names: tuple[str, ...]
    batch_max_abs: npt.NDArray[np.float32]
    model_stamp: str = ""
    """Graph.stamp, as it was when the model was hashed."""
    model_path: str = ""
    """Where the model lay, absolute; "" where that is not UTF-8."""
    fractional: frozenset[str] = frozenset()
    """See records.RangeTable."""

    @property
    def is_finished(self) -> bool:
        return len(self.batch_names) == self.key.batches_total

    @property
    def calibration(self) -> str:
        """The calibration data of every part, each told once."""
        return ", ".join(dict.fromkeys(part.calibration for part in self.parts))

    @property
    def synthetic(self) -> bool:
        return any(part.synthetic for part in self.parts)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each row is about."""
        return (*self.tensors, *(inner.name for inner in self.inner))

    def ranges(self, rows: npt.NDArray[np.int64] | slice = slice(None)) -> tuple[Range, ...]:
        """The ranges at `rows`; all of them if none are given."""
        indices = np.arange(len(self.names))[rows]
        columns = {name: self.totals[name][rows].tolist() for name in SUMMARY_FIELDS}
        columns |= {"tensor": [self.names[row] for row in indices]}
        columns |= {"worst_batch": self.worst_batch[rows].tolist()}
        return tuple(map(Range, *(columns[field.name] for field in fields(Range))))

    def table(self) -> RangeTable:
        """The same as what the stages behind the scan take. A batch's name is unique where parts are merged."""
        ranges, count = self.ranges(), len(self.tensors)
        inside = zip(self.inner, ranges[count:], strict=True)
        return RangeTable(
            model_sha256=self.key.model_sha256,
            model_stamp=self.model_stamp,
            calibration=self.calibration,
            synthetic=self.synthetic,
            ranges=ranges[:count],
            batch_names=tuple(_tell_batches(self.parts, self.batch_names)),
            batch_max_abs=self.batch_max_abs[:count],
            not_observed={**self.not_observed, **dict(self._tell_unseen())},
            observe=self.key.observe,
            provider=self.key.provider,
            fractional=self.fractional,
            fingerprints={part.fingerprint: part.calibration for part in self.parts if part.fingerprint},
            inner=tuple(
                InnerRange(one.node, one.quantity, one.is_bound, seen, row)
                for (one, seen), row in zip(inside, self.batch_max_abs[count:], strict=True)
                if one.runs_of is None
            ),
        )

    def _tell_unseen(self) -> Iterator[tuple[str, str]]:
        """The bodies of control flow that never ran, but for those inside one of them, with the reason."""
        counts = self.totals["element_count"][len(self.tensors) :].tolist()
        unseen: list[str] = []
        for one, count in zip(self.inner, counts, strict=True):
            if one.runs_of is None or count or one.node.startswith(tuple(unseen)):
                continue
            op_type, _, attribute = one.runs_of.partition(".")
            verb = "took" if op_type == "If" else "ran"
            unseen.append(f"{one.node}/{attribute}/")
            yield (
                f"{one.node}/{attribute}",
                f"{op_type} {one.node} never {verb} its {attribute} in the data that were scanned",
            )


def no_batches(
    key: ScanKey,
    part: Part,
    tensors: tuple[str, ...],
    inner: tuple[Inner, ...],
    not_observed: Mapping[str, str],
) -> Recording:
    """The recording that a scan begins with."""
    count = len(tensors) + len(inner)
    worst_batch, max_abs = np.full(count, -1, np.int64), np.empty((count, 0), np.float32)
    return Recording(
        key, (part,), tensors, inner, not_observed, no_summaries(count), worst_batch, (), max_abs
    )


def fold(
    totals: Summaries,
    worst_batch: npt.NDArray[np.int64],
    more: Summaries,
    more_worst_batch: npt.NDArray[np.int64] | int,
) -> tuple[Summaries, npt.NDArray[np.int64]]:
    """Totals [row] with those of later batches. Associative and exact; of equal maxima the first is kept."""
    before, now = totals["max_abs"], more["max_abs"]
    is_worse = (now > before) | (np.isnan(before) & ~np.isnan(now))
    return merge_summaries(totals, more), np.where(is_worse, more_worst_batch, worst_batch)


def _tell_batches(parts: Sequence[Part], names: Sequence[str]) -> Iterator[str]:
    """The batches' names, with their part where several parts have a batch of that name."""
    if len(parts) == 1:
        yield from names
        return
    count = Counter(names)
    owners = [(i, part) for i, part in enumerate(parts, start=1) for _ in range(part.batch_count)]
    for name, (i, part) in zip(names, owners, strict=True):
        yield name if count[name] == 1 else f"part {i} ({part.calibration}): {name}"

"""Cutting a leading sample axis into batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overflow_fixer.calibration.check import check_names, check_rank, describe_dims
from overflow_fixer.calibration.source import Part
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Array, InputSpec, is_fixed


@dataclass(frozen=True)
class Cut:
    """How one input's first axis, `total` long, is cut into batches of `rows`.

    The last batch is smaller when `rows` does not divide `total`. `drops_axis`: each row is a whole
    batch, without that axis. `is_free`: the model leaves the number of rows open.
    """

    total: int
    rows: int
    drops_axis: bool = False
    is_free: bool = False

    @property
    def counts(self) -> list[int]:
        """Rows of each batch."""
        return [min(self.rows, self.total - start) for start in range(0, self.total, self.rows)]

    def shape_batch(self, rows: Array) -> Array:
        """One batch's rows in the shape that the model is fed."""
        return rows.reshape(rows.shape[1:]) if self.drops_axis else rows


def plan_cuts(
    place: Path, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[InputSpec], batch_size: int
) -> dict[str, Cut]:
    """How to cut each input of one file, `shapes` by input name.

    Where the array has one dimension more than the model's input, each index of axis 0 is a batch.
    Where it has the same number, axis 0 is cut into pieces of the model's first dimension or, where
    that is not fixed, of `batch_size`. An array without any dimension is one batch. Raises
    CalibrationError when the inputs do not give the same number of batches, or none.
    """
    check_names(str(place), shapes, inputs)
    cuts = {spec.name: _plan_cut(place, spec, shapes[spec.name], batch_size) for spec in inputs}
    counts = {len(cut.counts) for cut in cuts.values()}
    if counts == {0}:
        raise CalibrationError(
            f"{place} holds no samples: axis 0 of every input is 0 long. Expected at least one. Write the file again."
        )
    if len(counts) > 1 or len({cut.total for cut in cuts.values() if cut.is_free}) > 1:
        raise _disagreement(place, shapes, inputs, cuts)
    return cuts


def name_heeded(cuts: Iterable[Cut]) -> frozenset[str]:
    """What Source.heeds is of data that are cut so."""
    return frozenset({"batch_size"} if any(cut.is_free for cut in cuts) else ())


def name_samples(file: Path, cut: Cut) -> tuple[Part, ...]:
    """A part for each batch: `file[i]` where it is one sample, else `file[i:j]`."""
    stops = [min(start + cut.rows, cut.total) for start in range(0, cut.total, cut.rows)]
    return tuple(
        Part(
            f"{file.name}[{index}]" if cut.rows == 1 else f"{file.name}[{index * cut.rows}:{stop}]",
            (file,),
        )
        for index, stop in enumerate(stops)
    )


def _plan_cut(place: Path, spec: InputSpec, shape: tuple[int, ...], batch_size: int) -> Cut:
    if spec.dims is None:
        raise CalibrationError(
            f"{place}: the model does not say how many dimensions input {spec.name!r} has, so its sample axis cannot be "
            "told. Expected one file a batch for such a model. Write each batch to its own file in a folder."
        )
    if not shape and not spec.dims:
        return Cut(1, 1, drops_axis=True)
    if len(shape) == len(spec.dims) + 1:
        return Cut(shape[0], 1, drops_axis=True)
    check_rank(str(place), spec, shape)
    first = spec.dims[0]
    if not is_fixed(first):
        return Cut(shape[0], batch_size, is_free=True)
    if first == 0 or shape[0] % first:
        raise CalibrationError(
            f"{place}: input {spec.name!r} has shape {list(shape)}, whose axis 0 cannot be cut into batches of {first}. "
            f"Expected a multiple of the model's first dimension: {describe_dims(spec.dims)}. Add or remove samples."
        )
    return Cut(shape[0], first)


def _disagreement(
    place: Path, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[InputSpec], cuts: Mapping[str, Cut]
) -> CalibrationError:
    found = "; ".join(
        f"{spec.name!r} {list(shapes[spec.name])} for {describe_dims(spec.dims)} gives {len(cuts[spec.name].counts)}"
        for spec in inputs
    )
    return CalibrationError(
        f"{place}: the inputs do not have the same number of samples; cut into batches, {found}. Expected a leading "
        "sample axis of one length on every input. Repeat an input that is the same for all samples along such an "
        "axis, or write one file a batch."
    )

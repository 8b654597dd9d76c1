"""What FP16 inputs and outputs lose by themselves, whatever runs between them: no plan mends that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from onnx import TensorProto

from overflow_fixer.formats import FP16_MAX, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.records import Array, Batch, Range, RangeTable, Runner, TensorError, Tolerance
from overflow_fixer.verification.comparison import judge


class RoundedRunner:
    """The model in FP32, between FP32 inputs and outputs that are rounded to FP16.

    Outputs come as float16; |x| >= 65520 becomes +-inf, NaN stays NaN. `runner` is that of the model in FP32. Raises what
    it raises, such as RunError where an infinity ends in an index.
    """

    def __init__(self, graph: Graph, runner: Runner) -> None:
        self.output_names = runner.output_names
        self._runner = runner
        self._inputs, self._outputs = frozenset(_inputs(graph)), frozenset(_outputs(graph))

    def run(self, batch: Batch) -> dict[str, Array]:
        feeds = {
            name: round_to_fp16(array).astype(np.float32) if name in self._inputs else array
            for name, array in batch.feeds.items()
        }
        found = self._runner.run(Batch(batch.name, feeds))
        return {name: round_to_fp16(a) if name in self._outputs else a for name, a in found.items()}


def find_wrong_input(graph: Graph, batch: Batch, tolerance: Tolerance) -> TensorError | None:
    """An FP32 input that goes wrong where it is rounded to FP16, on one batch; None where none does.

    The first that gets infinities, or else the first of all: inputs have no order in which they are computed.
    """
    errors = (_round_input(name, batch) for name in _inputs(graph))
    wrong = [error for error in errors if not judge(error, tolerance).passed]
    return next((error for error in wrong if error.lost_count > 0), wrong[0] if wrong else None)


def _round_input(name: str, batch: Batch) -> TensorError:
    meter = ErrorMeter(name)
    meter.add(batch.feeds[name], round_to_fp16(batch.feeds[name]), batch.name)
    return meter.result()


def say_over_range(graph: Graph, ranges: RangeTable) -> Iterator[str]:
    """One sentence, where finite values of FP32 inputs and outputs are over FP16's range: on the largest of them."""
    inputs = list(_inputs(graph))
    names = dict.fromkeys(chain(inputs, _outputs(graph)))
    seen = [found for found in map(ranges.get, names) if found is not None and _is_over(found)]
    if not seen:
        return
    largest = max(seen, key=lambda found: found.max_abs)
    kind = "Input" if largest.tensor in inputs else "Output"
    others = f", the largest of {len(seen)} such inputs and outputs" if len(seen) > 1 else ""
    yield (
        f"{kind} {largest.tensor}, which --io-types fp16 makes FP16, has max |x| of {largest.max_abs:g} "
        f"[{ranges.worst_batch_of(largest)}], over FP16's {FP16_MAX:g}{others}: no plan mends that, --io-types keep does."
    )


def _is_over(seen: Range) -> bool:
    return seen.over_fp16_count > seen.inf_count


def _inputs(graph: Graph) -> Iterator[str]:
    return (spec.name for spec in graph.inputs if spec.elem_type == TensorProto.FLOAT)


def _outputs(graph: Graph) -> Iterator[str]:
    return (name for name in graph.outputs if graph.dtypes.get(name) == TensorProto.FLOAT)

"""Warnings of a report: what its numbers do not say by themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from onnx import TensorProto

from overflow_fixer.config import BuildOptions
from overflow_fixer.evidence.masks.mask_verdicts import MASK_MAGNITUDE, judge_masks
from overflow_fixer.evidence.own_fp16 import find_lost_in_own_fp16
from overflow_fixer.graph.foreign_operators import count_foreign
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable_node
from overflow_fixer.plurals import name_few, say_plural
from overflow_fixer.records import (
    Budget,
    PlanPolicy,
    PrecisionPlan,
    RangeTable,
    RepairRound,
    TensorError,
    Tolerance,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.reports.unseen import say_unseen
from overflow_fixer.reports.wording import say_foreign, say_unobserved
from overflow_fixer.rules.settling import EXCLUDED
from overflow_fixer.simulation.typed_model import find_unsimulated
from overflow_fixer.verification.comparison import worst_snr_db
from overflow_fixer.verification.half_io import say_over_range

_THIN_DB = 6.0
_THIN_SHARE = 0.5
"""Of the share that may differ, what is near to it: twice the error, as are 6 dB."""
_OF_ENGINES = (
    "typing tf32 workspace_gib optimization_level tactic_sources timing_cache plugins profile".split()
)
_OF_EXPORTS = ("tf32", "plugins", "profile")
"""Those of them that Polygraphy's scripts have as well."""
_QUANTIZES = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


def say_without_effect(build: BuildOptions, is_engine: bool) -> Iterator[str]:
    """That settings of engines were given where a typed model was built, and nothing was exported that has them."""
    usual, exported = BuildOptions(), _OF_EXPORTS if build.exports else ()
    named = (name for name in _OF_ENGINES if getattr(build, name) != getattr(usual, name))
    given = [f"build.{name}" for name in named if name not in exported]
    if given and not is_engine:
        has, it = ("has", "it") if len(given) == 1 else ("have", "them")
        nor = ", nor on what was exported" if build.exports else ""
        yield (
            f"{name_few(given)} {has} no effect on a typed ONNX model, which is what was built{nor}: an engine alone heeds {it}. Build one "
            "with --backend tensorrt, where TensorRT and a GPU are."
        )


def say_luck(best: Attempt, naive: Verification | None) -> Iterator[str]:
    """That a plain engine of weak typing which passes proves little: measured, see docs/tensorrt.md."""
    is_weak = best.artifact.engine is not None and best.artifact.engine.typing == "weak"
    if is_weak and naive is not None and naive.passed and best.plan.pins:
        yield (
            "Plain FP16 passes in this build. TensorRT chooses kernels by timing them, so another build of plain FP16 "
            "may run the pinned nodes in FP16 and not pass."
        )


def say_spent(
    fixed: Verification, rounds: Sequence[RepairRound], budget: Budget, spent: str
) -> Iterator[str]:
    """Of a repair that was ended with more left to try, by what and what that leaves open; `spent` as rounds.Repaired has it."""
    if spent:
        limit = {
            "max_minutes": f"{budget.max_minutes:g} minute{'' if budget.max_minutes == 1 else 's'}",
            "max_builds": say_plural(budget.max_builds, "build"),
            "max_rounds": say_plural(budget.max_rounds, "round"),
        }[spent]
        tried = "" if spent == "max_rounds" else f", after {say_plural(len(rounds), 'round')}"
        left = (
            "pins may be left that are not needed"
            if fixed.passed
            else "what would help may not have been tried"
        )
        yield (
            f"The repair was ended by its limit of {limit} ({spent}){tried}: {left}. A higher --{spent.replace('_', '-')} lets it "
            "go on."
        )


def say_unclamped(graph: Graph, ranges: RangeTable, plan: PrecisionPlan, policy: PlanPolicy) -> Iterator[str]:
    """Which constants are not clamped although --masks clamp asks for it, and why."""
    clamped = {clamp.tensor for clamp in plan.clamps}
    asked = judge_masks(graph, ranges, policy) if policy.masks == "clamp" else ()
    left = [
        verdict
        for verdict in asked
        if verdict.origin.value < -MASK_MAGNITUDE
        and not verdict.is_left
        and verdict.origin.tensor not in clamped
    ]
    if left:
        is_read = "a node that it reaches is pinned, and reads it as it is"
        first = is_read if left[0].clamp is not None else left[0].reason
        yield (
            f"Although --masks clamp asks for it, {say_plural(len(left), 'constant')} {'is' if len(left) == 1 else 'are'} not clamped: "
            f"{name_few(verdict.origin.tensor for verdict in left)}. Of {left[0].origin.tensor}, {left[0].origin.value:g}: {first}."
        )


def say_excluded(plan: PrecisionPlan, fixed: Verification) -> Iterator[str]:
    """Of what does not pass: which nodes would be pinned if the user had not excluded them."""
    left = [finding for finding in plan.considered if finding.reason.endswith(EXCLUDED)]
    nodes = list(dict.fromkeys(finding.node for finding in left))
    if nodes and not fixed.passed:
        yield (
            f"{say_plural(len(nodes), 'node')} that would be pinned {'is' if len(nodes) == 1 else 'are'} left in FP16, since --exclude-nodes "
            f"or --exclude-ops says so: {name_few(nodes)}. {left[0].node} {left[0].reason}. Take out of these what has to be in FP32."
        )


def say_left_out(fixed: Verification, jitter: int) -> Iterator[str]:
    """How many changed copies were not verified on, of `jitter` of each batch that were asked for."""
    asked = jitter * fixed.batch_count
    left = asked - fixed.changed_count
    if left:
        yield (
            f"{left} of {asked} changed copies (jitter) were left out: those in which nothing changes, since whole numbers, bfloat16 "
            "and float8 stay and no value leaves the range of its input; and those that FP32 itself cannot run, or for which it gives "
            "more NaN and infinities than for the batch."
        )


def say_of_model(graph: Graph, ranges: RangeTable, best: Attempt, tolerance: Tolerance) -> Iterator[str]:
    """What is to be said of the model and its outputs."""
    fixed = best.verification
    foreign = count_foreign(graph)
    if foreign:
        yield say_foreign(foreign)
    if ranges.provider_lack is not None:
        yield ranges.provider_lack
    yield from _warn_of_nothing_to_convert(graph, best)
    yield from _warn_of_nan(graph, ranges, fixed)
    yield from _warn_of_unsimulated(graph, best)
    yield from () if fixed.passed and not _count_repaired(best) else _warn_of_chance(graph)
    yield from _warn_of_defaults(graph)
    yield from say_unseen(fixed, graph, tolerance)
    yield from say_unobserved(ranges.not_observed)
    yield from _warn_of_steps(graph, best)


def _warn_of_nothing_to_convert(graph: Graph, best: Attempt) -> Iterator[str]:
    """That a model is in FP16 already, so that there is no FP32 to be held against, or in floats that are not converted."""
    if _has_fp32(graph, best):
        return
    counts = Counter(graph.dtypes.values())
    if half := counts[TensorProto.FLOAT16]:
        yield (
            f"No node of this model computes FP32 floats, and {say_plural(half, 'tensor')} {'is' if half == 1 else 'are'} FP16 "
            "already: nothing was converted, and what it was compared with is the model as it stands. What FP16 does to it is seen "
            "in the model alone that it was made from, before it was converted: give that."
        )
    elif other := counts[TensorProto.DOUBLE] + counts[TensorProto.BFLOAT16]:
        yield (
            f"No node of this model computes FP32 floats, and {say_plural(other, 'tensor')} {'is' if other == 1 else 'are'} FP64 "
            "or BF16, which stay as they are: nothing was converted, and nothing is told of what FP16 does to it. Export the model "
            "in FP32, and give that."
        )


def _has_fp32(graph: Graph, best: Attempt) -> bool:
    """Whether a node of the model computes FP32 floats, casts aside."""
    floats = {*best.artifact.fp16_nodes, *best.artifact.fp32_nodes}
    return any(node.label in floats and node.standard_op != "Cast" for node in graph.nodes)


def say_lost_to_own_fp16(graph: Graph, best: Attempt, lost: tuple[str, ...]) -> Iterator[str]:
    """That no plan can pass, for outputs that what the model itself has in FP16 makes wrong; where it has FP32 as well."""
    if lost and _has_fp32(graph, best):
        yield (
            f"No repair was tried: with all else in FP32, what is FP16 in the model itself makes {', '.join(lost)} wrong. Give the "
            "model that this one was made from, before it was converted to FP16."
        )


def say_thin(
    fixed: Verification, copies: Verification | None, ranges: RangeTable, tolerance: Tolerance
) -> Iterator[str]:
    """Of what passes, without copies, by little: which output is nearest to its limit. Others like its batches may fail.

    `copies` is how it fares on changed copies of the batches, where these were tried and pass.
    """
    errors = [verdict.error for verdict in fixed.outputs]
    nearest = _say_nearest(errors, tolerance) or _say_most_differing(errors, tolerance)
    if nearest is not None and fixed.passed and not fixed.changed_count:
        are_all = copies is not None and copies.changed_count >= 3 * fixed.batch_count
        can_change = not are_all and bool(ranges.fractional)
        more = "--jitter 3 (copies of each batch, changed by up to 2^-10)" if can_change else "more batches"
        tried = (
            f" ({copies.changed_count} of their copies, changed by up to 2^-10, tried and passing)"
            if copies
            else ""
        )
        yield (
            f"{nearest} on these batches, which is little{tried}: others like them may not pass. To have such "
            f"verified and repaired, too, give {more}."
        )


def _say_nearest(errors: Sequence[TensorError], tolerance: Tolerance) -> str | None:
    """How far from its limit the output of floats is that is nearest to it; None where none is near."""
    margins = {
        error.name: worst_snr_db(error) - tolerance.min_snr_of(error.tensor, error.part)
        for error in errors
        if error.is_float and error.compared and error.max_abs_error > tolerance.max_abs_error_of(error)
    }
    name, margin = min(margins.items(), key=lambda item: item[1], default=("", math.inf))
    return f"Output {name} is {margin:.1f} dB over its limit" if margin < _THIN_DB else None


def _say_most_differing(errors: Sequence[TensorError], tolerance: Tolerance) -> str | None:
    """The share of its values in which the output that is not of floats differs that does most; None where it is small."""
    found = (error for error in errors if not error.is_float)
    shares = {error.name: error.mismatched / max(error.element_count, 1) for error in found}
    name, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    allowed = 1 - tolerance.min_agreement
    is_near = share > _THIN_SHARE * allowed
    return (
        f"Output {name} differs in {share:.2%} of its values, of {allowed:.2%} that may," if is_near else None
    )


def say_fragile(copies: Verification) -> Iterator[str]:
    """Of what passes, that it does not on changed copies of batches: which output fails, and where."""
    verdict = next((verdict for verdict in copies.outputs if not verdict.passed), None)
    if verdict is not None:
        yield (
            f"What was built is right on the batches that it was made for, and not on copies of them with inputs changed by up to "
            f"2^-10, a step of FP16: output {verdict.error.name} fails in {verdict.error.worst_batch}: {verdict.reason}. Others like "
            "these batches may fail too. --jitter 3 repairs for such copies of each."
        )


def say_unsettled(error: TensorError) -> str:
    """That an output is not determined by FP32 either, which no precision mends."""
    if error.other_shape is not None:
        found = f"another shape, {error.other_shape}"
    elif error.is_float:
        found = f"an SNR of {worst_snr_db(error):.1f} dB"
    else:
        found = f"{1 - error.mismatched / max(error.element_count, 1):.2%} of its values equal"
    return (
        f"FP32 itself does not settle output {error.name}: with the last digit of every input changed (by up to 2^-23), FP32 against "
        f"itself has {found}, at worst in {error.worst_batch}. Other kernels and other devices differ as much in FP32 alone, so what "
        "is pinned for it may buy nothing. Look in the model for a division by nearly zero, a difference of nearly equal values, or a "
        "choice between such."
    )


def say_half_io(graph: Graph, ranges: RangeTable, lost_outputs: tuple[str, ...]) -> Iterator[str]:
    """That inputs or outputs do not fit into the FP16 that was asked for, in one warning."""
    said = [*say_over_range(graph, ranges)]
    if lost_outputs:
        said.append(
            f"No repair was tried: with FP16 inputs and outputs alone, FP32 in between, {', '.join(lost_outputs)} "
            f"{'is' if len(lost_outputs) == 1 else 'are'} wrong{'' if said else ': use --io-types keep'}."
        )
    if said:
        yield " ".join(said)


def _warn_of_nan(graph: Graph, ranges: RangeTable, fixed: Verification) -> Iterator[str]:
    """Which outputs are NaN before anything is converted, and the first tensor of the model's own FP16 that does not fit."""
    lost = find_lost_in_own_fp16(graph, ranges)
    broken = [v.error.tensor for v in fixed.outputs if v.error.reference_nan and not v.error.part]
    own, others = ([name for name in broken if (name in lost) is is_own] for is_own in (True, False))
    if own:
        yield f"The model as it stands, with its own FP16, gives NaN in {', '.join(own)}."
    if others:
        yield f"FP32 itself gives NaN in {', '.join(others)}: no precision can mend that."
    if lost:
        first = ranges.by_tensor[next(iter(lost))]
        yield (
            f"Tensor {first.tensor} is FP16 in the model itself, and holds {first.nan_count} NaN and {first.inf_count} infinite "
            "values there. No plan changes the types that a model comes with: make FP32 in the model what computes it."
        )


def _warn_of_unsimulated(graph: Graph, best: Attempt) -> Iterator[str]:
    """That a typed model passes without what nodes of the model itself, bodies and other domains, lose in their FP16."""
    found = [] if best.artifact.engine is not None else [*find_unsimulated(graph)]
    if found:
        one = len(found) == 1
        yield (
            f"{say_plural(len(found), 'node')} {'computes' if one else 'compute'} in FP16 in the model itself, where rounding is not "
            f"simulated, in bodies or as operators of other domains: {name_few(node.label for node in found)}. Of what is lost or "
            "overflows there no verification tells. Give the model that this one was made from, before it was converted to FP16."
        )


def _count_repaired(best: Attempt) -> int:
    """The nodes that the repair pinned, and no rule."""
    return sum(any(finding.rule == "repair" for finding in pin.findings) for pin in best.plan.pins)


def _warn_of_defaults(graph: Graph) -> Iterator[str]:
    """That what is built lacks some of the model's inputs."""
    if graph.defaults:
        yield (
            f"The model has defaults (initializers) for {say_plural(len(graph.defaults), 'input')}: {name_few(sorted(graph.defaults))}. They are "
            "constants of what was built, and nothing else can be fed there. Where something else is, take the initializer out of "
            "the model, and give data for the input."
        )


def _warn_of_steps(graph: Graph, best: Attempt) -> Iterator[str]:
    """That what differs, and what is pinned for it, may be single steps of a quantized model."""
    places = sum(node.standard_op in _QUANTIZES for node in graph.nodes)
    repaired = _count_repaired(best)
    if places and (repaired or not best.verification.passed):
        pinned = (
            f", and {say_plural(repaired, 'node')} that rules do not pin may be pinned for that"
            if repaired
            else ""
        )
        yield (
            f"The model quantizes at {say_plural(places, 'place')}. Where rounding to FP16 moves a value there over the border between "
            f"two steps, outputs differ by a whole step{pinned}. Quantization itself errs by as much: if the model serves "
            "with it, compare both on your task, and allow a lower SNR (--min-snr-db) for fewer pins."
        )


def _warn_of_chance(graph: Graph) -> Iterator[str]:
    """That what differs may be no error of FP16."""
    chance = next((node for node in graph.nodes if not is_repeatable_node(graph, node)), None)
    if chance is not None:
        yield (
            f"{chance.op_type} {chance.label} may give other values each time it runs (it draws random numbers, or changes what "
            "it holds), and FP32 and what was built ran once each: their outputs differ by that too. Export the model for "
            "inference, or without it."
        )

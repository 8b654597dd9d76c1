"""Warnings about outputs that pass: what the numbers that they pass by do not show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.metrics.variations import find_limit
from overflow_fixer.plurals import agree, name_few, say_plural
from overflow_fixer.records import HiddenVariation, OutputVerdict, TensorError, Tolerance, Verification
from overflow_fixer.rules.digits import tell_beside

_MANY = 0.25
"""A smaller share of values that are far off is what an SNR of 30 dB allows."""
_LEAST_ELEMENTS = 8
"""Of fewer it is chance."""


def say_unseen(fixed: Verification, graph: Graph, tolerance: Tolerance) -> Iterator[str]:
    """What of outputs that pass the numbers that they pass by do not show."""
    for verdict in fixed.outputs:
        if verdict.error.element_count == 0:
            yield f"Output {verdict.error.name} was empty in every batch, so nothing of it was compared."
        yield from _warn_of_quiet(verdict, tolerance)
        yield from _warn_of_disagreement(verdict, tolerance)
    yield from say_zero(fixed, tolerance)
    yield from say_far_off(fixed, graph, tolerance)
    yield from say_sign_changes(fixed, graph, tolerance)
    yield from say_hidden(fixed, graph, tolerance)
    yield from say_varying(fixed, graph, tolerance)
    yield from say_lost_classes(fixed)
    yield from say_gained_classes(fixed)


def _warn_of_quiet(verdict: OutputVerdict, tolerance: Tolerance) -> Iterator[str]:
    """That an output of floats passes in a batch for nothing but having next to nothing there; others are judged by what is equal."""
    error = verdict.error
    is_small = error.max_abs_error <= tolerance.max_abs_error_of(error)
    if (
        verdict.passed
        and error.is_float
        and not is_small
        and error.quiet_batch_snr_db < tolerance.min_snr_of(error.tensor, error.part)
    ):
        others = (
            ""
            if error.quiet_count == 1
            else f" ({error.quiet_count} batches have as little, this is the worst)"
        )
        yield (
            f"Output {error.name} has under 1 % of its mean energy in {error.quiet_batch}, where its SNR is "
            f"{error.quiet_batch_snr_db:.1f} dB{others}: it passes there because such a batch is judged as if it had 1 %. If "
            "batches like that matter, verify on them alone, which judges them by their own."
        )


def _warn_of_disagreement(verdict: OutputVerdict, tolerance: Tolerance) -> Iterator[str]:
    """That an output that is not of floats passes by what is equal over all batches, and would not in one."""
    error = verdict.error
    if verdict.passed and error.worst_batch_agreement < tolerance.min_agreement:
        share = 1 - error.mismatched / error.element_count
        enough = 100 * tolerance.min_agreement
        shape = f", and it has another shape than in FP32: {error.other_shape}" if error.other_shape else ""
        yield (
            f"Output {error.name} passes with {share:.2%} of its values equal over all batches, but in {error.worst_batch} only "
            f"{tell_beside(100 * error.worst_batch_agreement, enough, 2)}% are, under {enough:.12g}%{shape}. One value may flip where two choices are as "
            "good; a whole batch that is wrong is another matter: look at it."
        )


def say_zero(fixed: Verification, tolerance: Tolerance) -> Iterator[str]:
    """Which outputs of floats, and parts, were never anything but zero, so that nothing can be concluded of them."""
    zero = [verdict.error for verdict in fixed.outputs if _is_zero(verdict.error)]
    if zero:
        one, them = ("Output", "it") if len(zero) == 1 else ("Outputs", "them")
        or_filled = (
            " or a constant that fills it" if any(one.tensor in tolerance.fills for one in zero) else ""
        )
        yield (
            f"{one} {name_few(error.name for error in zero)}: zero{or_filled} in every batch, in FP32 and in what was built. Nothing can be concluded of {them} from these "
            "data, an SNR of inf dB neither. Verify on data that give something else."
        )


def _is_zero(error: TensorError) -> bool:
    """Whether all of it was compared and is zero on both sides."""
    is_all = error.is_float and 0 < error.element_count == error.compared
    return is_all and error.max_abs_reference == 0 and error.max_abs_error == 0


def say_far_off(fixed: Verification, graph: Graph, tolerance: Tolerance) -> Iterator[str]:
    """Which output, or part, passes by its SNR with many of its values quite wrong; not of probabilities."""
    by_snr = _pass_by_snr(fixed, tolerance)
    for error in (verdict.error for verdict in fixed.outputs if verdict.passed):
        is_judged = error.tensor in by_snr and not _is_of_shares(graph, error.tensor)
        if is_judged and _errs_widely(error, tolerance.min_snr_of(error.tensor, error.part)):
            yield (
                f"Output {error.name} passes, but {error.far_off_count} of its {error.sizable_count} values of 2^-14 and more are off by more than a tenth "
                f"of themselves, though the SNR is {error.snr_db:.1f} dB: that is a matter of the large ones. Where the others matter, ask for more of "
                f"it: {_ask(error.name, fixed, tolerance)}."
            )


_EXACT_DB = 6000.0
"""More is no number in float64."""


def _errs_widely(error: TensorError, min_snr_db: float) -> bool:
    """Whether a quarter is far off, and no smaller share than of Gaussian values and errors at this SNR: 19.5 % at 30 dB, half at 20."""
    allowed = 1 - 2 / math.pi * math.atan(0.1 * 10 ** (min(min_snr_db, _EXACT_DB) / 20))
    is_list = error.sizable_count >= _LEAST_ELEMENTS
    return is_list and error.far_off_count >= max(_MANY, allowed) * error.sizable_count


def say_sign_changes(fixed: Verification, graph: Graph, tolerance: Tolerance) -> Iterator[str]:
    """Which output, or part, that passes by its SNR has elements that are negative, or zero, as FP32 has none; not of probabilities."""
    errors = (verdict.error for verdict in fixed.outputs if verdict.passed)
    passing = {
        error.name: error for error in errors if error.max_abs_error > tolerance.max_abs_error_of(error)
    }
    for found in fixed.sign_changes:
        if found.name in passing and not _is_of_shares(graph, found.tensor):
            so, uncounted, what = _CHANGES[found.becomes]
            yield (
                f"Output {found.name} passes, but {found.count} of its {found.elements} elements {agree(found.count, 'is', 'are')} {so}, as none is in FP32 ({uncounted}): the worst is "
                f"{found.candidate:.4g} in place of {found.reference:.4g}, in {found.batch}. The SNR of {passing[found.name].snr_db:.1f} dB is a matter of the "
                f"large ones. Where {what} of it is taken, or small ones matter, ask for more of it: "
                f"{_ask(found.name, fixed, tolerance)}."
            )


_CHANGES = {
    "negative": (
        "negative",
        "of what FP32 has under 2^-14, or 2^-20 of its batch's largest value, counting only those beyond 2^-8 of that",
        "a root or a logarithm",
    ),
    "zero": (
        "zero",
        "not counting those that FP32 has under 2^-14, or 2^-11 of their batch's largest value, which rounding alone may make zero",
        "a logarithm or a reciprocal",
    ),
}


def say_hidden(fixed: Verification, graph: Graph, tolerance: Tolerance) -> Iterator[str]:
    """Which part of an output that passes by its SNR is under it, unseen; not of probabilities."""
    by_snr = _pass_by_snr(fixed, tolerance)
    judged = {verdict.error.name.replace(" ", "") for verdict in fixed.outputs}
    for found in fixed.hidden:
        part, is_of_shares = found.tensor + found.part, _is_of_shares(graph, found.tensor)
        if found.tensor not in by_snr or is_of_shares or part.replace(" ", "") in judged:
            continue
        limit = tolerance.min_snr_of(found.tensor)
        others = f", and {found.count - 1} more" if found.count > 1 else ""
        why = (
            f"What is there, {found.rms:.3g} (root mean square), is hidden beside the {found.output_rms:.3g} of the whole"
            if found.is_small
            else "What is there errs more than ten times as much as an index does on average"
        )
        yield (
            f"Output {found.tensor} passes as a whole, but at index {found.index} of axis {found.axis} (counted from 0{others}) its SNR is "
            f"{tell_beside(found.snr_db, limit)} dB, under {limit:.12g} dB. {why}. Where it matters, have it judged by itself: --part '{part}'."
        )


def say_varying(fixed: Verification, graph: Graph, tolerance: Tolerance) -> Iterator[str]:
    """Of which output that passes by its SNR what varies is lost beside its mean, or a channel's; not of probabilities."""
    for found in fixed.hidden_variations:
        if found.tensor in _pass_by_snr(fixed, tolerance) and not _is_of_shares(graph, found.tensor):
            limit = find_limit(tolerance, found.tensor)
            needed = math.ceil(limit + 20 * math.log10(found.output_rms / found.rms))
            where, what = _place(found)
            name = found.tensor + found.part
            yield (
                f"Output {found.tensor} passes as a whole, but {where} it varies by {found.rms:.3g} (root mean square) beside values of "
                f"{found.output_rms:.6g}, and of that the SNR is {tell_beside(found.snr_db, limit)} dB, under {limit:.12g} dB. Where it matters, ask for "
                f"{needed} dB of {what}: {_ask(name, fixed, tolerance, needed)}."
            )


def _place(found: HiddenVariation) -> tuple[str, str]:
    """Where an output varies, and what that is."""
    within = "within each sample" if found.within_samples else "over all batches"
    if not found.part:
        return within, "this output"
    part = found.tensor + found.part
    others = f" (and {found.count - 1} more like it)" if found.count > 1 else ""
    return f"in the channel {part}{others} {within}", "this channel"


def _ask(name: str, fixed: Verification, tolerance: Tolerance, needed: int | None = None) -> str:
    """The setting that asks for more, or so many dB, of this output or part; the flag only where it counts for no other."""
    value = "" if needed is None else f" {needed}"
    alone = sum(verdict.error.is_float for verdict in fixed.outputs) == 1 and not tolerance.per_output
    is_whole = any(verdict.error.name == name for verdict in fixed.outputs)
    flag = f"--min-snr-db{value}, or " if alone and is_whole else ""
    key = json.dumps(name, ensure_ascii=False)  # as TOML has it, too
    return f"{flag}{key}{' =' if value else ''}{value} in the table [verify.per_output] of a config file"


def say_lost_classes(fixed: Verification) -> Iterator[str]:
    """Which value of an output of integers is lost, where the output passes by the share of all its elements that are equal."""
    passing = _passing(fixed)
    for found in fixed.hidden_classes:
        if found.tensor in passing:
            others = (
                f"; {say_plural(found.count - 1, 'more value is', 'more values are')} lost by half and more"
                if found.count > 1
                else ""
            )
            yield (
                f"Output {found.tensor} passes as a whole, but of the {say_plural(found.elements, 'element that is', 'elements that are')} {found.value} in FP32, over all "
                f"batches, {say_plural(found.equal, 'is', 'are')}{others}. If it holds classes, look at this one."
            )


def say_gained_classes(fixed: Verification) -> Iterator[str]:
    """Which value an output of integers has far more often than in FP32, where it passes by the share of all its elements that
    are equal.
    """
    passing = _passing(fixed)
    for found in fixed.gained_classes:
        if found.tensor in passing:
            others = (
                f"; {say_plural(found.count - 1, 'more value is', 'more values are')} gained so"
                if found.count > 1
                else ""
            )
            yield (
                f"Output {found.tensor} passes as a whole, but over all batches {say_plural(found.found, 'element is', 'elements are')} {found.value}, against "
                f"{found.elements} in FP32{others}. If it holds classes or alarms, look at this one."
            )


def _passing(fixed: Verification) -> set[str]:
    """The outputs that pass as a whole."""
    return {verdict.error.tensor for verdict in fixed.outputs if verdict.passed and not verdict.error.part}


def _pass_by_snr(fixed: Verification, tolerance: Tolerance) -> set[str]:
    """The outputs that pass as a whole, and by more than an absolute error that is allowed."""
    wholes = (verdict.error for verdict in fixed.outputs if verdict.passed and not verdict.error.part)
    return {error.tensor for error in wholes if error.max_abs_error > tolerance.max_abs_error_of(error)}


def _is_of_shares(graph: Graph, output: str) -> bool:
    """Whether it holds probabilities, of which small ones matter to nobody."""
    producer = graph.producers.get(output)
    return producer is not None and producer.standard_op == "Softmax"

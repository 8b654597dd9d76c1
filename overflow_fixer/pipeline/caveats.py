"""What makes the result of a run worth less than it looks, as its report warns of it."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.config import FixConfig
from overflow_fixer.pipeline.trying import Tried, make_policy
from overflow_fixer.reports.caveats import (
    say_excluded,
    say_fragile,
    say_half_io,
    say_left_out,
    say_lost_to_own_fp16,
    say_luck,
    say_of_model,
    say_spent,
    say_thin,
    say_unclamped,
    say_unsettled,
    say_without_effect,
)
from overflow_fixer.trials.bench import Bench


def find_caveats(config: FixConfig, bench: Bench, result: Tried) -> Iterator[str]:
    """Every warning, in the order in which they are told; what is to be run for some is run here."""
    yield from say_without_effect(config.build, bench.backend.is_engine)
    yield from bench.unheeded
    yield from say_luck(result.best, result.naive)
    yield from say_spent(result.best.verification, result.rounds, config.repair.budget(), result.spent)
    yield from say_excluded(result.best.plan, result.best.verification)
    yield from say_left_out(result.best.verification, config.verify.jitter)
    if result.rounds or not result.best.verification.passed:
        yield from map(say_unsettled, bench.find_unsettled())
    yield from _try_more(config, bench, result)
    policy = make_policy(config, bench.backend_name)
    yield from say_unclamped(bench.graph, bench.ranges, result.best.plan, policy)
    if config.build.io_types == "fp16":
        yield from say_half_io(bench.graph, bench.ranges, result.lost_outputs)
    yield from say_lost_to_own_fp16(bench.graph, result.best, result.lost_to_own_fp16)
    yield from bench.backend.warn(result.best.artifact, config.custom_ops)
    yield from say_of_model(bench.graph, bench.ranges, result.best, bench.tolerance)


def _try_more(config: FixConfig, bench: Bench, result: Tried) -> Iterator[str]:
    """What is to be said of batches like these, where a repair was made for them or an output passes by little."""
    found = result.best.verification
    is_thin = any(say_thin(found, None, bench.ranges, bench.tolerance))
    if config.verify.jitter == 0 and found.passed and (result.rounds or is_thin):
        copies = bench.try_copies(result.best.artifact)
        fragile = [] if copies is None else list(say_fragile(copies))
        if fragile and not result.rounds:
            yield from map(say_unsettled, bench.find_unsettled())
        yield from fragile or say_thin(found, copies, bench.ranges, bench.tolerance)

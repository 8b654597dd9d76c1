"""What is built of a plan, and to compare it with: plain FP16, the plan with its repairs, FP32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overflow_fixer.backends import find_protected, tensorrt
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import BackendError
from overflow_fixer.pipeline.clock import Clock
from overflow_fixer.records import (
    Artifact,
    PlanPolicy,
    PrecisionPlan,
    Price,
    RepairRound,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.repair.rounds import Repaired, repair
from overflow_fixer.trials.bench import Bench


@dataclass(frozen=True)
class Tried:
    """What trying came to: the best attempt, how plain FP16 and the backend's FP32 fare, and the price.

    `lost_outputs` are those that FP16 inputs and outputs alone make wrong, `lost_to_own_fp16` those that what the model itself has
    in FP16 does: no repair is made then. `spent` is the budget's key that ended the repair.
    """

    best: Attempt
    naive: Verification | None = None
    rounds: tuple[RepairRound, ...] = ()
    fp32: Verification | None = None
    price: Price | None = None
    warnings: tuple[str, ...] = ()
    lost_outputs: tuple[str, ...] = ()
    lost_to_own_fp16: tuple[str, ...] = ()
    spent: str = ""


def try_all(config: FixConfig, bench: Bench, plan: PrecisionPlan, clock: Clock) -> Tried:
    """Plain FP16, the plan with its repairs and, for an engine, FP32 to tell faults from and to time.

    What is built for comparison alone and cannot be becomes a warning.
    """
    engines: dict[str, Artifact] = {}
    warnings: list[str] = []
    naive, fp32, price = None, None, None
    compare, is_engine = config.build.compare, bench.backend.is_engine
    if compare:
        with clock.time("naive"), tolerate("Plain FP16 was not compared", warnings):
            engines[tensorrt.NAIVE], naive = bench.try_naive()
    with clock.time("fix"):
        is_naive = is_plain_engine(bench, plan) and naive is not None
        first = Attempt(
            plan, *((engines[tensorrt.NAIVE], naive) if is_naive and naive else bench.try_plan(plan))
        )
    if is_engine and (compare or not first.verification.passed):
        with clock.time("FP32 engine"), tolerate("TensorRT's own FP32 was not compared", warnings):
            engines[tensorrt.FP32_EXACT], fp32 = bench.try_fp32()
    is_fault = fp32 is not None and not fp32.passed
    with clock.time("repair"):
        lost = () if first.verification.passed else bench.find_lost_outputs()
        lost_to_own = () if first.verification.passed or lost else bench.find_lost_to_own_fp16()
        is_lost = is_fault or lost or lost_to_own
        repaired = Repaired(first, (), "") if is_lost else _repair(config, bench, first)
    best = repaired.best
    if is_engine and compare:
        with clock.time("timing"), tolerate("Nothing was timed", warnings):
            price = bench.measure_price(best.artifact, engines)
    return Tried(
        best, naive, repaired.rounds, fp32, price, tuple(warnings), lost, lost_to_own, repaired.spent
    )


def is_plain_engine(bench: Bench, plan: PrecisionPlan) -> bool:
    """Whether what the plan makes is the engine of plain FP16; a typed model keeps nodes in FP32 even so, and plain FP16 fewer."""
    return bench.backend.is_engine and not plan.pins and not plan.clamps


def _repair(config: FixConfig, bench: Bench, first: Attempt) -> Repaired:
    best, rounds, spent = repair(
        bench.graph,
        bench.ranges,
        bench.calibration,
        make_policy(config, bench.backend_name),
        first,
        lambda widened: bench.try_plan(widened, "repair"),
        bench.tolerance,
        config.repair.budget(),
        bench.discard,
        bench.progress,
    )
    renewed = bench.renew(best.artifact, best.plan)
    return Repaired(best if renewed is None else Attempt(best.plan, *renewed), rounds, spent)


@contextmanager
def tolerate(what: str, warnings: list[str]) -> Iterator[None]:
    """Turn the failure of a comparison into a warning: the fix does not hang on it."""
    try:
        yield
    except BackendError as error:
        warnings.append(f"{what}: {error}")


def make_policy(config: FixConfig, backend: str) -> PlanPolicy:
    """What the planner may decide, with what the backend protects by itself. Raises BackendError where it is missing."""
    return config.plan.policy(find_protected(backend, config.build.typing))

"""A model that plans are built for and tried on, and what goes wrong in FP16 in one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from in_memory_calibration import InMemoryCalibration, ints, make_model, node, scalar, scan

from overflow_fixer.backends.mixed_onnx import emit, open_runner, open_tracer
from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.progress import Progress, silent
from overflow_fixer.records import (
    Artifact,
    Budget,
    PlanPolicy,
    PrecisionPlan,
    RangeTable,
    RepairRound,
    Tolerance,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.repair.foresight import Foreseer
from overflow_fixer.repair.rounds import repair
from overflow_fixer.repair.trace import trace
from overflow_fixer.rules import DEFAULT_RULES
from overflow_fixer.verification.comparison import open_reference, verify

TOLERANCE = Tolerance()
POLICY = PlanPolicy()
FEW_RULES = {name: DEFAULT_RULES[name] for name in ("threshold", "non_finite", "constant_range", "user")}
"""Those that see neither what cancels nor what vanishes, so that the repair has to."""
RNG = np.random.default_rng(0)
X = tuple({"x": RNG.normal(size=(4, 8)).astype(np.float32)} for _ in range(2))


def weight() -> np.ndarray:
    return (RNG.normal(size=(8, 8)) / math.sqrt(8)).astype(np.float32)


CONSTANTS = {
    "c": scalar(4096),
    "w0": weight(),
    "w1": weight(),
    "shape": ints(8, 4),
    "k": scalar(1000),
    "k2": scalar(999.9),
    "tiny": scalar(1e-4),
    "tinier": scalar(2e-5),
    "one": scalar(1),
}


@dataclass
class Trial:
    """A model and its data, and a way to build plans for it and to count them."""

    folder: Path
    nodes: list[onnx.NodeProto]
    constants: dict[str, Any] = field(default_factory=lambda: CONSTANTS)
    outputs: str = "y"
    policy: PlanPolicy = POLICY
    tolerance: Tolerance = TOLERANCE
    output_types: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = make_model(
            self.nodes, {"x": [4, 8]}, self.outputs, self.constants, output_types=self.output_types
        )
        self.graph: Graph
        self.ranges: RangeTable
        self.graph, self.ranges = scan(model, self.folder, *X)
        self.batches = InMemoryCalibration(X)
        self.built: list[PrecisionPlan] = []

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        self.built.append(plan)
        artifact = emit(self.graph, plan, self.folder / f"trial_{len(self.built)}.onnx")
        reference, candidate = open_reference(self.graph), open_runner(artifact)
        found = verify(reference, candidate, self.batches, self.tolerance)
        if found.passed:
            return artifact, found
        return artifact, trace(
            found, self.graph, self.ranges, self.batches, lambda t: open_tracer(artifact, t), self.tolerance
        )

    def first(self) -> Attempt:
        plan = plan_precision(self.graph, self.ranges, self.policy, FEW_RULES)
        return Attempt(plan, *self.build(plan))

    def foreseer(
        self, first: Attempt | None = None, seconds: float = 3600, progress: Progress = silent
    ) -> Foreseer:
        known = self.graph, self.batches, self.policy, first or self.first(), self.tolerance
        return Foreseer(*known, time.monotonic() + seconds, progress)

    def repair(
        self, max_rounds: int = 6, build: Callable[..., Any] | None = None, **budget: Any
    ) -> tuple[Attempt, tuple[RepairRound, ...]]:
        self.spent: str
        best, rounds, self.spent = repair(
            self.graph,
            self.ranges,
            self.batches,
            self.policy,
            self.first(),
            build or self.build,
            self.tolerance,
            Budget(max_rounds=max_rounds, **budget),
        )
        return best, rounds


def cancelling(i: int = 0, source: str = "x") -> list[onnx.NodeProto]:
    """x W + 4096 - 4096: between, FP16 keeps multiples of 4."""
    return [
        node("MatMul", f"{source} w{i % 2}", f"a{i}"),
        node("Add", f"a{i} c", f"b{i}"),
        node("Sub", f"b{i} c", f"d{i}"),
        node("Tanh", f"d{i}", f"h{i}"),
    ]


def vanishing(i: int = 0, source: str = "x") -> list[onnx.NodeProto]:
    """(m t) / t with t of about 2e-9, made in steps that FP16 holds: its zeros give 0 / 0."""
    return [
        node("MatMul", f"{source} w{i % 2}", f"m{i}"),
        node("Abs", f"m{i}", f"q{i}"),
        node("Add", f"q{i} one", f"a{i}"),
        node("Mul", f"a{i} tiny", f"b{i}"),
        node("Mul", f"b{i} tinier", f"c{i}"),
        node("Mul", f"c{i} m{i}", f"e{i}"),
        node("Div", f"e{i} c{i}", f"h{i}"),
    ]


def layers(count: int, kind: Callable[[int, str], list[onnx.NodeProto]]) -> list[onnx.NodeProto]:
    nodes = [at for i in range(count) for at in kind(i, f"h{i - 1}" if i else "x")]
    return [*nodes, node("Identity", f"h{count - 1}", "y")]


def chained(x: str = "x") -> list[onnx.NodeProto]:
    """x (k a b) - x (k a b - 1): of what each node does to its own output, nothing shows but at the end."""
    return [
        node("Mul", f"{x} k", "p"),
        node("Mul", "p ka", "q"),
        node("Mul", "q kb", "r"),
        node("Mul", f"{x} all", "s"),
        node("Sub", "r s", "d"),
        node("MatMul", "d w1", "y"),
    ]


FACTORS = {"ka": scalar(0.11), "kb": scalar(3.3), "all": scalar(1000 * 0.11 * 3.3 - 1)}


def two_halves(first: float, second: float) -> list[onnx.NodeProto]:
    """Each half of x goes through a sum that takes digits away, and into an output of its own."""
    return [
        node("Split", "x", "u v", axis=1),
        node("Add", f"u c{first:g}", "a"),
        node("Sub", f"a c{first:g}", "y"),
        node("Add", f"v c{second:g}", "b"),
        node("Sub", f"b c{second:g}", "z"),
    ]


def worst_of(first: Attempt) -> str:
    """The batch that is worst for the first output that fails."""
    (verdict, *_) = (v for v in first.verification.outputs if not v.passed)
    assert verdict.error.worst_batch is not None
    return verdict.error.worst_batch

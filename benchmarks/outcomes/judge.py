"""A typed model of any tool against FP32, by `fix-fp16 verify --artifact` on batches that the tool has not seen."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import TensorProto

from overflow_fixer import load_graph
from overflow_fixer.errors import EXIT_FIXED, EXIT_NOT_VERIFIED

RIGHT, WRONG, NONFINITE = "right", "wrong", "NaN or Inf"
INVALID, UNJUDGED, FAILED = "not a valid model", "not judged", "no model"
VERDICTS = (RIGHT, WRONG, NONFINITE, INVALID, FAILED, UNJUDGED)


@dataclass(frozen=True)
class Outcome:
    """What a tool made of a network.

    `snr_db` is the least of an output of floats in a batch, of those that fail if any output does; NaN where there is none or the tool's has NaN or infinities of its own;
    `fp32_share` that of the nodes of the main
    graph with a float output, Casts aside, that give it in FP32.
    """

    verdict: str
    snr_db: float = math.nan
    fp32_share: float = math.nan
    remark: str = ""


def judge(model: Path, typed: Path, fresh: Path) -> Outcome:
    """The outcome. A model in which nothing is FP16 is right, at a share of 1."""
    command = ["verify", str(model), "--artifact", str(typed), "--calib", str(fresh), "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "overflow_fixer", *command], capture_output=True, text=True, check=False
    )
    if done.returncode not in (EXIT_FIXED, EXIT_NOT_VERIFIED):
        said = done.stderr.strip()
        return Outcome(INVALID if " refuses " in said else UNJUDGED, remark=said)
    found = json.loads(done.stdout)
    verdict = _verdict(found["outputs"], found["passed"])
    told = (
        output for output in found["outputs"] if output["is_float"] and output["passed"] == found["passed"]
    )
    decibels = [
        float(output["worst_batch_snr_db"]) for output in told
    ]  # what is not finite is a string in JSON
    return Outcome(
        verdict,
        snr_db=math.nan if verdict == NONFINITE else min(decibels, default=math.nan),
        fp32_share=measure_fp32_share(typed),
        remark="; ".join(output["reason"] for output in found["outputs"] if not output["passed"]),
    )


def measure_fp32_share(typed: Path) -> float:
    """0 to 1; NaN where no node gives floats."""
    graph = load_graph(typed)
    types = [
        {graph.dtypes.get(tensor) for tensor in node.outputs}
        for node in graph.nodes
        if node.op_type not in ("Cast", "Constant")
    ]
    single = sum(TensorProto.FLOAT in found for found in types)
    half = sum(TensorProto.FLOAT16 in found and TensorProto.FLOAT not in found for found in types)
    return single / (single + half) if single + half else math.nan


def _verdict(outputs: list[dict[str, Any]], passed: bool) -> str:
    if passed:
        return RIGHT
    gained = any(
        output[f"candidate_{what}"] > output[f"reference_{what}"]
        for output in outputs
        for what in ("nan", "inf")
    )
    return NONFINITE if gained else WRONG

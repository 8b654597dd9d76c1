"""Outcomes to Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.outcomes.judge import RIGHT, VERDICTS, WRONG, Outcome
from benchmarks.tables import markdown

ByTool = Mapping[str, Outcome]


def summary_table(by_network: Mapping[str, ByTool]) -> str:
    """Of each tool: how many networks have each verdict, and the share of FP32 of those that are right."""
    tools = list(next(iter(by_network.values())))
    head = ["", *VERDICTS, "FP32, median of the right ones"]
    return markdown(head, [[tool, *_sums([found[tool] for found in by_network.values()])] for tool in tools])


def network_table(by_network: Mapping[str, ByTool]) -> str:
    """Of each network and tool the SNR on unseen batches and the share of FP32, or the verdict."""
    tools = list(next(iter(by_network.values())))
    rows = [[name, *(_cell(found[tool]) for tool in tools)] for name, found in by_network.items()]
    return markdown(["dB, nodes in FP32", *tools], rows)


def _sums(outcomes: Sequence[Outcome]) -> list[str]:
    counts = [sum(found.verdict == verdict for found in outcomes) for verdict in VERDICTS]
    shares = [found.fp32_share for found in outcomes if found.verdict == RIGHT]
    return [*(str(count or "") for count in counts), f"{median(shares):.0%}" if shares else ""]


def _cell(found: Outcome) -> str:
    if found.verdict not in (RIGHT, WRONG):
        return found.verdict
    decibels = "integers" if math.isnan(found.snr_db) else f"{found.snr_db:.1f}"
    numbers = f"{decibels}, {found.fp32_share:.0%}"
    return numbers if found.verdict == RIGHT else f"**{WRONG}**: {numbers}"

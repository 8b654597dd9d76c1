"""A pattern found in a graph: the nodes that belong together, and where they begin and end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """Nodes that an exporter wrote for one operation.

    `kind` is what they compute ("LayerNorm", "RMSNorm", ...), `nodes` their labels in the order of the graph: those
    that stay in one precision. They read `source`, constants and masks, and end in `output`. A pin on one of the nodes that
    `lead` goes on to them, and none of theirs to it.
    """

    kind: str
    nodes: tuple[str, ...]
    source: str
    output: str
    lead: tuple[str, ...] = ()

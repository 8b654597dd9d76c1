"""Tensors whose NaN would show in another, so that they need no guard of their own.

What Add, Sub, Mul or Div reads reaches its output, element by element, and a NaN stays one (IEEE 754).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from overflow_fixer.graph.model import Graph

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})


def find_covers(
    graph: Graph, sources: Mapping[str, str], probed: Collection[str], counts: Mapping[str, int]
) -> dict[str, str]:
    """For each of `probed` that needs no guard, in graph order, the one of them that shows its NaN.

    That one may have a cover in turn. `sources` maps each observed tensor to the one whose values it
    holds; `counts` are the numbers of elements, of those tensors of which it is sure.
    """
    found: dict[str, str] = {}
    known = frozenset(probed)
    for name, source in sources.items():
        for node in graph.consumers.get(name, ()) if source in known else ():
            output = node.outputs[0]
            is_shown = 0 < counts.get(source, 0) <= counts.get(output, 0)
            if is_shown and sources.get(output) == output in known and node.standard_op in _ARITHMETIC:
                found.setdefault(source, output)
    return {name: found[name] for name in probed if name in found}

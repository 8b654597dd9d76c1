"""The tensors of which the smallest magnitude matters, and is taken.

To take it costs more than everything else that a scan takes, and of most tensors it tells nothing: one
element near zero among millions is no danger. It matters where a small value becomes a large one, in an output of
the model, where it is compared with zero or a tiny number, and where a tensor may be a mask, all of whose elements are 0 or
one number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from overflow_fixer.graph.comparisons import find_tiny_comparisons
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

_ENLARGING = {"Div": 1, "Mod": 1, "Log": 0, "Reciprocal": 0, "Pow": 0, "Sqrt": 0}
"""Operators and the input whose small values they make large."""
_ZERO_AT_1 = frozenset({"Log", "Acos", "Acosh"})
_ZERO_AT_0 = frozenset(
    """Neg Abs Mul Div Sqrt Sin Tan Sinh Tanh Asin Atan Relu LeakyRelu Clip Max Add Identity Cast Reshape Flatten Squeeze
    Unsqueeze Transpose Expand Tile Slice Split Gather Concat""".split()
)
"""Operators that hand a small value on to what makes a large one of it."""
_SWITCHES = frozenset("Hardmax OneHot Sign Floor Ceil Round".split())
"""Operators whose outputs are few numbers whatever comes in."""
_SIMPLE = frozenset(
    "Abs Add Cast Clip Concat Div Dropout Expand Flatten Gather GatherElements GatherND Identity Max Min Mul Neg "
    "Pad Relu Reshape Slice Split Squeeze Sub Tile Transpose Trilu Unsqueeze Where".split()
)
"""Operators that make a mask of masks and constants."""


SmallValues = Literal["needed", "all"]


def find_small_valued(graph: Graph, wanted: SmallValues = "needed") -> frozenset[str]:
    """The tensors whose smallest magnitude that is not zero is to be taken, of those that are not constant."""
    if wanted == "all":
        return frozenset(graph.tensors)
    slots = ((node.inputs, _ENLARGING[node.op_type]) for node in graph.nodes if node.op_type in _ENLARGING)
    found = {inputs[slot] for inputs, slot in slots if slot < len(inputs)}
    outputs = {name for name in graph.outputs if graph.is_float(name)}
    compared = {comparison.tensor for comparison in find_tiny_comparisons(graph)}
    return frozenset(found | outputs | compared | _find_masks(graph) | _find_zeros_at_1(graph, found))


def _find_zeros_at_1(graph: Graph, enlarged: Iterable[str]) -> set[str]:
    """What functions that are zero at 1 give out on the way to one of the tensors that are enlarged."""
    pending, seen = list(enlarged), set(enlarged)
    found = set[str]()
    while pending:
        name = pending.pop()
        node = graph.producers.get(name)
        if node is None:
            continue
        if node.op_type in _ZERO_AT_1:
            found.add(name)
        fresh = [one for one in node.inputs if node.op_type in _ZERO_AT_0 and one not in seen]
        seen.update(fresh)
        pending += fresh
    return found


def _find_masks(graph: Graph) -> set[str]:
    """What is made of inputs, of what is not float, and of switches, by simple operators alone."""
    masks = {spec.name for spec in graph.inputs if graph.is_float(spec.name)}
    for node in graph.nodes:
        is_simple = node.op_type in _SIMPLE and masks.issuperset(_read_floats(graph, node))
        if is_simple or node.op_type in _SWITCHES:
            masks.update([name for name in node.writes if graph.is_float(name)])
    return masks


def _read_floats(graph: Graph, node: Node) -> list[str]:
    """Those that are not constant."""
    return [name for name in node.reads if graph.is_float(name) and name not in graph.constants]

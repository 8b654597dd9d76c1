"""Outputs of integers that are samples, of an image (0 to 255) or of sound (±32767), which a Cast makes of computed floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.annotations import held_to_types
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, ROUNDS
from overflow_fixer.patterns.tracing import origin
from overflow_fixer.records import LEAST_SAMPLE

_TYPES = frozenset({TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16})
"""What images and sound are kept in; of larger integers most are places, labels and counts."""
_SCALES = ADDS | {"Mul", "Div"}
_HANDS_ON = ROUNDS | _SCALES | frozenset("Clip Min Max".split())
_CHOOSES = frozenset("Sign OneHot Hardmax Gather Cast".split())
_JOINS = _SCALES | frozenset("Max Min MaxPool ReduceMax ReduceMin ReduceSum Relu Clip Concat".split())
"""Of choices alone these make choices: what one mask and another have in common, a mask that is widened."""
_MOST_NODES = 16


@held_to_types
def find_samples(graph: Graph) -> tuple[str, ...]:
    """The outputs of integers of 8 or 16 bits that a Cast makes of floats, scaled, shifted or bounded by a constant of 64 or more.

    None of a choice: of what was compared, chosen among constants, taken from a table or rounded before it was scaled, nor of what
    joins choices alone.
    """
    return tuple(_find_casts(graph))


def is_sampling(graph: Graph, cast: Node) -> bool:
    """Whether the integers that this Cast makes are such samples, and nothing else reads them, moved or not."""
    return cast.outputs[0] in _find_casts(graph).values()


@lru_cache(maxsize=1)
def _find_casts(graph: Graph) -> Mapping[str, str]:
    """What the Cast writes by output; "" where something else reads that."""
    names = [name for name in graph.outputs if graph.dtypes.get(name) in _TYPES]
    return {name: cast for name in names if (cast := _find_cast(graph, name)) is not None}


def _find_cast(graph: Graph, output: str) -> str | None:
    """What such a Cast writes, of which the output is moved; None where there is none, "" where something else reads it."""
    name, is_alone = output, True
    for _ in range(_MOST_NODES):
        node = graph.producers.get(name)
        is_alone &= len(graph.consumers.get(name, ())) == (name != output)
        if node is None or len(_list_computed(graph, node)) != 1:
            return None
        if node.standard_op == "Cast" and graph.is_float(node.inputs[0]):
            return (name if is_alone else "") if _is_scaled(graph, node.inputs[0]) else None
        if not moves(node, 0):
            return None
        name = node.inputs[0]
    return None


def _is_scaled(graph: Graph, tensor: str) -> bool:
    """Whether floats that are no choice are brought to the size of samples here; a Round may follow the last factor alone."""
    largest, is_behind = 0.0, True
    for _ in range(_MOST_NODES):
        node = graph.producers.get(tensor)
        computed = _list_computed(graph, node) if node is not None else []
        if node is None or (node.standard_op in ROUNDS and not is_behind):
            return False
        if len(computed) != 1 or not _hands_on(graph, node, computed[0]):
            return largest >= LEAST_SAMPLE and bool(computed) and not _is_choice(graph, node)
        largest = max(largest, *_read_numbers(graph, node), 0.0)
        is_behind &= node.standard_op not in _SCALES
        tensor = computed[0]
    return False


def _hands_on(graph: Graph, node: Node, tensor: str) -> bool:
    is_moved = moves(node, 0) and node.inputs[0] == tensor and graph.is_float(tensor)
    return is_moved or node.standard_op in _HANDS_ON


def _is_choice(graph: Graph, node: Node) -> bool:
    """Whether all that the node writes is chosen, or joined of what is."""
    pending, seen = [node], {node.label}
    while pending and len(seen) <= _MOST_NODES:
        one = pending.pop()
        if _chooses(graph, one):
            continue
        writers = [graph.producers.get(name) for name in _list_computed(graph, one)]
        found = [writer for writer in writers if writer is not None]
        if len(found) < len(writers) or not (moves(one, 0) or one.standard_op in _JOINS):
            return False
        pending += [writer for writer in found if writer.label not in seen]
        seen.update(writer.label for writer in found)
    return not pending


def _chooses(graph: Graph, node: Node) -> bool:
    """Also a Where that puts a constant beside what is computed: a wrong choice there is no small error."""
    is_filled = node.standard_op == "Where" and len(_list_computed(graph, node)) < len(node.inputs)
    return is_filled or node.standard_op in _CHOOSES


def _list_computed(graph: Graph, node: Node) -> list[str]:
    return [name for name in node.inputs if name and origin(graph, name) not in graph.constants]


def _read_numbers(graph: Graph, node: Node) -> Iterator[float]:
    """The largest finite magnitude of each constant that bounds, shifts or scales floats, of a divisor that of its reciprocal."""
    values = [graph.find_constant(origin(graph, name)) for name in node.inputs if name]
    values += [np.asarray(node.value_of(name, 0.0)) for name in ("min", "max") if node.standard_op == "Clip"]
    for value in values:
        if value is not None and value.dtype.kind == "f" and value.size and node.standard_op in _HANDS_ON:
            with np.errstate(divide="ignore"):
                found = np.abs(1 / value if node.standard_op == "Div" else value)
            yield float(found[np.isfinite(found)].max(initial=0.0))

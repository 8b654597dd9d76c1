"""Where mask constants go: through what, onto which scores, and under which Softmax. See mask_verdicts for the proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.constants.carriers import find_carriers
from overflow_fixer.evidence.masks.mask_conditions import find_decided
from overflow_fixer.evidence.masks.mask_ends import (
    BOTH_ENDS,
    FIRST,
    NO_END,
    find_ends,
    find_kept,
    find_opened,
    is_always_switch,
    keeps_rows_in_order,
)
from overflow_fixer.evidence.masks.masked_scores import (
    Mask,
    Scores,
    Use,
    add_masks,
    choose_mask,
    computed_with,
    lay_mask,
)
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.constant_shapes import read_fill
from overflow_fixer.graph.folding import find_folder
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, RangeTable

SCORE_LIMIT = 10000.0
MOST_STACKED = 2

_MASK_SLOT = 3
"""Where Attention reads its mask."""
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
_KEEPS_LAYOUT = frozenset({"Identity", "Cast", "Dropout"})


class NotProvedError(Exception):
    """Why a clamp is not proved to change nothing."""


@dataclass(eq=False)
class MaskWalk:
    """Follows masks through the graph, all at once; `refused` says why some are not proved.

    An element of -`floor` or less masks. `groups` are the Softmax nodes reached, each with the scores that it reads.
    """

    graph: Graph
    ranges: RangeTable
    floor: float
    masks: dict[str, Mask] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    groups: list[tuple[Node, Scores]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folder = find_folder(self.graph)
        self._made: dict[str, float] = {}
        self._carriers = find_carriers(self.graph, self.ranges)

    def follow(self, constants: Mapping[str, float]) -> None:
        """Walk the graph once, from `constants`, of which the element of largest magnitude is given, to every Softmax they reach."""
        for name, value in constants.items():
            with self.refusing((name,)):
                self.masks[name] = self._start(name, value)
        for node in self.graph.nodes:
            held = [origin for name in node.reads for origin in self._origins(name)]
            with self.refusing(held):
                if held:
                    self._step(node)

    @contextmanager
    def refusing(self, origins: Iterable[str]) -> Iterator[None]:
        """Refuse `origins` for what the block raises."""
        try:
            yield
        except NotProvedError as why:
            self.refuse(origins, str(why))

    def refuse(self, origins: Iterable[str], why: str) -> None:
        """Note the reason against `origins`, where there is none yet."""
        for name in origins:
            self.refused.setdefault(name, why)

    @cached_property
    def tensors_with(self) -> dict[str, set[str]]:
        """For each mask that was followed, every tensor that holds it, or scores under it."""
        found: dict[str, set[str]] = {}
        for name in (*self.masks, *self.scores):
            for origin in self._origins(name):
                found.setdefault(origin, set()).add(name)
        return found

    def is_masked(self, value: Array) -> Array:
        """Which elements of a constant mask."""
        return np.asarray(value <= -self.floor)

    def amounts(self, origin: str) -> set[float]:
        """The different values by which a constant masks; of an input, or a ConstantOfShape, the one there is."""
        value = self.graph.find_constant(origin)
        if value is None:
            return {self._made[origin]} if origin in self._made else set()
        return set(np.unique(value[self.is_masked(value)]).tolist())

    def amounts_in(self, scores: Scores) -> set[float]:
        """The different values by which constants mask the scores."""
        return {amount for name in scores.origins for amount in self.amounts(name)}

    def _is_held(self, name: str) -> bool:
        return name in self.masks or name in self.scores

    def _origins(self, name: str) -> tuple[str, ...]:
        held = self.masks.get(name) or self.scores.get(name)
        return held.origins if held is not None else ()

    def _start(self, name: str, largest: float) -> Mask:
        is_float = self.graph.dtypes.get(name) == TensorProto.FLOAT
        value = self.graph.find_constant(name)
        is_fed = name not in self.graph.producers
        if value is None and is_float and (is_fed or read_fill(self.graph, name) is not None):
            self._made[name] = largest
            return Mask((name,), 0.0)
        if value is None or not is_float:
            raise NotProvedError("it is no FP32 initializer or Constant")
        plain = np.abs(value[~self.is_masked(value)])
        if not (plain <= SCORE_LIMIT).all():
            raise NotProvedError(f"it holds {plain.max():.6g} as well, which is neither masked nor a score")
        return Mask((name,), float(plain.max(initial=0)), ends=find_ends(self.is_masked(value)))

    def _step(self, node: Node) -> None:
        op = node.standard_op
        if op == "Softmax" and node.inputs[0] in self.scores:
            self.groups.append((node, self.scores[node.inputs[0]]))
        elif any(self.graph.dtypes.get(name) not in _WIDE for name in node.writes):
            raise NotProvedError(f"{node.op_type} {node.label} makes something else of it")
        elif op in _STEPS:
            _STEPS[op](self, node)
        elif moves(node, 0) and not any(self._is_held(name) for name in (*node.inputs[1:], *node.captured)):
            self._move(node)
        else:
            raise NotProvedError(f"{node.op_type} {node.label} reads it, not Softmax behind an Add or Where")

    def _replace(self, node: Node) -> None:
        """Where: masks in place of scores, or in a choice of masks and constants."""
        one, other = (self._as_mask(name) for name in node.inputs[1:3])
        if one is not None and other is not None:
            is_one = find_decided(self.graph).get(node.inputs[0])
            ends = NO_END if is_one is None else (one if is_one else other).ends
            self.masks[node.outputs[0]] = choose_mask(one, other, ends & FIRST)
            return
        slot, mask = (1, one) if one is not None else (2, other)
        if mask is None or not mask.origins:
            raise NotProvedError(f"Where {node.label} replaces masked scores by what is no mask")
        base = self._scores_of(node.inputs[3 - slot])
        is_left = find_decided(self.graph).get(node.inputs[0]) is (slot == 2)
        use = lay_mask(mask, mask.exact, self._chosen(node, slot), FIRST if is_left else NO_END)
        stacked = max(base.stacked, mask.stacked)
        self._put(node, Scores(max(base.bound, mask.bound), (*base.uses, use), stacked))

    def _add(self, node: Node) -> None:
        """Add: a mask onto scores or onto another mask, or a bias onto either."""
        first, second = sorted(node.inputs[:2], key=lambda name: name not in self.masks)
        mask, other = self._as_mask(first), self._as_mask(second)
        if mask is not None and other is not None:
            self.masks[node.outputs[0]] = add_masks(mask, other)
        elif mask is not None and mask.origins:
            base = self._scores_of(second)
            use = lay_mask(mask, False, self._pattern(first))
            uses = (*computed_with(base.uses), use)
            self._put(node, Scores(base.bound + mask.bound, uses, base.stacked + mask.stacked))
        else:
            name, bias = sorted((first, second), key=lambda name: name not in self.scores)
            scores = self.scores[name]
            bound = scores.bound + self._bound_of_plain(bias)
            self._put(node, Scores(bound, computed_with(scores.uses), scores.stacked))

    def _attend(self, node: Node) -> None:
        """Attention: a mask added to the products of queries and keys, under the Softmax inside."""
        held = [slot for slot, name in enumerate(node.inputs) if self._is_held(name)]
        mask = self.masks.get(node.inputs[_MASK_SLOT]) if held == [_MASK_SLOT] else None
        is_more = any(node.value_of(name, 0) for name in ("is_causal", "softcap")) or any(node.outputs[3:])
        if mask is None or not mask.origins or is_more:
            raise NotProvedError(f"Attention {node.label} does not only add it to its scores")
        inner = self.ranges.inner_of.get(node.label, {})
        seen = next((inner[name].seen for name in ("scores", "scaled scores") if name in inner), None)
        if seen is None or seen.nan_count or not seen.max_abs + mask.bound <= SCORE_LIMIT:
            raise NotProvedError(f"the scores in Attention {node.label} may reach more than {SCORE_LIMIT:g}")
        use = lay_mask(mask, False, self._pattern(node.inputs[_MASK_SLOT]))
        self.groups.append((node, Scores(seen.max_abs + mask.bound, (use,), mask.stacked)))

    def _scale(self, node: Node) -> None:
        """Mul: a mask switched on and off by a factor of 0 and 1, or multiplied by 1."""
        name, switch = sorted(node.inputs[:2], key=lambda name: name not in self.masks)
        factor = self.ranges.get(switch) if switch in self.graph.constants else None
        is_one = factor is not None and not factor.nan_count and factor.min == factor.max == 1
        if name in self.masks and is_one:
            self.masks[node.outputs[0]] = self.masks[name]
            return
        if name not in self.masks or not self._is_binary(switch):
            raise NotProvedError(f"Mul {node.label} scales it by other numbers than 0 and 1")
        if any(np.isinf(self.ranges.by_tensor[origin].min) for origin in self.masks[name].origins):
            raise NotProvedError(f"Mul {node.label} makes NaN of 0 and infinity")
        mask = self.masks[name]
        ends = mask.ends if is_always_switch(self.graph, switch) else NO_END
        opened = FIRST if find_decided(self.graph).get(switch) is False else NO_END
        self.masks[node.outputs[0]] = replace(mask, exact=False, ends=ends | opened)

    def _join(self, node: Node) -> None:
        """Concat: masks and constants, or scores, masked and not."""
        masks = [self._as_mask(name) for name in node.inputs]
        if any(name in self.masks for name in node.inputs):
            if None in masks:
                raise NotProvedError(f"Concat {node.label} joins it with what is no mask")
            self.masks[node.outputs[0]] = reduce(choose_mask, filter(None, masks))
            return
        parts = [self._scores_of(name) for name in node.inputs]
        uses = tuple(replace(use, pattern=None) for part in parts for use in part.uses)
        self._put(node, Scores(max(p.bound for p in parts), uses, max(p.stacked for p in parts)))

    def _move(self, node: Node) -> None:
        source = node.inputs[0]
        for output in node.writes:
            if source in self.masks:
                mask = self.masks[source]
                self.masks[output] = replace(mask, ends=mask.ends & find_kept(self.graph, node))
            else:
                uses = tuple(self._moved(node, use) for use in self.scores[source].uses)
                self.scores[output] = replace(self.scores[source], uses=uses)

    def _cut_triangle(self, node: Node) -> None:
        """Trilu: 0 in the place of elements of a mask."""
        source, output = node.inputs[0], node.outputs[0]
        if source in self.masks:
            mask = self.masks[source]
            self.masks[output] = replace(mask, ends=mask.ends | find_opened(self.graph, node))
        else:
            self._move(node)

    def _moved(self, node: Node, use: Use) -> Use:
        """The use behind a node that moves elements: its pattern where rows stay rows, else None."""
        use = replace(use, ends=use.ends & find_kept(self.graph, node))
        if use.pattern is None or node.standard_op in _KEEPS_LAYOUT:
            return use
        if keeps_rows_in_order(self.graph, node):
            return replace(use, is_aligned=False)
        return replace(use, pattern=None)

    def _put(self, node: Node, scores: Scores) -> None:
        if not scores.bound <= SCORE_LIMIT:
            raise NotProvedError(f"the scores may reach {scores.bound:.6g}, over {SCORE_LIMIT:g}")
        if scores.stacked > MOST_STACKED:
            raise NotProvedError(f"more than {MOST_STACKED} masks are added up at {node.label}")
        self.scores[node.outputs[0]] = scores

    def _as_mask(self, name: str) -> Mask | None:
        """The tensor as a mask; one made of constants alone masks nothing. None: it is neither."""
        if self._is_held(name):
            return self.masks.get(name)
        if self._folder.value(name) is None:
            return None
        return Mask((), self._bound_of_plain(name), 0, ends=BOTH_ENDS)

    def _scores_of(self, name: str) -> Scores:
        return self.scores[name] if name in self.scores else Scores(self._bound_of_plain(name))

    def _bound_of_plain(self, name: str) -> float:
        """The measured max |x| of a tensor that holds no mask at all."""
        seen = self.ranges.get(name)
        if self._is_held(name) or name in self._carriers:
            raise NotProvedError(f"{name}, which it meets, can hold a constant out of range as well")
        if seen is None or seen.nan_count or not seen.max_abs <= SCORE_LIMIT:
            what = "was not observed" if seen is None else f"has max |x| {seen.max_abs:.6g}, or NaN"
            raise NotProvedError(f"{name}, which it meets, {what}; the proof needs at most {SCORE_LIMIT:g}")
        return seen.max_abs

    def _is_binary(self, name: str) -> bool:
        seen = self.ranges.get(name)
        if seen is None or seen.nan_count or name in self._carriers:
            return False
        return seen.min >= 0 and seen.max <= 1 and not seen.min_nonzero_abs < 1

    def _pattern(self, mask: str) -> Array | None:
        """Where the mask masks. Half of `floor` tells both apart, where mask_verdicts finds the plain ones small enough."""
        value = self._folder.value(mask)
        return None if value is None else np.asarray(value <= -self.floor / 2)

    def _chosen(self, node: Node, slot: int) -> Array | None:
        """Where the node puts the mask at `slot`, if its condition and the mask are made of constants."""
        condition, pattern = self._folder.value(node.inputs[0]), self._pattern(node.inputs[slot])
        if condition is None or pattern is None:
            return None
        return np.asarray((condition if slot == 1 else ~condition) & pattern)


_STEPS = {
    "Where": MaskWalk._replace,
    "Add": MaskWalk._add,
    "Mul": MaskWalk._scale,
    "Concat": MaskWalk._join,
    "Trilu": MaskWalk._cut_triangle,
    "Attention": MaskWalk._attend,
}

"""The search finds those nodes whose errors are too much together, whatever the others add."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.records import TensorError, Tolerance
from overflow_fixer.repair.culprits import BEARABLE, CulpritSearch, excess


@dataclass
class Costs:
    """What nodes 0, 1, ... cost: each its own, added up as `join` does. Counts how often it was asked."""

    each: list[float]
    join: Callable[[list[float]], float] = sum
    asked: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.each))))

    def __call__(self, in_fp16: Collection[str]) -> list[float]:
        self.asked.append(tuple(in_fp16))
        return [self.join([self.each[int(label)] for label in in_fp16])]

    def search(self, movable: Collection[str] | None = None, late_after: int = 10**9) -> dict[str, float]:
        movable = self.nodes if movable is None else movable
        return CulpritSearch(self, self.nodes, movable, lambda: len(self.asked) >= late_after).run()

    def rest(self, found: Collection[str]) -> float:
        return self.join(
            [cost for label, cost in zip(self.nodes, self.each, strict=True) if label not in found]
        )


def test_the_costly_are_found_each_with_its_cost() -> None:
    costs = Costs([0.001] * 100)
    costs.each[17], costs.each[18], costs.each[80] = 5.0, math.inf, 2.5
    assert costs.search() == {"17": 5.0, "18": math.inf, "80": 2.5}
    assert len(costs.asked) < 50


def test_where_all_is_bearable_nothing_is_found_at_the_cost_of_two_tries() -> None:
    costs = Costs([0.01] * 60)
    assert costs.search() == {}
    assert len(costs.asked) == 2


def test_what_cannot_be_moved_stays() -> None:
    costs = Costs([0.0, 3.0, 0.0, 4.0])
    assert costs.search(movable={"1"}) == {"1": 3.0}


def test_when_it_is_late_what_was_found_is_given() -> None:
    costs = Costs([0.0] * 63 + [9.0])
    assert costs.search(late_after=1) == {}
    assert len(costs.asked) == 1


def test_costs_that_add_up_to_more_than_each_alone_are_found_too() -> None:
    """Amplitudes add up: of ten, each alone 0.01, together 1."""
    costs = Costs([0.01] * 10, lambda parts: sum(map(math.sqrt, parts)) ** 2)
    found = costs.search()
    assert found
    assert costs.rest(found) <= BEARABLE


def test_no_more_are_found_than_are_too_much_together() -> None:
    """Of eleven, of which two are, ten are found; of a hundred others, that cost next to nothing, none."""
    costs = Costs([0.3] * 11 + [1e-8] * 100, lambda parts: sum(map(math.sqrt, parts)) ** 2)
    found = costs.search()
    assert list(found.values()) == pytest.approx([0.3] * 10)
    assert costs.rest(found) <= BEARABLE


def test_of_costs_that_do_not_add_up_few_are_found_one_by_one() -> None:
    """The largest alone counts: two hundred of 0.5 each are bearable together, whatever they add up to."""
    costs = Costs([0.5] * 200, lambda parts: max(parts, default=0.0))
    costs.each[::40] = [3.0] * 5
    found = costs.search()
    assert costs.rest(found) == 0.5
    assert len(found) == 5
    assert len(costs.asked) < 120


def test_costs_add_up_in_each_output_by_itself() -> None:
    """What the halves of a network cost one output each is bearable, though not in all."""
    costly = {str(8 * number): 5.0 + number for number in range(20)}

    def cost(in_fp16: Collection[str]) -> list[float]:
        each = [(label, costly.get(label, 0.009)) for label in in_fp16]
        return [sum(c for label, c in each if int(label) % 2 == output) for output in (0, 1)]

    nodes = tuple(map(str, range(160)))
    assert CulpritSearch(cost, nodes, nodes, lambda: False).run() == costly


@given(st.lists(st.one_of(st.floats(0, 10), st.just(math.inf)), min_size=1, max_size=40))
def test_the_rest_is_bearable_and_the_mildest_stay(each: list[float]) -> None:
    costs = Costs(each)
    found = costs.search()
    assert costs.rest(found) <= BEARABLE
    assert all(cost == each[int(label)] for label, cost in found.items())
    if found:
        assert costs.rest(found.keys() - {min(found, key=found.__getitem__)}) > BEARABLE * (1 - 1e-9)


def _error(**numbers: Any) -> TensorError:
    known = {
        "tensor": "y",
        "element_count": 10,
        "compared": 10,
        "candidate_nan": 0,
        "candidate_inf": 0,
        "reference_nan": 0,
        "reference_inf": 0,
        "mismatched": 0,
        "max_abs_error": 1.0,
        "mean_abs_error": 1.0,
        "max_rel_error": 1.0,
        "max_abs_reference": 1.0,
        "cosine": 1.0,
        "snr_db": 30.0,
        "worst_batch": "b",
    }
    return TensorError(**{**known, **numbers})


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, 1.0),
        ({"snr_db": 20.0}, 10.0),
        ({"snr_db": 40.0, "worst_batch_snr_db": 27.0}, 10**0.3),
        ({"snr_db": math.inf}, 0.0),
        ({"snr_db": -math.inf}, math.inf),
        ({"snr_db": -4000.0}, math.inf),
        ({"snr_db": 20.0, "max_abs_error": 0.0}, 0.0),
        ({"compared": 0, "snr_db": math.nan}, 0.0),
        ({"mismatched": 1, "candidate_nan": 1}, math.inf),
        ({"mismatched": 2, "reference_nan": 2}, 1.0),
        ({"mismatched": 10, "compared": 0, "failure": "index", "snr_db": math.nan}, math.inf),
        ({"is_float": False, "mismatched": 0}, 0.0),
        ({"is_float": False, "mismatched": 1}, 0.1 / 0.01),
    ],
)
def test_the_excess_of_one_output(numbers: dict[str, Any], expected: float) -> None:
    assert excess([_error(**numbers)], Tolerance()) == pytest.approx(expected)


def test_the_worst_output_counts_each_by_its_own_limit() -> None:
    tolerance = Tolerance(per_output={"z": 50.0})
    assert excess([_error(), _error(tensor="z", snr_db=47.0)], tolerance) == pytest.approx(10**0.3)
    assert excess([], tolerance) == 0.0


def test_integers_that_must_all_agree() -> None:
    tolerance = Tolerance(min_agreement=1.0)
    assert excess([_error(is_float=False, mismatched=1)], tolerance) == math.inf
    assert excess([_error(is_float=False)], tolerance) == 0.0


def test_the_same_nodes_are_not_tried_again() -> None:
    """Nothing where a group is alone, too much where two are together."""
    costs = Costs([0.0] * 8, lambda parts: 9.0 if len(parts) > 1 else 0.0)
    costs.search(movable={"0"})
    assert len(set(costs.asked)) >= len(costs.asked) - 1  # all, and all without what was found


def test_where_no_node_is_in_fp16_there_is_nothing_to_find() -> None:
    """Though the outputs differ, as those of a custom operator that draws random numbers do."""
    costs = Costs([], lambda parts: 9.0)
    assert costs.search(late_after=1000) == {}
    assert len(costs.asked) < 5

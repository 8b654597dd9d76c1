"""Rules turn evidence into findings. One rule a module; a rule is a function

    (node, graph, ranges, policy) -> the findings about that node

A newcomer adds a module, a line here and a test by the same name. Beside them: what is left of a finding (settling), how
it is told (digits, batches), which nodes it concerns (by_node), and how much noise is no matter (tolerated). What several
rules or nodes are judged by is in overflow_fixer/evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.accumulator import find_large_accumulators
from overflow_fixer.rules.constant_range import find_constants_out_of_range
from overflow_fixer.rules.control_flow import find_inside_bodies
from overflow_fixer.rules.inner_value import find_large_inner_values
from overflow_fixer.rules.lost_box import find_lost_boxes
from overflow_fixer.rules.lost_comparison import find_lost_comparisons
from overflow_fixer.rules.lost_difference import find_lost_differences
from overflow_fixer.rules.lost_integer import find_lost_integers
from overflow_fixer.rules.lost_logit import find_lost_logits
from overflow_fixer.rules.lost_phase import find_lost_phases
from overflow_fixer.rules.lost_place import find_lost_places
from overflow_fixer.rules.lost_power import find_lost_powers
from overflow_fixer.rules.lost_size import find_lost_sizes
from overflow_fixer.rules.non_finite import find_non_finite
from overflow_fixer.rules.small_value import find_small_values
from overflow_fixer.rules.threshold import find_over_threshold
from overflow_fixer.rules.user_choice import find_user_choice
from overflow_fixer.rules.vanishing_constant import find_vanishing_constants
from overflow_fixer.rules.vanishing_divisor import find_vanishing_divisors
from overflow_fixer.rules.vanishing_output import find_vanishing_outputs

Rule = Callable[[Node, Graph, RangeTable, PlanPolicy], Iterator[Finding]]

DEFAULT_RULES: dict[str, Rule] = {
    "threshold": find_over_threshold,
    "non_finite": find_non_finite,
    "constant_range": find_constants_out_of_range,
    "vanishing_constant": find_vanishing_constants,
    "vanishing_divisor": find_vanishing_divisors,
    "vanishing_output": find_vanishing_outputs,
    "small_value": find_small_values,
    "lost_integer": find_lost_integers,
    "lost_box": find_lost_boxes,
    "lost_comparison": find_lost_comparisons,
    "lost_difference": find_lost_differences,
    "lost_logit": find_lost_logits,
    "lost_phase": find_lost_phases,
    "lost_place": find_lost_places,
    "lost_power": find_lost_powers,
    "lost_size": find_lost_sizes,
    "inner_value": find_large_inner_values,
    "accumulator": find_large_accumulators,
    "control_flow": find_inside_bodies,
    "user": find_user_choice,
}

"""Of which tensor a watch may take the statistics for another's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, save

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.derivations import Derivation, find_derivations
from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.watches import find_told


def follow(graph: Graph) -> tuple[Mapping[str, str], Mapping[str, Derivation]]:
    """Of all its tensors, which hold another's values, and how others follow."""
    sources = find_sources(graph, [name for name in graph.tensors if graph.is_float(name)])
    return sources, {one.tensor: one for one in find_derivations(graph, sources)}


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ("e", 1),
        ("t", 1),  # holds the same values
        ("r", 1),  # reaches as high, and no magnitude is larger
        ("f", 1),
        ("h", 0.5),
        ("d", 0.125),
        ("c", 1),
        ("n", None),  # its highest is the other's lowest
        ("b", None),
        ("a", None),
        ("p", None),
        ("z", None),
        ("o", None),  # its own highest is below that of the other
        ("i", None),  # no magnitude is smaller than half
        ("m", None),
        ("x", None),  # without a probe
    ],
)
def test_statistics_are_taken_of_what_reaches_as_high(
    tensor: str, told: float | None, tmp_path: Path
) -> None:
    nodes = [
        node("Elu", "x", "e"),
        node("Transpose", "e", "t"),
        node("Relu", "t", "r"),
        node("Flatten", "r", "f"),
        node("Neg", "e", "n"),
        node("Abs", "e", "a"),
        node("Mul", "e e", "m"),
        node("Mul", "half f", "h"),
        node("Div", "h four", "d"),
        node("Mul", "e minus", "b"),
        node("Add", "e half", "p"),
        node("Div", "half e", "z"),
        node("Max", "e minus", "c"),
        node("Min", "e four", "o"),
        node("Max", "half e", "i"),
    ]
    numbers = {"half": floats(0.5), "four": floats(4), "minus": floats(-1)}
    graph = save(make_model(nodes, {"x": [2, 3]}, "d n a m b p z c o i", numbers), tmp_path)
    by, scale = find_told(*follow(graph), {"e": "of e"}, tensor)
    assert by == "of e" if told is not None else np.isnan(by).all()
    assert scale == (1 if told is None else told)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ("c", ((-1, 4), 1)),
        ("h", ((-1, 4), 0.5)),
        ("m", ((-1, 4), 16000)),
        ("o", None),  # over what FP16 holds: none of its values need be
        ("d", ((-64, 63.5), 1)),
        ("b", None),
    ],
)
def test_ends_are_told_of_what_is_clipped_and_lies_within_fp16_s_range(
    tensor: str, told: tuple[tuple[float, float], float] | None, tmp_path: Path
) -> None:
    nodes = [
        node("Clip", "x minus four", "c"),
        node("Mul", "c half", "h"),
        node("Mul", "c many", "m"),
        node("Mul", "m four", "o"),
        node("QuantizeLinear", "x step zero", "q"),
        node("DequantizeLinear", "q step", "d"),
        node("Clip", "x minus", "b"),
    ]
    numbers = {"half": floats(0.5), "four": floats(4), "minus": floats(-1), "many": floats(16000)}
    numbers |= {"step": floats(0.5), "zero": np.array(7, np.int8)}
    graph = save(make_model(nodes, {"x": [2, 3]}, "h o d b", numbers), tmp_path)
    found = find_told(*follow(graph), {}, tensor)
    assert np.isnan(found[0]).all() if told is None else found == told


@pytest.mark.parametrize(
    ("factors", "is_told"),
    [
        ([2.0**30], True),
        ([2.0**-30], True),
        ([2.0**31], False),
        ([2.0**-31], False),
        ([2.0**-40, 2.0**40], False),  # what the first leaves of a number may be rounded away
        ([2.0**40, 2.0**-20], True),  # nothing is lost on the way
        ([1e-45, 2.0**60], False),
        ([1.1] * 15, True),
        ([1.1] * 16, False),  # rounded more often than is allowed for
    ],
)
def test_nothing_is_told_of_what_rounding_may_have_changed(
    factors: list[float], is_told: bool, tmp_path: Path
) -> None:
    """Numbers near the least that FP32 has, multiplied by large ones."""
    nodes = [node("Mul", f"t{i} f{i}", f"t{i + 1}") for i in range(len(factors))]
    constants = {f"f{i}": floats(factor) for i, factor in enumerate(factors)}
    graph = save(make_model(nodes, {"t0": [2]}, f"t{len(factors)}", constants), tmp_path)
    by, _ = find_told(*follow(graph), {"t0": "of t0"}, f"t{len(factors)}")
    assert (by == "of t0") is is_told

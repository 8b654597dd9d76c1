"""Sums of products: what is measured, and that no bound of it is below it, against numpy in float64."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save
from product_cases import CASES, COMPUTE, Case, draw_values, name_case
from ways_to_observe import use_probes

from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.accumulators import bound_by_norm, bound_by_ranges, bound_by_sizes
from overflow_fixer.inner.channel_norms import find_channel_norm
from overflow_fixer.inner.products import Product, find_products
from overflow_fixer.ranges import collect_ranges


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_the_sum_of_magnitudes_is_right_where_it_is_over_the_limit(case: Case, tmp_path: Path) -> None:
    """And the output is not."""
    case = case.in_range()
    exact = case.exact()
    assert exact > 65504
    graph, fed = case.build(tmp_path)
    for way, probes in (
        ("reductions", "native"),
        ("reductions", "shared"),
        ("reductions", "operators"),
        ("outputs", "operators"),
    ):
        with use_probes(probes):  # type: ignore[arg-type]
            ranges = collect_ranges(graph, InMemoryCalibration((fed,)), observe=way)  # type: ignore[arg-type]
        assert ranges.by_tensor["y"].max_abs <= 65504
        assert ranges.inner_of[f"{case.op}_y"]["products"].seen.max_abs == pytest.approx(exact, rel=1e-5)


def _bounds(case: Case) -> list[float]:
    """Each bound there is, which names no tensor that was not seen."""
    with TemporaryDirectory() as folder:
        graph, _ = case.build(Path(folder))
        (found,) = find_products(graph)
        most = {name: float(np.abs(value).max(initial=0)) for name, value in case.inputs.items()}
        shapes = {name: value.shape for name, value in case.inputs.items()}
        norm = find_channel_norm(graph, found)
        bounds = [bound_by_ranges(found, shapes).at(most.__getitem__)]
        return bounds if norm is None else [*bounds, bound_by_norm(found, norm, most.__getitem__)]


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_bounds_are_not_below_it(case: Case) -> None:
    bounds = _bounds(case)
    assert len(bounds) == 1 + bool(case.constants)
    assert all(bound >= case.exact() * (1 - 1e-12) for bound in bounds)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small ones of every operator."""
    size = st.integers(1, 4)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m, k, n, group = (draw(size) for _ in range(4))
    op = draw(st.sampled_from(sorted(COMPUTE)))
    attributes: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]]
    if op == "MatMul":
        left = draw(st.sampled_from([(k,), (m, k), (2, m, k)]))
        shapes = {"a": left, "b": draw(st.sampled_from([(k,), (k, n), (2, k, n)]))}
    elif op == "Gemm":
        attributes = {"transA": draw(st.integers(0, 1)), "transB": draw(st.integers(0, 1))}
        attributes |= {
            "alpha": draw(st.sampled_from([1.0, -2.0, 0.25])),
            "beta": draw(st.sampled_from([1.0, -3.0])),
        }
        shapes = {
            "a": (k, m) if attributes["transA"] else (m, k),
            "b": (n, k) if attributes["transB"] else (k, n),
            "c": (m, n),
        }
    elif op == "Einsum":
        letters = {"i": m, "j": k, "k": n}
        left, right, output = (
            "".join(draw(st.lists(st.sampled_from("ijk"), unique=True, min_size=least)))
            for least in (1, 1, 0)
        )
        kept = "".join(letter for letter in output if letter in left + right)
        attributes = {"equation": f"{left},{right}->{kept}"}
        shapes = {"a": tuple(letters[c] for c in left), "b": tuple(letters[c] for c in right)}
    else:
        attributes = {"group": group, "strides": (draw(size), 1), "dilations": (1, draw(st.integers(1, 2)))}
        weights = (group * n, k) if op == "Conv" else (group * k, n)
        shapes = {"a": (m, group * k, 5, 5), "b": (*weights, draw(size), 2), "c": (group * n,)}
    constants = draw(st.sampled_from(["", "b", "bc"] if op.startswith("Conv") else ["", "a", "b", "bc"]))
    return Case(op, {name: draw_values(rng, *shape) for name, shape in shapes.items()}, attributes, constants)


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_no_bound_is_below_the_sum_of_any_small_node(case: Case) -> None:
    assert all(bound >= case.exact() * (1 - 1e-12) for bound in _bounds(case))


def test_groups_do_not_loosen_the_bounds_of_a_transposed_convolution(tmp_path: Path) -> None:
    x, w = np.ones((1, 64, 1, 1), np.float32), np.full((64, 1, 2, 2), 3, np.float32)
    bounds = _bounds(Case("ConvTranspose", {"x": x, "w": w}, {"group": 64}, "w"))
    assert bounds == pytest.approx([12, 12], rel=1e-6)


@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (CASES[0], {}),
        (Case("MatMul", {"a": floats(1), "b": floats(1)}), {"a": ("n",), "b": (None,)}),
        (Case("Einsum", {"a": floats(1), "b": floats(1)}, {"equation": "i,i->"}), {"a": ("n",), "b": (1,)}),
        (Case("Einsum", {"a": floats(1), "b": floats(1)}, {"equation": "i,i->"}), {"a": (1,)}),
    ],
)
def test_without_the_number_of_terms_there_is_no_bound_by_ranges(
    case: Case, shapes: dict[str, Any], tmp_path: Path
) -> None:
    (found,) = find_products(case.build(tmp_path)[0])
    assert np.isnan(bound_by_ranges(found, shapes).at(lambda _: 1.0))


def test_one_known_side_tells_the_number_of_terms(tmp_path: Path) -> None:
    (found,) = find_products(Case("MatMul", {"a": floats(1), "b": floats(1)}).build(tmp_path)[0])
    assert bound_by_ranges(found, {"a": ("m", "k"), "b": (7, 3)}).at(lambda _: 2.0) == 28
    einsum = Case("Einsum", {"a": floats(1), "b": floats(1)}, {"equation": "i,i->"})
    (found,) = find_products(einsum.build(tmp_path)[0])
    assert bound_by_ranges(found, {"a": ("n",), "b": (9,)}).at(lambda _: 2.0) == 36


def test_only_sums_in_fp32_are_looked_at(tmp_path: Path) -> None:
    nodes = [
        node("Einsum", "x x x", "a", equation="i,i,i->"),
        node("Cast", "x", "wide", to=11),
        node("MatMul", "wide wide", "b"),
        node("MatMul", "x x", "c"),
    ]
    graph = save(make_model(nodes, {"x": [3]}, "a c"), tmp_path)
    assert [found.node.label for found in find_products(graph)] == ["Einsum_a", "MatMul_c"]


_SIDES = st.integers(1, 5)


@given(channels=_SIDES, outputs=_SIDES, groups=_SIDES, places=_SIDES)
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_bias_tells_how_many_weights_a_channel_has(
    op_type: str, channels: int, outputs: int, groups: int, places: int
) -> None:
    """Weights are [outputs, channels of a group, place], of a ConvTranspose [channels, outputs of a group, place]."""
    proto = onnx.helper.make_node(op_type, ["x", "w", "b"], ["y"], group=groups)
    product = Product(Node.of(0, "y", proto), ("x", "w"), "b")
    shape = (groups * outputs, channels, places)
    if op_type == "ConvTranspose":
        shape = (groups * channels, outputs, places)
    counts = {"x": 1, "w": math.prod(shape), "b": groups * outputs, "y": 1}
    slope = bound_by_sizes(product, counts).slope
    assert slope == channels * places == bound_by_ranges(product, {"x": (), "w": shape}).slope
    for unknown in ({"w": 1}, {"b": 1}, {**counts, "b": 0}):
        assert math.isnan(bound_by_sizes(product, unknown).slope)


@given(
    batch=st.lists(st.tuples(_SIDES, st.sampled_from(["both", "left", "right"])), max_size=3),
    rows=_SIDES,
    terms=_SIDES,
    columns=_SIDES,
)
def test_sizes_alone_tell_at_least_the_number_of_terms(
    batch: list[tuple[int, str]], rows: int, terms: int, columns: int
) -> None:
    """Whatever is broadcast; exactly, where one side has one matrix."""
    left = [side if which != "right" else 1 for side, which in batch]
    right = [side if which != "left" else 1 for side, which in batch]
    a, b = np.ones((*left, rows, terms)), np.ones((*right, terms, columns))
    proto = onnx.helper.make_node("MatMul", ["a", "b"], ["y"])
    product = Product(Node.of(0, "y", proto), ("a", "b"))
    slope = bound_by_sizes(product, {"a": a.size, "b": b.size, "y": (a @ b).size}).slope
    assert slope >= terms * (1 - 1e-12)
    if math.prod(left) == 1 or math.prod(right) == 1:
        assert slope == pytest.approx(terms)


def test_without_sizes_or_with_no_element_they_tell_nothing() -> None:
    for op_type, counts in (
        ("MatMul", {"a": 4, "b": 4}),
        ("MatMul", {"a": 0, "b": 4, "y": 0}),
        ("Conv", {"a": 4, "b": 4, "y": 4}),
    ):
        product = Product(Node.of(0, "y", onnx.helper.make_node(op_type, ["a", "b"], ["y"])), ("a", "b"))
        assert np.isnan(bound_by_sizes(product, counts).slope)

"""Shapes as the user writes them, over those that the data has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed_models import write_model

from overflow_fixer.backends.tensorrt.profiles import check_cover, override_shapes
from overflow_fixer.errors import ConfigError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import ShapeRange

_SEEN = {
    "x": ShapeRange((1, 4), (2, 4), (3, 4)),
    "shape": ShapeRange((2,), (2,), (2,), ((1, 4), (2, 4), (3, 4))),
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    model = "g (float[N,4] x, int64[2] shape, float[M] row) => (float[A,B] y) { p = Reshape(x, shape) y = Add(p, row) }"
    return load_graph(write_model(tmp_path_factory.mktemp("profiles"), model))


def test_without_profiles_the_shapes_are_those_seen(graph: Graph) -> None:
    assert override_shapes(graph, _SEEN, {}) == _SEEN


def test_a_profile_takes_the_place_of_what_was_seen_and_of_nothing_else(graph: Graph) -> None:
    found = override_shapes(graph, _SEEN, {"x": [[1, 4], [8, 4], [16, 4]]})
    assert found == {**_SEEN, "x": ShapeRange((1, 4), (8, 4), (16, 4))}


def test_a_profile_serves_without_data(graph: Graph) -> None:
    assert override_shapes(graph, {}, {"row": [[1], [2], [9]]}) == {"row": ShapeRange((1,), (2,), (9,))}


def test_an_input_that_holds_a_shape_has_its_values_told(graph: Graph) -> None:
    """Two numbers for an input of two elements: what it holds, since its shape is fixed."""
    found = override_shapes(graph, _SEEN, {"shape": [[1, 4], [4, 4], [8, 4]]})
    assert found["shape"] == ShapeRange((2,), (2,), (2,), ((1, 4), (4, 4), (8, 4)))


def test_a_profile_of_a_shape_keeps_the_values_seen(graph: Graph) -> None:
    seen = {"row": ShapeRange((2,), (2,), (2,), ((1, 1), (2, 2), (3, 3)))}
    assert override_shapes(graph, seen, {"row": [[1], [2], [2]]})["row"].values == seen["row"].values


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("z", [[1], [1], [1]]),
        ("x", [[2, 4], [1, 4], [3, 4]]),
        ("x", [[1, 4], [3, 4], [2, 4]]),
        ("x", [[1], [2], [3]]),
        ("x", [[1, 4], [2, 4, 1], [3, 4]]),
        ("row", [[1, 2], [1], [1, 2]]),
        ("row", [[1, 2], [1, 2], [1, 2]]),
        ("row", [[-5], [-5], [7]]),
        ("shape", [[2, 4, 6], [2, 4, 6], [2, 4, 6]]),
        ("x", [[-1, 4], [2, 4], [3, 4]]),
        ("x", [[1, 5], [2, 5], [3, 5]]),
    ],
)
def test_a_profile_that_does_not_fit_is_one_paragraph(
    graph: Graph, name: str, shapes: list[list[int]]
) -> None:
    with pytest.raises(ConfigError) as error:
        override_shapes(graph, _SEEN, {name: shapes})
    text = str(error.value)
    assert text.startswith(
        f"The profile {name}:{':'.join('x'.join(map(str, shape)) for shape in shapes)} does not"
    )
    assert "x ['N', 4], shape [2], row ['M']" in text
    assert "Correct --profile." in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "shapes", "told"),
    [
        ("x", [[2, 4], [2, 4], [3, 4]], "'x' takes 2x4 to 3x4, and the calibration data have 1x4 to 3x4"),
        ("x", [[1, 4], [2, 4], [2, 4]], "'x' takes 1x4 to 2x4, and the calibration data have 1x4 to 3x4"),
        (
            "shape",
            [[1, 4], [2, 4], [2, 4]],
            "'shape' takes 1x4 to 2x4, and the calibration data have 1x4 to 3x4",
        ),
        ("x", [[0, 4], [2, 4], [9, 4]], None),
        ("shape", [[1, 4], [2, 4], [8, 4]], None),
        ("row", [[1], [2], [3]], None),
    ],
)
def test_a_profile_is_to_take_the_data(
    graph: Graph, name: str, shapes: list[list[int]], told: str | None
) -> None:
    profiles = {name: shapes}
    if told is None:
        return check_cover(override_shapes(graph, _SEEN, profiles), _SEEN)
    with pytest.raises(ConfigError) as error:
        check_cover(override_shapes(graph, _SEEN, profiles), _SEEN)
    assert str(error.value).startswith(f"The profile of {told}. Expected one that")


_SIZES = st.lists(st.integers(1, 9), min_size=3, max_size=3)


@given(sizes=_SIZES)
def test_only_growing_sizes_are_taken(graph: Graph, sizes: list[int]) -> None:
    shapes = [[size, 4] for size in sizes]
    if sizes == sorted(sizes):
        assert override_shapes(graph, {}, {"x": shapes})["x"] == ShapeRange(
            *(tuple(shape) for shape in shapes)
        )
    else:
        with pytest.raises(ConfigError):
            override_shapes(graph, {}, {"x": shapes})

"""The shapes that data has: each dimension's least and greatest, and the usual one, which some batch has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.calibration import survey_shapes
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Batch, ShapeRange


def _floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _survey(*feeds: dict[str, Any]) -> Any:
    return survey_shapes(Batch(f"batch {index}", dict(batch)) for index, batch in enumerate(feeds))


def test_no_batches_have_no_shapes() -> None:
    assert _survey() == {}


def test_each_dimension_is_taken_by_itself() -> None:
    found = _survey({"x": _floats(1, 8)}, {"x": _floats(4, 2)}, {"x": _floats(4, 2)})
    assert found == {"x": ShapeRange((1, 2), (4, 2), (4, 8))}


def test_the_usual_shapes_are_those_of_one_batch_for_all_inputs() -> None:
    """(2, 3) and (5, 1) are each seen twice, but never together with one another's partners."""
    found = _survey(
        {"a": _floats(2), "b": _floats(1)},
        {"a": _floats(2), "b": _floats(5)},
        {"a": _floats(3), "b": _floats(5)},
        {"a": _floats(3), "b": _floats(5)},
    )
    assert (found["a"].opt, found["b"].opt) == ((3,), (5,))


def test_of_equally_usual_shapes_the_largest_is_taken() -> None:
    assert _survey({"x": _floats(2)}, {"x": _floats(7)}, {"x": _floats(3)})["x"].opt == (7,)


def test_an_input_of_rank_0_has_an_empty_shape_and_its_value() -> None:
    found = _survey({"n": np.array(3), "on": np.array(True)}, {"n": np.array(5), "on": np.array(False)})
    assert found["n"] == ShapeRange((), (), (), ((3,), (3,), (5,)))
    assert found["on"] == ShapeRange((), (), (), None)


def test_values_are_told_of_small_integers_alone() -> None:
    found = _survey(
        {
            "shape": np.array([2, 8]),
            "floats": _floats(2),
            "table": np.zeros((2, 2), np.int64),
            "long": np.zeros(65, np.int64),
            "most": np.zeros(64, np.int32),
        }
    )
    assert found["shape"].values == ((2, 8), (2, 8), (2, 8))
    assert found["most"].values == ((0,) * 64,) * 3
    assert [found[name].values for name in ("floats", "table", "long")] == [None] * 3


def test_the_usual_values_come_from_batches_of_the_usual_shapes() -> None:
    """The value (1, 6) is the most frequent, but not where x has its usual shape."""
    common = {"x": _floats(12)}
    found = _survey(
        *({**common, "shape": np.array([3, 4])} for _ in range(2)),
        *({**common, "shape": np.array([6, 2])} for _ in range(3)),
        *({"x": _floats(6), "shape": np.array([1, 6])} for _ in range(4)),
    )
    assert found["x"].opt == (12,)
    assert found["shape"].values == ((1, 2), (6, 2), (6, 6))


def test_values_of_differing_number_are_not_told() -> None:
    found = _survey({"ids": np.array([1, 2])}, {"ids": np.array([1, 2, 3])})
    assert found["ids"] == ShapeRange((2,), (3,), (3,), None)


def test_differing_numbers_of_dimensions_are_refused() -> None:
    with pytest.raises(CalibrationError) as error:
        _survey({"x": _floats(2)}, {"x": _floats(2, 2)}, {"x": _floats(1)})
    assert str(error.value).startswith("Input 'x' has 1 and 2 dimensions in different batches. Expected one")
    assert "\n" not in str(error.value)


_BATCH = st.fixed_dictionaries(
    {
        "x": st.tuples(st.integers(0, 5), st.integers(1, 5)).map(lambda shape: _floats(*shape)),
        "shape": st.lists(st.integers(-1, 9), min_size=2, max_size=2).map(np.array),
        "n": st.integers(0, 3).map(np.array),
    }
)


@given(batches=st.lists(_BATCH, min_size=1, max_size=6))
def test_the_range_holds_every_batch_and_the_usual_was_seen(batches: list[dict[str, np.ndarray]]) -> None:
    found = _survey(*batches)
    for name, told in found.items():
        shapes = [batch[name].shape for batch in batches]
        assert told.min == tuple(min(sizes) for sizes in zip(*shapes, strict=True))
        assert told.max == tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    together = Counter(tuple(batch[name].shape for name in found) for batch in batches)
    usual = tuple(told.opt for told in found.values())
    assert together[usual] == max(together.values())
    for name in ("shape", "n"):
        least, often, most = found[name].values
        fitting = [b for b in batches if tuple(b[n].shape for n in found) == usual]
        assert often in {tuple(batch[name].reshape(-1).tolist()) for batch in fitting}
        held = [batch[name].reshape(-1).tolist() for batch in batches]
        assert least == tuple(map(min, zip(*held, strict=True)))
        assert most == tuple(map(max, zip(*held, strict=True)))

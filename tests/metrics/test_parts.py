"""Parts of outputs as they are written, against NumPy's own indexing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overflow_fixer.errors import ConfigError
from overflow_fixer.metrics.parts import Part, find_parts
from overflow_fixer.records import Tolerance

CUBE = np.arange(24).reshape(2, 3, 4)


def _find(*names: str) -> tuple[Part, ...]:
    return find_parts(Tolerance(parts=names), ["y", "z", "odd[0]"])


def _write_axis(index: object) -> str:
    if index is ...:
        return "..."
    if isinstance(index, slice):
        bounds = (index.start, index.stop) if index.step is None else (index.start, index.stop, index.step)
        return ":".join("" if bound is None else str(bound) for bound in bounds)
    return str(index)


@given(arrays.basic_indices(CUBE.shape, allow_newaxis=False), st.sampled_from([",", ", ", " ,"]))
def test_what_is_written_takes_what_numpy_takes(index: object, comma: str) -> None:
    axes = index if isinstance(index, tuple) else (index,)
    if not axes:
        return
    (part,) = _find(f"y[{comma.join(map(_write_axis, axes))}]")
    np.testing.assert_array_equal(part.take(CUBE), CUBE[axes])
    refusal = _refusal(lambda: part.check(CUBE.shape))
    assert (refusal is None) == (CUBE[axes].size > 0)


@pytest.mark.parametrize(
    "text", ["[]", "[a]", "[1.5]", "[0,]", "[1:2:0]", "[::00]", "[::-0]", "[1:2:3:4]", "[..., ...]", "[None]"]
)
def test_an_index_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Expected (whole numbers|one of: odd\[0\], y, z)"):
        _find(f"y{text}")


@pytest.mark.parametrize("name", ["Y", "Y[:, 2]", "y[", "y]", "[0]", ""])
def test_a_part_of_no_output_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--part, or parts in the table \[verify\], names .* is no output of the model"
    ):
        _find(name)


def test_an_output_is_no_part_even_if_its_name_has_brackets() -> None:
    assert _find("odd[0]", "y") == ()
    (part,) = _find("odd[0][:, 1]")
    assert (part.output, part.text, part.name) == ("odd[0]", "[:, 1]", "odd[0][:, 1]")


def test_a_limit_of_its_own_asks_for_a_part_too_and_each_is_told_once() -> None:
    tolerance = Tolerance(per_output={"z": 20.0, "y[0]": 40.0, "y[1]": 50.0}, parts=("y[1]", "z[..., :2]"))
    assert [part.name for part in find_parts(tolerance, ["y", "z"])] == ["y[1]", "z[..., :2]", "y[0]"]


def test_a_part_with_nothing_in_it_is_refused_where_the_size_is_known() -> None:
    (part,) = _find("y[:, 40:]")
    with pytest.raises(ConfigError, match=r"no part y\[:, 40:\]: y is of shape \[n, 6\]"):
        part.check(["n", 6])
    part.check(["n", "classes"])
    part.check([0, 41])
    assert part.take(np.zeros((2, 6))).size == 0


@pytest.mark.parametrize("text", ["[:, 3]", "[2]", "[0, 0, 0, 0]", "[:, -4]", "[..., 4]"])
def test_a_part_that_an_output_has_not_got_is_refused(text: str) -> None:
    (part,) = _find(f"y{text}")
    with pytest.raises(
        ConfigError, match=r"no part y\[.*: y is of shape \[2, 3, 4\]\. Expected indices within it"
    ):
        part.take(CUBE)
    with pytest.raises(ConfigError, match=r"y is of shape \[2, 3, 4\]"):
        part.check(CUBE.shape)


def test_what_is_not_known_of_a_shape_may_be_any() -> None:
    (part,) = _find("y[7, :, 3]")
    part.check(None)
    part.check(["n", 3, None])
    part.check(["n", "h", "w"])
    with pytest.raises(ConfigError, match=r"y is of shape \[n, 3, 2\]"):
        part.check(["n", 3, 2])
    with pytest.raises(ConfigError, match=r"y is of shape \[n, \?\]"):
        part.check(["n", None])


@given(st.lists(st.integers(-5, 5) | st.just(slice(None)) | st.just(...), min_size=1, max_size=5))
def test_what_is_checked_of_a_shape_is_what_numpy_takes(axes: list[object]) -> None:
    if axes.count(...) > 1:
        return
    (part,) = _find(f"y[{','.join(map(_write_axis, axes))}]")
    assert _refusal(lambda: part.check(CUBE.shape)) == _refusal(lambda: part.take(CUBE))


def _refusal(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except ConfigError as error:
        return str(error)
    return None


def test_a_sequence_has_no_parts_but_is_a_whole() -> None:
    values = [CUBE, CUBE]
    assert Part("y").take(values) is values
    (part,) = _find("y[0]")
    with pytest.raises(ConfigError, match="y is no tensor but a sequence or an optional"):
        part.take(values)

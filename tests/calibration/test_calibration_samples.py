from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from calibration_specs import floats, refusal, spec, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_fixer.calibration.samples import Cut, name_samples, plan_cuts
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import InputSpec

FILE = Path("data.npz")


def plan(shapes, *inputs, batch_size=1):
    return plan_cuts(FILE, shapes, inputs, batch_size)


def cut_array(array, cut):
    starts = np.cumsum([0, *cut.counts])
    return [cut.shape_batch(array[start:stop]) for start, stop in pairwise(starts)]


@settings(deadline=None)
@given(total=st.integers(1, 40), rows=st.integers(1, 12), tail=st.lists(st.integers(0, 3), max_size=2))
def test_batches_of_an_open_axis_join_to_the_array(total, rows, tail):
    array = floats(total, *tail)
    cut = plan({"x": array.shape}, spec("x", "n", *tail), batch_size=rows)["x"]
    batches = cut_array(array, cut)
    np.testing.assert_array_equal(np.concatenate(batches), array)
    assert [len(batch) for batch in batches[:-1]] == [rows] * (len(batches) - 1)
    assert 1 <= len(batches[-1]) <= rows


@settings(deadline=None)
@given(count=st.integers(1, 12), first=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_batches_of_a_fixed_axis_join_to_the_array(count, first, batch_size):
    array = floats(count * first, 2)
    cut = plan({"x": array.shape}, spec("x", first, 2), batch_size=batch_size)["x"]
    batches = cut_array(array, cut)
    assert [batch.shape for batch in batches] == [(first, 2)] * count
    np.testing.assert_array_equal(np.concatenate(batches), array)


@settings(deadline=None)
@given(total=st.integers(1, 12), first=st.one_of(st.integers(0, 4), st.just("n"), st.none()))
def test_batches_of_an_extra_axis_stack_to_the_array(total, first):
    array = floats(total, first if isinstance(first, int) else 3, 2)
    cut = plan({"x": array.shape}, spec("x", first, 2), batch_size=5)["x"]
    np.testing.assert_array_equal(np.stack(cut_array(array, cut)), array)


@settings(deadline=None)
@given(total=st.integers(1, 40), rows=st.integers(1, 12), drops=st.booleans())
def test_there_is_a_name_for_each_batch_and_no_two_alike(total, rows, drops):
    cut = Cut(total, 1 if drops else rows, drops)
    names = [part.name for part in name_samples(FILE, cut)]
    assert len(names) == len(cut.counts)
    assert len(set(names)) == len(names)


def test_names_count_samples():
    assert [part.name for part in name_samples(FILE, Cut(3, 1))] == [
        "data.npz[0]",
        "data.npz[1]",
        "data.npz[2]",
    ]
    assert [part.name for part in name_samples(FILE, Cut(5, 2))] == [
        "data.npz[0:2]",
        "data.npz[2:4]",
        "data.npz[4:5]",
    ]


def test_inputs_are_cut_each_in_its_own_way():
    inputs = (spec("image", 3, 8, 8), spec("boxes", 5, 4), spec("ids", "n", 7))
    cuts = plan({"image": (6, 3, 8, 8), "boxes": (30, 4), "ids": (6, 7)}, *inputs)
    assert cuts == {"image": Cut(6, 1, True), "boxes": Cut(30, 5), "ids": Cut(6, 1, False, True)}


def test_one_batch_in_the_models_own_shapes():
    cuts = plan({"x": (1, 3), "s": ()}, spec("x", 1, 3), spec("s"))
    assert [cut.counts for cut in cuts.values()] == [[1], [1]]


@pytest.mark.parametrize(
    ("shapes", "inputs", "found"),
    [
        (
            {"x": (10, 3), "c": (1, 4)},
            [spec("x", 1, 3), spec("c", 1, 4)],
            "'x' [10, 3] for [1, 3] gives 10; 'c' [1, 4] for [1, 4] gives 1",
        ),
        ({"x": (10, 3), "s": ()}, [spec("x", 1, 3), spec("s")], "'s' [] for [] gives 1"),
        ({"x": (10, 3), "y": (9, 3)}, [spec("x", "n", 3), spec("y", "n", 3)], "'y' [9, 3] for [n, 3] gives"),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_unequal_numbers_of_samples_are_refused(shapes, inputs, found, batch_size):
    with pytest.raises(CalibrationError) as caught:
        plan(shapes, *inputs, batch_size=batch_size)
    assert "data.npz: the inputs do not have the same number of samples" in str(caught.value)
    assert found in str(caught.value)
    assert "Repeat an input that is the same for all samples" in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dims", "found"),
    [
        ((10, 3), (4, 3), "axis 0 cannot be cut into batches of 4"),
        ((10, 3), (0, 3), "axis 0 cannot be cut into batches of 0"),
        ((3,), (4, 3), "1 dimension. Expected 2"),
        ((1, 1, 4, 3), (4, 3), "4 dimensions. Expected 2"),
        ((0, 3), ("n", 3), "holds no samples"),
        ((0, 4, 3), (4, 3), "holds no samples"),
        ((3,), None, "does not say how many dimensions"),
    ],
)
def test_an_axis_that_cannot_be_cut_is_refused(shape, dims, found):
    with pytest.raises(CalibrationError) as caught:
        plan({"x": shape}, InputSpec("x", 1, dims))
    assert found in str(caught.value)
    assert "data.npz" in str(caught.value)
    assert "Expected" in str(caught.value)


def test_other_dimensions_are_checked_when_a_batch_is_read(tmp_path):
    np.savez(tmp_path / "d.npz", x=floats(4, 3))
    text = refusal(tmp_path / "d.npz", spec("x", "n", 5))
    assert f"{tmp_path / 'd.npz'}, batch d.npz[0]: input 'x' has shape [1, 3], dimension 1 is 3" in text


def test_the_sample_at_fault_is_named(tmp_path):
    x = floats(4, 3)
    x[2, 1] = np.nan
    np.savez(tmp_path / "d.npz", x=x)
    text = refusal(tmp_path / "d.npz", spec("x", 1, 3))
    assert "batch d.npz[2]: input 'x' holds 1 NaN and 0 infinite values of 3, the first at [0, 1]" in text
    assert len(walk(tmp_path / "d.npz", spec("x", 1, 3), allow_nonfinite=True)) == 4

"""The two ways of observing agree with each other, and with a reckoning number by number."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from scan_cases import assert_same, reckon, save_model, value_info

from overflow_fixer.graph import Graph
from overflow_fixer.ranges import observers
from overflow_fixer.ranges.observers import OutputObserver, ReductionObserver, is_repeatable, open_observer
from overflow_fixer.ranges.summaries import SUMMARY_FIELDS, Summaries
from overflow_fixer.records import Array, Batch, Range

EDGES = [
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    6e-8,
    1.0,
    -2.5,
    65504.0,
    65519.996,
    65520.0,
    -3e38,
    np.inf,
    -np.inf,
    np.nan,
]
ORDINARY = [0.0, -0.0, 1e-45, -1e-40, 0.5, -2.5, 65504.0, 65519.996, -65519.996]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)


def arrays(dtype: Any) -> st.SearchStrategy[Array]:
    def of(elements: list[float]) -> st.SearchStrategy[Array]:
        with np.errstate(over="ignore"):
            return hnp.arrays(dtype, SHAPES, elements=st.sampled_from([float(dtype(x)) for x in elements]))

    anything = hnp.arrays(dtype, SHAPES, elements=st.floats(width=np.dtype(dtype).itemsize * 8))
    return st.one_of(of(ORDINARY), of(EDGES), anything)


def identity_graph(path: Path, elem_type: int) -> Graph:
    node = helper.make_node("Identity", ["x"], ["y"])
    return save_model(path, [node], [value_info("x", elem_type)], [value_info("y", elem_type)])


@cache
def shared_graph(elem_type: int) -> Graph:
    return identity_graph(Path(mkdtemp()) / "m.onnx", elem_type)


@cache
def shared_observers(elem_type: int) -> tuple[OutputObserver, ReductionObserver]:
    """Marked outputs, and detailed probes."""
    detailed = ReductionObserver(shared_graph(elem_type), ["x", "y"])
    detailed.observe(Batch("b", {"x": np.full(1, np.nan, helper.tensor_dtype_to_np_dtype(elem_type))}))
    return OutputObserver(shared_graph(elem_type), ["x", "y"]), detailed


def as_ranges(seen: Summaries, worst_batch: int) -> list[Range]:
    rows = [{name: row[name].item() for name in SUMMARY_FIELDS} for row in seen]
    return [Range("t", **row, worst_batch=worst_batch) for row in rows]


def assert_all_agree(elem_type: int, values: Array) -> None:
    expected = reckon("t", [values])
    quick = ReductionObserver(shared_graph(elem_type), ["x", "y"])  # becomes a detailed one where it must
    for observer in (*shared_observers(elem_type), quick):
        found = observer.observe(Batch("b", {"x": values.copy()}))
        assert_same(as_ranges(found, expected.worst_batch), [expected, expected])


@settings(max_examples=120, deadline=None)
@given(arrays(np.float32))
def test_float32(values: Array) -> None:
    assert_all_agree(TensorProto.FLOAT, values)


@settings(max_examples=120, deadline=None)
@given(arrays(np.float64))
def test_float64(values: Array) -> None:
    assert_all_agree(TensorProto.DOUBLE, values)


@settings(max_examples=120, deadline=None)
@given(arrays(np.float16))
def test_float16(values: Array) -> None:
    assert_all_agree(TensorProto.FLOAT16, values)


@pytest.mark.parametrize("place", [0, 1, 7, 8, 500, 99_999])
@pytest.mark.parametrize("size", [100_000])
def test_a_nan_anywhere_in_a_large_tensor_is_counted(place: int, size: int) -> None:
    values = np.linspace(-1, 1, size, dtype=np.float32)
    values[place] = np.nan
    assert_all_agree(TensorProto.FLOAT, values)


def test_a_finite_tensor_whose_l1_norm_overflows_is_exact() -> None:
    assert_all_agree(TensorProto.DOUBLE, np.full(4, 1e308))
    assert_all_agree(TensorProto.FLOAT, np.full((2, 4), -3e38, np.float32))


@pytest.fixture
def count_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"run_session": 0, "open_session": 0}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*args, **options)

        return run

    for name in counts:
        monkeypatch.setattr(observers, name, counting(name, getattr(observers, name)))
    return counts


def test_a_batch_is_run_again_only_for_tensors_new_over_the_limit(
    tmp_path: Path, count_runs: dict[str, int]
) -> None:
    observer = ReductionObserver(identity_graph(tmp_path / "m.onnx", TensorProto.FLOAT), ["x", "y"])
    for value, runs, sessions in ((1, 1, 1), (65519, 2, 1), (65520, 4, 2), (np.nan, 5, 2), (1, 6, 2)):
        observer.observe(Batch("b", {"x": np.float32([value, 2])}))
        assert count_runs == {"run_session": runs, "open_session": sessions}


def test_a_random_model_is_run_once_a_batch(tmp_path: Path, count_runs: dict[str, int]) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], seed=1.0, scale=1e6),
        helper.make_node("Abs", ["r"], ["y"]),
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[50])], [value_info("y")])
    found = [open_observer(graph, ["x", "r", "y"], way) for way in ("reductions", "outputs")]
    batch = Batch("b", {"x": np.zeros(50, np.float32)})
    for _ in range(2):
        first, second = (as_ranges(observer.observe(batch), 0) for observer in found)
        assert_same(first, second)
        assert first[1].max_abs == first[2].max_abs > 65520
    assert count_runs == {"run_session": 4, "open_session": 2}


@pytest.mark.parametrize(
    ("node", "repeatable"),
    [
        (helper.make_node("Dropout", ["x"], ["y"]), True),
        (helper.make_node("Dropout", ["x", ""], ["y"]), True),
        (helper.make_node("Dropout", ["x", "", "training"], ["y"]), False),
        (helper.make_node("Dropout", ["x", "", "evaluating"], ["y"]), True),
        (helper.make_node("Dropout", ["x", "", "flag"], ["y"]), False),
        (helper.make_node("Bernoulli", ["x"], ["y"]), False),
        (helper.make_node("BatchNormalization", ["x", *"wwww"], ["y"]), True),
        (helper.make_node("BatchNormalization", ["x", *"wwww"], ["y", "m", "v"], training_mode=1), False),
    ],
)
def test_what_may_change_from_run_to_run(tmp_path: Path, node: Any, repeatable: bool) -> None:
    switches = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in (("training", True), ("evaluating", False))
    ]
    weights = [numpy_helper.from_array(np.ones(2, np.float32), "w"), *switches]
    inputs = [value_info("x", dims=[3, 2]), value_info("flag", TensorProto.BOOL, [])]
    graph = save_model(tmp_path / "m.onnx", [node], inputs, [value_info("y")], weights)
    assert is_repeatable(graph) == repeatable


def test_a_random_node_in_a_body_counts(tmp_path: Path) -> None:
    body = helper.make_graph([helper.make_node("RandomNormalLike", ["x"], ["r"])], "b", [], [value_info("r")])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)]
    inputs = [value_info("x", dims=[2]), value_info("flag", TensorProto.BOOL, [])]
    assert not is_repeatable(save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")]))

"""The two ways of observing agree with each other, and with a reckoning number by number."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from edge_values import EDGES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from scan_cases import assert_same, reckon, save_model, value_info
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner import look_inside
from overflow_fixer.ranges import observers
from overflow_fixer.ranges.observers import Observe, OutputObserver, ReductionObserver, open_observer
from overflow_fixer.ranges.summaries import SUMMARY_FIELDS, Summaries, hide_small
from overflow_fixer.ranges.wanted import Look, Wanted
from overflow_fixer.records import Array, Batch, Range

WAYS: tuple[Observe, ...] = ("reductions", "outputs")
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


@pytest.fixture(autouse=True, scope="module", params=PROBES)
def probes(request: pytest.FixtureRequest) -> Iterator[Probes]:
    shared_observers.cache_clear()
    with use_probes(request.param):
        yield request.param


@cache
def shared_graph(elem_type: int) -> Graph:
    return identity_graph(Path(mkdtemp()) / "m.onnx", elem_type)


@cache
def shared_observers(elem_type: int) -> tuple[OutputObserver, ReductionObserver]:
    """Marked outputs, and detailed probes."""
    detailed = ReductionObserver(shared_graph(elem_type), Wanted(["x", "y"], {"x", "y"}))
    detailed.observe(Batch("b", {"x": np.full(1, np.nan, helper.tensor_dtype_to_np_dtype(elem_type))}))
    return OutputObserver(shared_graph(elem_type), Wanted(["x", "y"])), detailed


def as_ranges(seen: Summaries, worst_batch: int) -> list[Range]:
    rows = [{name: row[name].item() for name in SUMMARY_FIELDS} for row in seen]
    return [Range("t", **row, worst_batch=worst_batch) for row in rows]


def assert_all_agree(elem_type: int, values: Array) -> None:
    expected = reckon("t", [values])
    wanted = Wanted(["x", "y"], {"x", "y"})
    quick = ReductionObserver(shared_graph(elem_type), wanted)  # becomes a detailed one where it must
    for observer in (*shared_observers(elem_type), quick):
        found = observer.observe(Batch("b", {"x": values.copy()})).summaries
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


def test_a_finite_tensor_whose_sum_overflows_is_exact() -> None:
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
    tmp_path: Path, count_runs: dict[str, int], probes: Probes
) -> None:
    """With native probes never."""
    observer = ReductionObserver(identity_graph(tmp_path / "m.onnx", TensorProto.FLOAT), Wanted(["x", "y"]))
    told = ((1, 1, 1), (65519, 2, 1), (65520, 4, 2), (np.nan, 5, 2), (1, 6, 2))
    for count, (value, runs, sessions) in enumerate(told, start=1):
        observer.observe(Batch("b", {"x": np.float32([value, 2])}))
        assert count_runs == (
            {"run_session": count, "open_session": 1}
            if probes != "operators"
            else {"run_session": runs, "open_session": sessions}
        )


def test_a_sum_inside_a_node_over_the_limit_does_not_run_a_batch_again(
    tmp_path: Path, count_runs: dict[str, int], probes: Probes
) -> None:
    """The tensor itself is within it."""
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    graph = save_model(tmp_path / "m.onnx", [node], [value_info("x", dims=[1, 2, 96, 96])], [value_info("y")])
    inside = look_inside(graph, is_native=probes != "operators")
    looks = {value.tensor: Look(frozenset({"max", "min"}), value.source) for value in inside.values}
    tensors = ["x", "y", *looks]
    observer = ReductionObserver(inside.graph, Wanted(tensors, (), looks, inside.extremes))
    found = observer.observe(Batch("b", {"x": np.full((1, 2, 96, 96), 10, np.float32)})).summaries
    assert found["max"].tolist() == [10, 10, 92160, 92160]
    assert count_runs == {"run_session": 1, "open_session": 1}


def test_rows_tell_of_what_they_are_made_of_and_not_of_what_that_is_computed_from(
    tmp_path: Path, probes: Probes
) -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["a"]), helper.make_node("GlobalAveragePool", ["a"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 1, 2, 2])], [value_info("y")])
    inside = look_inside(graph, is_native=probes != "operators")
    observer = ReductionObserver(inside.graph, Wanted(["x"]))
    found = observer.observe(Batch("b", {"x": np.full((1, 1, 2, 2), -3, np.float32)})).summaries
    assert found["max"].tolist() == [-3]


def test_shapes_that_the_model_tells_wrongly_do_no_harm(tmp_path: Path, count_runs: dict[str, int]) -> None:
    """They would cut a tensor of 100,001 elements into 64 rows."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Tanh", ["r"], ["y"])]
    inputs = [value_info("x"), value_info("shape", TensorProto.INT64, [1])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y", dims=[1 << 19])])
    observer = ReductionObserver(graph, Wanted(["x", "y"]))
    values = np.linspace(-9, 9, 100_001, dtype=np.float32)
    feeds = {"x": values, "shape": np.array([-1])}
    found = observer.observe(Batch("b", feeds)).summaries
    assert found["max"][0] == 9
    assert found["element_count"].tolist() == [100_001] * 2
    assert count_runs == {"run_session": 1, "open_session": 1}


def _derive(path: Path) -> Graph:
    """What follows from x: n, r and y."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Concat", ["r", "x"], ["y"], axis=0),
    ]
    return save_model(path, nodes, [value_info("x", dims=["n"])], [value_info("y")])


def test_a_tensor_derived_from_one_over_the_limit_is_still_told_wholly(tmp_path: Path) -> None:
    graph = _derive(tmp_path / "m.onnx")
    tensors = ["x", "n", "r", "y"]
    for values in ([1, 2], [], [-7e4, np.nan, 3], [np.inf], [5, -0.0]):
        found = [
            observer.observe(Batch("b", {"x": np.float32(values)})).summaries
            for observer in (
                ReductionObserver(graph, Wanted(tensors)),
                OutputObserver(graph, Wanted(tensors)),
            )
        ]
        for seen in found:
            hide_small(seen, np.zeros(4, np.bool_))
        assert_same(*(as_ranges(seen, 0) for seen in found))


_COUNTED = (
    ([-7e4, -np.inf, 3], 1),
    ([2], 1),
    ([7e4], 1),
    ([-7e4, 7e4, 8e4, np.inf], 1),
    ([-np.inf, np.inf, 7e4], 2),
)
"""Values, and how often they are run."""


def test_counts_that_follow_from_others_do_not_run_a_batch_again(
    tmp_path: Path, count_runs: dict[str, int], probes: Probes
) -> None:
    """But for those of a Relu, of values that are infinite on both sides of 0; and where only quick probes are there."""
    graph = _derive(tmp_path / "m.onnx")
    tensors = ["x", "n", "r", "y"]
    observer, marked = (kind(graph, Wanted(tensors)) for kind in (ReductionObserver, OutputObserver))
    count_runs.update(run_session=0, open_session=1)
    for values, runs in _COUNTED:
        batch = Batch("b", {"x": np.float32(values)})
        before = count_runs["run_session"]
        seen = observer.observe(batch).summaries
        if probes != "operators":
            assert count_runs["run_session"] - before == runs
        for one, other in zip(seen, marked.observe(batch).summaries, strict=True):
            assert [one[f"{what}_count"] for what in ("nan", "inf", "over_fp16")] == [
                other[f"{what}_count"] for what in ("nan", "inf", "over_fp16")
            ]


@pytest.mark.parametrize(
    ("nodes", "fed"),
    [
        ([("Log", "x", "l"), ("Div", "l two", "d"), ("Neg", "d", "n"), ("Mul", "n two", "y")], [0, 1]),
        ([("Sub", "two x", "s"), ("Mul", "s fill", "m"), ("Concat", "m x", "y")], [2, 1]),
        ([("Add", "x fill", "m"), ("Max", "m two", "c"), ("Mul", "two c", "y")], [0, 1]),
    ],
    ids=["logarithm", "fill", "sum"],
)
def test_values_out_of_range_that_are_to_be_expected_do_not_run_a_batch_again(
    tmp_path: Path,
    count_runs: dict[str, int],
    probes: Probes,
    nodes: list[tuple[str, str, str]],
    fed: list[float],
) -> None:
    made = [
        helper.make_node(op, reads.split(), [writes], **({"axis": 0} if op == "Concat" else {}))
        for op, reads, writes in nodes
    ]
    constants = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("two", 2), ("fill", -3e38))
    ]
    graph = save_model(tmp_path / "m.onnx", made, [value_info("x", dims=[2])], [value_info("y")], constants)
    tensors = ["x", *(writes for *_, writes in nodes)]
    observer, marked = (kind(graph, Wanted(tensors)) for kind in (ReductionObserver, OutputObserver))
    count_runs.update(run_session=0, open_session=0)
    batch = Batch("b", {"x": np.float32(fed)})
    seen = observer.observe(batch).summaries
    assert count_runs == {
        "run_session": 1 if probes != "operators" else 2,
        "open_session": 0 if probes != "operators" else 1,
    }
    told = ["min", "max", "nan_count", "inf_count", "over_fp16_count"]
    assert seen[told].tolist() == marked.observe(batch).summaries[told].tolist()


def test_a_random_model_is_run_once_a_batch(tmp_path: Path, count_runs: dict[str, int]) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], seed=1.0, scale=1e6),
        helper.make_node("Abs", ["r"], ["y"]),
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[50])], [value_info("y")])
    tensors = ["x", "r", "y"]
    found = [open_observer(graph, Wanted(tensors, tensors), way, "cpu") for way in WAYS]
    batch = Batch("b", {"x": np.zeros(50, np.float32)})
    for _ in range(2):
        first, second = (as_ranges(observer.observe(batch).summaries, 0) for observer in found)
        assert_same(first, second)
        assert first[1].max_abs == first[2].max_abs > 65520
    assert count_runs == {"run_session": 4, "open_session": 2}


def test_nothing_is_derived_of_a_tensor_whose_extremes_are_not_taken(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1]),
        helper.make_node("Mul", ["mean", "two"], ["y"]),
    ]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 4])], [value_info("y")], [two], opset=13
    )
    observer = ReductionObserver(graph, Wanted(["y"], looks={"mean": Look(frozenset({"sum"}))}))
    found = observer.observe(Batch("b", {"x": np.array([[1, 2, 3, 6]], np.float32)})).summaries
    assert (found["max"].tolist(), found["min"].tolist()) == ([6.0], [6.0])

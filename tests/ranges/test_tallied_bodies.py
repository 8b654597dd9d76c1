"""Bodies that are observed in the midst of the model's own run, held against those that are interpreted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from body_cases import find_looked_at_once, floats, keep_built, parse, scan_runs
from scan_cases import MemoryBatches
from ways_to_observe import scan_each_way

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.native import LIBRARY
from overflow_fixer.ranges import collect_ranges, interpreted_bodies, observers, product_watch
from overflow_fixer.ranges.levels import find_level
from overflow_fixer.ranges.openings import Settings
from overflow_fixer.ranges.tallied_bodies import can_tally
from overflow_fixer.records import Array

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")


@pytest.fixture
def not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted_bodies, "interpret", lambda *_: pytest.fail("it was interpreted"))


def _can_tally(graph: Graph, **settings: Any) -> bool:
    with ThreadPoolExecutor() as beside:
        ways = {"observe": "reductions", "provider": "cpu", "small_values": "needed", **settings}
        return can_tally(find_level(graph, is_native=True), Settings(**ways, beside=beside))


DOUBLING = """
g ({elem}[N] x, int64 trips) => ({elem}[N] y) {{
    [l] y = Loop (trips, , x) <
        body = b (int64 i, bool c, {elem}[N] s) => (bool c, {elem}[N] t) {{
            [branch] t = If (c) <
                then_branch = then () => ({elem}[N] a) {{ a = Add (s, x) }},
                else_branch = else () => ({elem}[N] b) {{ b = Sub (s, x) }}
            >
        }}
    >
}}"""


@pytest.mark.parametrize("elem", ["float", "double", "float16"])
def test_only_float32_is_tallied(elem: str, tmp_path: Path) -> None:
    graph = parse(tmp_path, DOUBLING.format(elem=elem))
    assert _can_tally(graph) is (elem == "float")
    dtype = np.dtype("float32" if elem == "float" else elem.replace("double", "float64"))
    table = scan_runs(graph, [{"x": np.array([1, -3], dtype), "trips": np.array(3)}])
    assert table.by_tensor["l/body/branch/then_branch/a"].min == -12


def test_floats_of_another_width_in_a_body_within_a_body_are_not_tallied(tmp_path: Path) -> None:
    """In the model's own run, FP16 would not be rounded: 2049 is 2048 in it."""
    text = """
    g (float[N] x, int64 trips) => (float[N] y) {
        [l] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) {
                [branch] t = If (c) <
                    then_branch = then () => (float[N] a) {
                        h = Cast <to = 10> (s)
                        k = Neg (h)
                        a = Cast <to = 1> (k)
                    },
                    else_branch = else () => (float[N] b) { b = Neg (s) }
                >
            }
        >
    }"""
    graph = parse(tmp_path, text)
    assert not _can_tally(graph)
    table = scan_runs(graph, [{"x": floats(2049, 1), "trips": np.array(1)}])
    assert table.by_tensor["l/body/branch/then_branch/k"].min == -2048


def test_only_native_probes_that_look_at_the_models_own_tensors_tally(tmp_path: Path) -> None:
    graph = parse(tmp_path, DOUBLING.format(elem="float"))
    assert not _can_tally(graph, observe="outputs")
    assert not _can_tally(graph, observe="optimized")
    assert not _can_tally(graph, provider="cuda")


def test_what_a_body_captures_of_the_model_is_looked_at_in_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any depth; what it captures of a body around it may be another in each run."""
    built = keep_built(monkeypatch)
    feeds = [{"x": floats(k, -3), "trips": np.array(k)} for k in (2, 0, 3)]
    table = collect_ranges(parse(tmp_path, DOUBLING.format(elem="float")), MemoryBatches(feeds))
    assert find_looked_at_once(built[0].graph) == ["x"] * 3
    captured = table.by_tensor["l/body/branch/then_branch/x"]
    assert (captured.min, captured.max, captured.element_count) == (-3, 3, 2 * (2 + 3))
    assert table.by_tensor["l/body/branch/then_branch/s"].max == 9


def test_a_model_that_draws_random_numbers_is_told_of_the_one_run_there_is(
    not_interpreted: None, tmp_path: Path
) -> None:
    text = """
    g (float[N] x, int64 trips) => (float[M,N] y) {
        yes = Constant <value = bool {1}> ()
        [l] y = Loop (trips, yes) <
            body = b (int64 i, bool c) => (bool c, float[N] t) { t = RandomNormalLike (x) }
        >
    }"""
    feeds = [{"x": floats(1, 2, 3), "trips": np.array(5)}] * 3
    table = collect_ranges(parse(tmp_path, text), MemoryBatches(feeds))
    inside, outside = table.by_tensor["l/body/t"], table.by_tensor["y"]
    assert (inside.min, inside.max) == (outside.min, outside.max)
    assert inside.element_count == outside.element_count == 3 * 5 * 3


def test_a_batch_that_runs_again_is_counted_once(
    not_interpreted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a Mul leaves follows from a probe of what it reads, until it is over the limit and is to be counted."""
    text = """
    g (float[N] x, int64 trips) => (float[N] y) {
        large = Constant <value_float = 30000.0> ()
        h = Sinh (x)
        m = Mul (h, large)
        half = Sin (m)
        [l] y = Loop (trips, , half) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) { t = Add (s, m) }
        >
    }"""
    runs = []
    run = observers.run_session
    monkeypatch.setattr(observers, "run_session", lambda *given: runs.append(given) or run(*given))
    feeds = [{"x": floats(9, -9, 0.1), "trips": np.array(3)}]
    table = collect_ranges(parse(tmp_path, text), MemoryBatches(feeds))
    assert len(runs) == 2
    assert table.by_tensor["m"].over_fp16_count == 2
    added = table.by_tensor["l/body/t"]
    assert (added.element_count, added.over_fp16_count) == (3 * 3, 3 * 2)


def test_a_run_in_which_a_tensor_is_empty_tells_nothing_of_what_is_inside_its_reader(tmp_path: Path) -> None:
    text = """
    g (float[N] x, int64 trips) => (float[M] y) {
        yes = Constant <value = bool {1}> ()
        [l] y = Loop (trips, yes) <
            body = b (int64 i, bool c) => (bool c, float o) {
                zero = Constant <value = int64[1] {0}> ()
                dims = Constant <value = int64[1] {1}> ()
                end = Reshape (i, dims)
                part = Slice (x, zero, end)
                square = Mul (part, part)
                [sum] s = ReduceSum <keepdims = 0> (square)
                [soft] p = Softmax (square)
                [norm] n = ReduceL2 <keepdims = 0> (part)
                o = Add (s, n)
            }
        >
    }"""
    graph = parse(tmp_path, text)
    for trips in ([1, 4], [1, 1], [0], [3]):
        feeds = [{"x": floats(3, -4, 2, 9), "trips": np.array(count)} for count in trips]
        table = scan_runs(graph, feeds)
        assert table.by_tensor["l/body/o"].element_count == sum(trips)


def test_a_least_magnitude_that_nobody_takes_follows_from_the_signs_of_each_run(tmp_path: Path) -> None:
    """As of each batch; and of a tensor that has the same values as one of which it is taken, too."""
    text = """
    g (float[N] x, int64 trips) => (float[N] y) {
        [l] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) {
                step = Cast <to = 1> (i)
                e = Exp (s)
                held = Mul (e, step)
                sine = Sin (s)
                same = Identity (sine)
                d = Div (step, same)
                t = Add (s, d)
            }
        >
    }"""
    graph = parse(tmp_path, text)
    for trips in (1, 2, 3):
        feeds = [{"x": floats(k, -0.3, 2), "trips": np.array(trips)} for k in (1, 4)]
        table = scan_each_way(graph, MemoryBatches(feeds))
        found = table.by_tensor["l/body/held"].min_nonzero_abs
        assert np.isnan(found) if trips == 1 else 0 < found < 2
    assert table.by_tensor["l/body/sine"].min_nonzero_abs == -np.inf
    assert table.by_tensor["l/body/same"].min_nonzero_abs > 0


def test_bodies_whose_tensors_have_the_same_names_and_those_of_probes(tmp_path: Path) -> None:
    text = """
    g (float[N] x, bool c) => (float[M] y) {
        range_probe_0_all = Mul (x, x)
        inner_value_ = Sqrt (range_probe_0_all)
        [i] z = If (c) <
            then_branch = t () => (float[A] p) {
                range_probe_1_all = Neg (x)
                [f] p = LogSoftmax (range_probe_1_all)
            },
            else_branch = e () => (float[B] q) {
                range_probe_1_all = Abs (inner_value_)
                [f] q = LogSoftmax (range_probe_1_all)
            }
        >
        [f] y = LogSoftmax (z)
    }"""
    table = scan_runs(parse(tmp_path, text), [{"x": floats(1, -7), "c": np.array(c)} for c in (True, False)])
    assert table.by_tensor["i/then_branch/range_probe_1_all"].max == 7
    assert table.by_tensor["i/else_branch/range_probe_1_all"].max == 7


@pytest.mark.parametrize("count", [50, 54, 58, 64, 118])
def test_what_is_told_of_64_tensors_is_joined_when_all_are_there(count: int, tmp_path: Path) -> None:
    """Values inside nodes are told behind all tensors, and are there before most."""
    softmaxes = [f"[f{i}] s{i + 1} = LogSoftmax (s{i})" for i in range(4)]
    small = [f"[n{i}] t{i + 1} = Sin (t{i})" for i in range(count)]
    lines = "\n".join(["s0 = Neg (x)", *softmaxes, "t0 = Neg (s4)", *small])
    text = f"""
    g (float[N] x, bool c) => (float[M] z) {{
        [i] z = If (c) <
            then_branch = t () => (float[A] t{count}) {{ {lines} }},
            else_branch = e () => (float[B] q) {{ q = Neg (x) }}
        >
    }}"""
    table = scan_runs(parse(tmp_path, text), [{"x": floats(1, -7), "c": np.array(True)}])
    assert table.by_tensor["i/then_branch/s0"].max == 7


def test_a_body_without_a_float_is_counted(not_interpreted: None, tmp_path: Path) -> None:
    text = """
    g (int64[N] x, bool c) => (int64[M] y) {
        [i] y = If (c) <
            then_branch = t () => (int64[A] p) { p = Neg (x) },
            else_branch = e () => (int64[B] q) { q = Abs (x) }
        >
    }"""
    feeds = [{"x": np.array([1, -7]), "c": np.array(True)}]
    table = collect_ranges(parse(tmp_path, text), MemoryBatches(feeds))
    assert set(table.not_observed) == {"i/else_branch"}


PRODUCTS = """
g (float[1,2] x, float[2,2] w, int64 trips) => (float[1,2] y) {
    [l] y = Loop (trips, , x) <
        body = b (int64 i, bool c, float[1,2] s) => (bool c, float[1,2] t) {
            hundred = Constant <value_float = 100.0> ()
            [m] p = MatMul (s, w)
            t = Mul (s, hundred)
        }
    >
}"""


def _make_constant(path: Path, w: Array) -> None:
    """Its weights have this default."""
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, path)


SUMS = {
    "watched": "[m] p = MatMul (s, w)",
    "of any number of factors": '[m] p = Einsum <equation = "ij,jk->ik"> (s, w)',
    "with a bias that is computed": "[m] p = Gemm (s, w, s)",
    "of weights that are computed": """
        shape = Constant <value_ints = [1, 2, 1, 1]> ()
        image = Reshape (s, shape)
        kernel = Constant <value_ints = [2, 2, 1, 1]> ()
        weights = Reshape (w, kernel)
        moved = Add (weights, none)
        [m] p = ConvTranspose (image, moved)""",
    "of which another node looks at the output": """
        [m] p = MatMul (s, w)
        shape = Constant <value_ints = [1, 1, 2]> ()
        image = Reshape (p, shape)
        one = Constant <value_floats = [1.0]> ()
        n = InstanceNormalization (image, one, one)""",
}
"""Of 400 and 400, and in the second run 40000 and 40000, with the weights 1, 1 and -1, -1."""


def _put_in(product: str) -> str:
    none = "none = Constant <value_float = 0.0> ()"
    return PRODUCTS.replace("[m] p = MatMul (s, w)", f"{none} {product}")


@pytest.mark.parametrize("product", SUMS)
def test_a_sum_over_the_limit_is_told_though_a_later_run_is_out_of_range(
    product: str, tmp_path: Path
) -> None:
    """In the second run 40000 - 40000 is small and 80000 (with the bias 120000) is not; in the third FP16 cannot hold what is added."""
    graph = parse(tmp_path, _put_in(SUMS[product]))
    feeds = [{"x": floats(400, 400)[None], "w": floats((1, 1), (-1, -1)), "trips": np.array(3)}]
    table = scan_runs(graph, feeds)
    expected = 120000 if "bias" in product else 80000
    assert table.inner_of["l/body/m"]["products"].seen.max_abs == expected


@pytest.mark.parametrize("product", SUMS)
@pytest.mark.parametrize("rate", [0.9, 1.1])
def test_of_runs_that_are_over_the_limit_the_largest_sum_is_told(
    rate: float, product: str, tmp_path: Path
) -> None:
    """Whether it comes first or last."""
    graph = parse(tmp_path, _put_in(SUMS[product]).replace("100.0", str(rate)))
    first, last = (50000.0 * rate**i for i in (0, 2))
    feeds = [{"x": floats(50000, 50000)[None], "w": floats((1, 1), (-1, -1)), "trips": np.array(3)}]
    found = scan_runs(graph, feeds).inner_of["l/body/m"]["products"].seen
    terms = 3 if "bias" in product else 2
    assert found.max_abs == pytest.approx(terms * max(first, last), rel=1e-5)


@pytest.mark.parametrize("product", SUMS)
def test_no_sum_is_told_of_a_run_in_which_a_factor_is_out_of_range(product: str, tmp_path: Path) -> None:
    """In the second run 30000 - 40000 is small and 70000 is not, but FP16 does not hold the -80000 of which half is added."""
    graph = parse(tmp_path, _put_in(SUMS[product]))
    feeds = [{"x": floats(-800, 300)[None], "w": floats((0.5, 0), (1, 0)), "trips": np.array(2)}]
    assert np.isnan(scan_runs(graph, feeds).inner_of["l/body/m"]["products"].seen.max_abs)


@pytest.mark.parametrize("product", SUMS)
@pytest.mark.parametrize("weight", [200, 70000])
@pytest.mark.parametrize("is_constant", [False, True])
def test_no_sum_is_told_where_fp16_can_never_hold_what_is_read_or_written(
    is_constant: bool, weight: float, product: str, tmp_path: Path
) -> None:
    """400 times 200 is 80000, more than FP16 can hold; so is 70000 itself, of which 400 and -400 leave nothing."""
    path = parse(tmp_path, _put_in(SUMS[product])).path
    signs = (1, 0) if weight == 200 else (1, 1)
    w = np.array([[one * weight] * 2 for one in signs], np.float32)
    feed = {"x": floats(400, -400)[None], "trips": np.array(2)}
    if is_constant:
        _make_constant(path, w)
    feeds = MemoryBatches([feed if is_constant else {**feed, "w": w}])
    table = scan_each_way(load_graph(path), feeds)
    assert np.isnan(table.inner_of["l/body/m"]["products"].seen.max_abs)


def test_no_sum_is_told_where_the_bias_alone_is_out_of_range(tmp_path: Path) -> None:
    """In the second run -40000 - 40000 + 80000 is 0."""
    product = "two = Constant <value_float = 2.0> () bias = Mul (s, two) [m] p = Gemm (s, w, bias)"
    feeds = [{"x": floats(400, 400)[None], "w": floats((-1, -1), (-1, -1)), "trips": np.array(2)}]
    table = scan_runs(parse(tmp_path, _put_in(product)), feeds)
    assert table.by_tensor["l/body/p"].max_abs == 0
    assert np.isnan(table.inner_of["l/body/m"]["products"].seen.max_abs)


@pytest.mark.parametrize("is_fed", [False, True])
def test_weights_with_a_default_that_a_batch_replaces_are_those_of_the_batch(
    is_fed: bool, tmp_path: Path
) -> None:
    path = parse(tmp_path, PRODUCTS).path
    _make_constant(path, floats((1, 1), (-1, -1)))
    feed = {"x": floats(400, 400)[None], "trips": np.array(2)}
    fed = {"w": floats((1.5, 1), (-1, -1))} if is_fed else {}
    table = scan_runs(load_graph(path), [{**feed, **fed}, feed])
    found = table.inner_of["l/body/m"]["products"]
    assert found.batch_max_abs.tolist() == [100000 if is_fed else 80000, 80000]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_a_softmax_are_long_or_not_in_each_run(axis: int, op: str, tmp_path: Path) -> None:
    """6,000 elements in one row, then 20 in each of some, so that on average they are short."""
    text = f"""
g (float[n,m] x, int64[r] ends) => (float[r] y) {{
    [l] y = Scan <num_scan_inputs = 1,
        body = b (int64 end) => (float t) {{
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            last = Unsqueeze (end, zero)
            part = Slice (x, zero, last, {"zero" if axis == 0 else "one"})
            [s] p = {op} <axis = {axis}> (part)
            t = ReduceMax <keepdims = 0> (p)
        }}
    > (ends)
}}"""
    x = np.zeros((6000, 2) if axis == 0 else (2, 6000), np.float32)
    table = scan_runs(parse(tmp_path, text), [{"x": x, "ends": np.array([6000, 20, 20, 20, 20])}])
    found = table.inner_of["l/body/s"]["sum of exponentials"].seen
    assert (found.max_abs, found.element_count) == (pytest.approx(6000, rel=1e-5), 2)


def test_what_is_raised_in_the_midst_of_a_body_ends_the_scan(
    not_interpreted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(product_watch.ProductWatch, "_measure", interrupt)
    feeds = [{"x": floats(40000, 40000)[None], "w": floats((1, 1), (-1, -1)), "trips": np.array(1)}]
    with pytest.raises(KeyboardInterrupt):
        collect_ranges(parse(tmp_path, PRODUCTS), MemoryBatches(feeds))

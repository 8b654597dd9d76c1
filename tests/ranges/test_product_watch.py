"""Sums of |a| |b| are measured in the midst of a run, where no bound says that they are in range."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save
from product_cases import Case, draw_values
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.channel_norms import find_channel_norm
from overflow_fixer.inner.products import find_products
from overflow_fixer.ranges import collect_ranges, observers, product_sessions, product_watch
from overflow_fixer.ranges.accumulation import Accumulation
from overflow_fixer.ranges.midst import Midst
from overflow_fixer.ranges.openings import select_all
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.ranges.product_watch import ProductWatch
from overflow_fixer.records import RangeTable
from overflow_fixer.sessions.settings import has_native_probes

pytestmark = pytest.mark.skipif(not has_native_probes(), reason="the library was not built")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the products that are measured, in turn."""
    found: list[int] = []
    measure = ProductWatch._measure

    def watched(self: ProductWatch, row: int, tensors: Sequence[Any]) -> None:
        found.append(row)
        measure(self, row, tensors)

    monkeypatch.setattr(ProductWatch, "_measure", watched)
    return found


def _scan(folder: Path, nodes: list[Any], inputs: dict[str, Any], outputs: str, **constants: Any) -> Any:
    graph = save(make_model(nodes, inputs, outputs, constants), folder)
    return lambda *feeds: collect_ranges(graph, InMemoryCalibration(feeds))


def _sums(ranges: RangeTable) -> list[float]:
    return [one.seen.max_abs for one in ranges.inner if one.quantity == "products"]


SIGNS = floats(1, -1)[:, None]


@st.composite
def watched_cases(draw: st.DrawFn) -> Case:
    """Of every operator that is watched."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, k, n = (draw(st.integers(1, 5)) for _ in range(3))
    op = draw(st.sampled_from(["MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"]))
    left, right, output = draw(
        st.sampled_from([("ij", "jk", "ik"), ("bij", "bkj", "kbi"), ("j", "kj", "k"), ("j", "j", "")])
    )
    sizes = {"b": 2, "i": m, "j": k, "k": n}
    shorter = draw(st.sampled_from(["", "a", "b"]))  # one of the factors may have a single element along j
    group = draw(st.integers(1, 3)) if op.startswith("Conv") else 1
    shapes = {
        "MatMul": {"a": draw(st.sampled_from([(k,), (m, k), (2, m, k)])), "b": (k, n)},
        "Gemm": {"a": (m, k), "b": (n, k), "c": (n,)},
        "Conv": {"x": (m, group * k, 4, 5), "w": (group * n, k, 2, 3), "b": (group * n,)},
        "ConvTranspose": {"x": (m, group * k, 3, 2), "w": (group * k, n, 2, 2), "b": (group * n,)},
        "Einsum": {
            name: tuple(1 if letter == "j" and name == shorter else sizes[letter] for letter in term)
            for name, term in (("a", left), ("b", right))
        },
    }[op]
    inputs = {name: draw_values(rng, *shape) for name, shape in shapes.items()}
    attributes: dict[str, Any] = (
        {"transB": 1, "alpha": draw(st.sampled_from([1.0, -0.5]))} if op == "Gemm" else {}
    )
    if group > 1:
        attributes["group"] = group
    if op == "Einsum":
        attributes["equation"] = f"{left},{right}->{output}"
    constants = {"MatMul": ["a", "b", ""], "Gemm": ["bc"], "Conv": ["wb", "b"], "Einsum": [""]}.get(
        op, ["wb"]
    )
    return Case(op, inputs, attributes, draw(st.sampled_from(constants)))


@settings(max_examples=60, deadline=None)
@given(case=watched_cases(), share=st.floats(0.9, 1.4))
def test_no_sum_over_the_limit_is_missed(case: Case, share: float) -> None:
    """Whatever is near it."""
    first = next(iter(case.inputs))
    near = case.in_range()
    scale = np.float32(share * 65504 / near.exact())
    near = Case(near.op, {**near.inputs, first: near.inputs[first] * scale}, near.attributes, near.constants)
    with TemporaryDirectory() as folder:
        graph, fed = near.build(Path(folder))
        ranges = collect_ranges(graph, InMemoryCalibration((fed,)))
    (found,) = _sums(ranges)
    if np.isnan(found):
        assert near.exact() <= 65504 * (1 + 1e-6) or ranges.by_tensor["y"].max_abs > 65504
    else:
        assert found == pytest.approx(near.exact(), rel=1e-5)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(1e-4, 640_000.0), (-0.5, 640_000.0), (0.0, 640_000.0), (2.0, 1_280_000.0)]
)
def test_the_sum_of_a_gemm_is_there_before_it_is_scaled(
    alpha: float, expected: float, tmp_path: Path
) -> None:
    """Though FP16 can hold what comes out of it."""
    w = np.where(np.arange(64)[:, None] % 2, 200, -200).astype(np.float32)
    gemm = node("Gemm", "x w", "y", alpha=alpha)
    scan = _scan(tmp_path, [gemm], {"x": ["n", 64]}, "y", w=w)
    assert _sums(scan({"x": np.full((2, 64), 50, np.float32)})) == [expected]


@pytest.mark.parametrize("kind", PROBES)
@pytest.mark.parametrize(("x", "expected"), [(5, np.nan), (5.5, 70_400.0)])
def test_a_bias_is_no_part_of_a_sum_that_is_scaled_before_it_is_added(
    x: float, expected: float, kind: Probes, tmp_path: Path
) -> None:
    """64,000 or 70,400, halved, and 9,000."""
    w, c = np.full((64, 1), 200, np.float32), np.full((1,), 9000, np.float32)
    scan = _scan(tmp_path, [node("Gemm", "x w c", "y", alpha=0.5)], {"x": ["n", 64]}, "y", w=w, c=c)
    with use_probes(kind):
        (found,) = _sums(scan({"x": np.full((2, 64), x, np.float32)}))
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("kind", PROBES)
@pytest.mark.parametrize(
    "before",
    [
        [node("Clip", "x low high", "c")],
        [node("Clip", "x tenth_low tenth_high", "t"), node("Mul", "t ten", "c")],
        [node("Min", "x high", "t"), node("Max", "t low", "c")],
        [node("QuantizeLinear", "x ten at_27", "q"), node("DequantizeLinear", "q ten at_27", "c")],
    ],
)
@pytest.mark.parametrize(("x", "expected"), [(10, np.nan), (1e5, 100_000.0), (-1e5, 100_000.0)])
def test_a_sum_of_what_is_clipped_is_found(
    before: list[Any], x: float, expected: float, kind: Probes, tmp_path: Path
) -> None:
    """Of 100 elements of 1,000 at most, though FP16 cannot hold what they are made of."""
    w = np.where(np.arange(100)[:, None] % 2, 1, -1).astype(np.float32)
    numbers = {
        "low": floats(-1000),
        "high": floats(1000),
        "tenth_low": floats(-100),
        "tenth_high": floats(100),
    }
    numbers |= {"ten": floats(10), "at_27": np.array(27 if x > 0 else -28, np.int8)}
    scan = _scan(tmp_path, [*before, node("MatMul", "c w", "y")], {"x": ["n", 100]}, "y", w=w, **numbers)
    with use_probes(kind):
        assert _sums(scan({"x": np.full((2, 100), x, np.float32)})) == pytest.approx([expected], nan_ok=True)


def test_a_length_keeps_what_its_magnitudes_allow_from_being_measured(
    measured: list[int], tmp_path: Path
) -> None:
    """One large element in a row, and one large weight in a channel, elsewhere."""
    w = np.full((100, 1), 1, np.float32)
    scan = _scan(tmp_path, [node("MatMul", "x w", "y")], {"x": ["n", 100]}, "y", w=w)
    peak = np.where(np.arange(100) == 3, 6000, 0).astype(np.float32)[None]  # 600,000 by its channel's sum
    assert np.isnan(_sums(scan({"x": peak}))).all()
    assert measured == []
    wide = np.where(np.arange(100) % 2, 1000, -1000).astype(np.float32)[None]
    assert _sums(scan({"x": peak}, {"x": wide})) == [100000]
    assert measured == [0]


def test_what_is_told_of_a_tensor_holds_for_a_part_of_it(measured: list[int], tmp_path: Path) -> None:
    """What a Relu reads may be under what FP16 can hold, and what it writes is not."""
    nodes = [
        node("Elu", "x", "h", alpha=1e5),
        node("Relu", "h", "r"),
        node("Transpose", "r", "t", perm=[1, 0]),
        node("MatMul", "t w", "y"),
    ]
    scan = _scan(tmp_path, nodes, {"x": [4, 1]}, "y", w=np.resize(SIGNS, (4, 1)))
    small, large = floats(-20, 1, 1, 1)[:, None], floats(-20, 40000, 40000, 1)[:, None]
    found = scan({"x": small}, {"x": large})
    assert _sums(found) == [80001]
    assert measured == [0]
    assert found.by_tensor["h"].min == pytest.approx(-1e5)


def test_where_nothing_is_told_of_a_factor_it_is_looked_at(measured: list[int], tmp_path: Path) -> None:
    """What a LeakyRelu writes follows from what it reads, and has no probe."""
    nodes = [node("LeakyRelu", "x", "h"), node("MatMul", "h w", "y")]
    scan = _scan(tmp_path, nodes, {"x": [1, 2]}, "y", w=SIGNS)
    assert np.isnan(_sums(scan({"x": floats(1, 2)[None]}))).all()
    assert measured == []
    assert _sums(scan({"x": floats(40000, 40000)[None]})) == [80000]
    assert measured == [0]


@pytest.mark.parametrize(("x", "last"), [(0.6, 40000), (1.45, 50000)])
def test_what_is_rounded_to_the_least_number_hides_no_sum(x: float, last: float, tmp_path: Path) -> None:
    """It becomes 1.4e-45, of 0.6 and of 1.45, and is multiplied to be `last`."""
    least = 2.0**-149
    factors = {"a": floats(least), "b": floats(2.0**60), "c": floats(2.0**60), "d": floats(last * 2.0**29)}
    names = ["h", *factors]
    nodes = [node("Elu", "x", "h"), node("MatMul", "hd w", "y")]
    for i, factor in enumerate(factors):
        written = f"h{factor}"
        nodes.insert(-1, node("Mul", f"{'h' if not i else 'h' + names[i]} {factor}", written))
    scan = _scan(tmp_path, nodes, {"x": [1, 2]}, "y", w=SIGNS, **factors)
    assert _sums(scan({"x": np.float32([[x, x]])})) == [2 * last]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ModelError("told")])
def test_what_is_raised_in_the_midst_of_a_run_ends_it(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is raised in place of what comes of that."""
    calls: list[None] = []

    def fail(*_: Any) -> None:
        calls.append(None)
        raise error

    monkeypatch.setattr(ProductSessions, "measure", fail)
    nodes = [node("MatMul", "x w", "y"), node("MatMul", "x w", "z")]
    scan = _scan(tmp_path, nodes, {"x": [1, 2]}, "y z", w=SIGNS)
    with pytest.raises(ModelError if isinstance(error, MemoryError) else type(error)) as raised:
        scan({"x": floats(40000, 40000)[None]})
    assert "terminate" not in str(raised.value)
    assert len(calls) == 1


def test_a_signal_that_comes_while_native_code_runs_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes it as a function begins that native code calls, and drops what the handler raises."""
    side = 1500
    nodes = [node("MatMul", "x x", "slow"), node("MatMul", "v w", "y")]
    scan = _scan(tmp_path, nodes, {"x": [side, side], "v": [1, 2]}, "slow y", w=SIGNS)
    feeds = {"x": np.ones((side, side), np.float32), "v": floats(40000, 40000)[None]}
    run = observers.run_session

    def running(*given: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return run(*given)

    monkeypatch.setattr(observers, "run_session", running)
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("told")))
    try:
        with pytest.raises(TimeoutError, match="told"):
            scan(feeds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_no_longer_runs_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the model's session nor those of products wait for the garbage collector."""
    opened: list[Any] = []
    for module in (observers, product_sessions):
        monkeypatch.setattr(module, "open_session", _remember(module.open_session, opened))
    scan = _scan(tmp_path, [node("MatMul", "x w", "y")], {"x": [1, 2]}, "y", w=SIGNS)
    gc.disable()
    try:
        assert _sums(scan({"x": floats(40000, 40000)[None]})) == [80000]
        assert [session() for session in opened] == [None, None]
    finally:
        gc.enable()


def _remember(open_session: Any, opened: list[Any]) -> Any:
    def opening(*given: Any, **options: Any) -> Any:
        session = open_session(*given, **options)
        opened.append(weakref.ref(session))
        return session

    return opening


@pytest.mark.parametrize(
    ("x", "w", "c"),
    [
        ((-70000, 40000), (1, -1), (0, 0)),
        ((40000, 40000), (65505, -65505), (0, 0)),
        ((40000, 40000), (1, -1), (-65505, 65505)),
    ],
)
def test_what_fp16_cannot_hold_on_the_outside_costs_nothing(
    x: Any, w: Any, c: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProductSessions, "measure", lambda *_: pytest.fail("measured"))
    nodes = [node("Gemm", "x w c", "y")]
    weights = np.float32([w, w]).T
    scan = _scan(tmp_path, nodes, {"x": [1, 2]}, "y", w=weights, c=np.float32(c))
    assert np.isnan(_sums(scan({"x": np.float32([x])}))).all()


def test_weights_that_are_fed_do_not_have_others_measured(measured: list[int], tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "y"), node("MatMul", "x v", "z"), node("Mul", "y k", "s")]
    inputs = {"x": [1, 2], "w": [2, 1], "k": [1]}
    scan = _scan(tmp_path, nodes, inputs, "y z s", w=SIGNS, v=2 * SIGNS, k=floats(1))
    small, large = floats(1, 2)[None], floats(40000, 40000)[None]
    scan({"x": small, "k": floats(2)}, {"x": small, "w": 3 * SIGNS})
    assert measured == []
    sums = _sums(scan({"x": large / 4, "w": 9 * SIGNS}, {"x": large / 4}, {"x": large / 8, "k": floats(2)}))
    assert sums[0] == 180000
    assert np.isnan(sums[1])
    assert measured == [0]


@pytest.mark.parametrize(
    ("x", "w", "c"),
    [
        ((0, 2), (2, 1), 1e4),
        ((2, 0), (0, 1), 1e4),
        ((2, 2), (2, 0), 1e4),
        ((0, 0), (0, 0), 1e4),
        ((0, 2), (2, 1), 6e4),
    ],
)
def test_of_no_elements_there_is_no_sum(x: Any, w: Any, c: float, tmp_path: Path) -> None:
    """Whether a probe tells of the factor or not."""
    nodes = [
        node("LeakyRelu", "x", "n"),
        node("Gemm", "n w c", "y", beta=2.5),
        node("Gemm", "x w c", "z"),
        node("MatMul", "n v", "p"),
    ]
    inputs = {"x": ["m", "k"], "v": ["k", "l"]}
    scan = _scan(tmp_path, nodes, inputs, "y z p", w=np.ones(w, np.float32), c=floats(c))
    feeds = {"x": np.ones(x, np.float32), "v": np.ones(w, np.float32)}
    assert np.isnan(_sums(scan(feeds))).all()


@pytest.mark.parametrize("rank", [64, 65, 70])
def test_a_tensor_of_many_dimensions_is_looked_at_or_refused(rank: int, tmp_path: Path) -> None:
    nodes = [node("Reshape", "x shape", "r"), node("MatMul", "r w", "y"), node("Reshape", "y one", "z")]
    shape = np.int64([*[1] * (rank - 1), 2])
    scan = _scan(tmp_path, nodes, {"x": [2]}, "z", w=SIGNS, shape=shape, one=np.int64([1]))
    if rank <= 64:
        assert _sums(scan({"x": floats(40000, 40000)})) == [80000]
        return
    with pytest.raises(ModelError, match=f"Tensor r has {rank} dimensions in batch batch_0"):
        scan({"x": floats(40000, 40000)})


def _watch(folder: Path, nodes: list[Any], inputs: dict[str, Any], **constants: Any) -> ProductWatch:
    graph = save(make_model(nodes, inputs, "y", constants), folder)
    products = find_products(graph)
    return ProductWatch(
        graph,
        products,
        lambda name: float(np.abs(constants[name]).max()),
        lambda row, _: find_channel_norm(graph, products[row]),
        Midst(),
        select_all,
    )


@pytest.mark.parametrize(
    ("made", "is_watched"),
    [
        (node("MatMul", "x w", "y"), True),
        (node("MatMul", "w x", "y"), True),
        (node("MatMul", "x x", "y"), True),
        (node("MatMul", "w w", "y"), False),
        (node("Gemm", "x w w", "y"), True),
        (node("Gemm", "x w x", "y"), False),
        (node("Einsum", "x w", "y", equation="ij,jk->ik"), False),
        *(
            (node("Einsum", "x x", "y", equation=equation), is_watched)
            for equation, is_watched in (
                ("ij, jk -> ik", True),
                ("ij,kj->ki", True),
                ("ij,ij->i", True),
                ("ij,jk", False),
                ("ij,ij->", False),
                ("ij,jk->i", False),
                ("ij,jk->ijk", False),
                ("ii,ij->j", False),
                ("...j,jk->...k", False),
            )
        ),
        (node("Einsum", "x x x", "y", equation="ij,jk,kl->il"), False),
    ],
)
def test_which_products_are_watched(made: Any, is_watched: bool, tmp_path: Path) -> None:
    """Those of what the data decide, and which are told by one row or two."""
    found = _watch(tmp_path, [made], {"x": [2, 2]}, w=np.ones((2, 2), np.float32)).watches
    assert bool(found) is is_watched


@pytest.mark.parametrize(
    ("made", "is_watched"),
    [
        (node("Conv", "x w", "y"), True),
        (node("Conv", "x v", "y"), True),
        (node("Conv", "c v", "y"), False),
        (node("Conv", "x w b", "y"), False),
        (node("ConvTranspose", "x w", "y"), True),
        (node("ConvTranspose", "x v", "y"), False),
    ],
)
def test_which_convolutions_are_watched(made: Any, is_watched: bool, tmp_path: Path) -> None:
    """Of a ConvTranspose's weights, groups and channels are not told apart by an axis."""
    shapes = {"x": [1, 2, 4, 4], "v": [2, 2, 1, 1], "b": [2]}
    constants = {"w": np.ones((2, 2, 1, 1), np.float32), "c": np.ones((1, 2, 4, 4), np.float32)}
    assert bool(_watch(tmp_path, [made], shapes, **constants).watches) is is_watched


@pytest.mark.parametrize(("x", "expected"), [(60, np.nan), (130, 65_540.0), (127, np.nan)])
@pytest.mark.parametrize("is_quantized", [True, False])
def test_a_bias_that_is_made_of_constants_is_known(
    is_quantized: bool, x: float, expected: float, measured: list[int], tmp_path: Path
) -> None:
    """As that of a quantized model, and one in FP16 that is cast: 504 x, and 20 more. Nothing near the limit is run again."""
    if is_quantized:
        made = [node("DequantizeLinear", "w s", "v"), node("DequantizeLinear", "b t", "c")]
        held = {"w": np.int8([[[[126]], [[-126]]]]), "s": np.float32(2), "b": np.int32([-2]), "t": floats(10)}
    else:
        made = [node("Cast", f"{one}", two, to=1) for one, two in ("wv", "bc")]
        held = {"w": np.float16([[[[252]], [[-252]]]]), "b": np.float16([-20])}
    nodes = [*made, node("Conv", "x v c", "y")]
    scan = _scan(tmp_path, nodes, {"x": [1, 2, 1, 1]}, "y", **held)
    sums = _sums(scan({"x": np.full((1, 2, 1, 1), x, np.float32)}))
    assert sums == [pytest.approx(expected, nan_ok=True)]
    assert measured == ([] if np.isnan(expected) else [0])


def test_a_bias_that_the_data_feed_is_not_known(tmp_path: Path) -> None:
    shapes = {"x": [1, 1, 1, 1], "b": [1]}
    nodes = [node("Abs", "b", "c"), node("Conv", "x w c", "y")]
    constants = {"w": np.ones((1, 1, 1, 1), np.float32)}
    assert not _watch(tmp_path, nodes, shapes, **constants).watches
    assert not _watch(
        tmp_path, nodes, shapes, **constants, b=floats(1)
    ).watches  # a default, which a batch may replace
    del shapes["b"]
    assert _watch(tmp_path, nodes, shapes, **constants, b=floats(1)).watches


def test_no_shape_is_inferred_for_what_is_watched(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that a model computes tell no number of terms, but the run does."""
    monkeypatch.setattr(Accumulation, "_infer_shapes", lambda *_: pytest.fail("inferred"))
    nodes = [node("DequantizeLinear", "q s", "w"), node("Conv", "x w", "y")]
    constants = {"q": np.int8([1, -1]).reshape(1, 2, 1, 1), "s": np.float32(1)}
    scan = _scan(tmp_path, nodes, {"x": [1, 2, 1, 1]}, "y", **constants)
    x = np.full((1, 2, 1, 1), 40000, np.float32)
    assert np.isnan(_sums(scan({"x": x / 2}))).all()
    assert measured == []
    assert _sums(scan({"x": x / 2}, {"x": x})) == [80000]
    assert measured == [0]


def test_copies_of_constants_are_taken_for_them(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exporters share weights and biases that are equal: with an Identity, which the first batch could not do without."""
    opened: list[Any] = []
    monkeypatch.setattr(observers, "open_session", _remember(observers.open_session, opened))
    nodes = [
        node("Identity", "w", "v"),
        node("Identity", "c", "d"),
        node("Identity", "d", "e"),
        node("Gemm", "x v e", "y"),
    ]
    scan = _scan(tmp_path, nodes, {"x": [1, 2]}, "y", w=SIGNS, c=floats(8))
    assert _sums(scan({"x": floats(40000, 40000)[None]})) == [80008]
    assert measured == [0]
    assert len(opened) == 1


@pytest.mark.parametrize(("op_type", "w"), [("Conv", (0, 1, 3, 3)), ("ConvTranspose", (1, 0, 3, 3))])
def test_a_convolution_of_no_channels_has_no_sum(op_type: str, w: Any, tmp_path: Path) -> None:
    nodes = [node(op_type, "x w", "y"), node("Relu", "x", "z")]
    scan = _scan(tmp_path, nodes, {"x": [1, 1, 4, 4]}, "y z", w=np.ones(w, np.float32))
    assert np.isnan(_sums(scan({"x": np.ones((1, 1, 4, 4), np.float32)}))).all()


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_convolution_is_measured_with_its_weights_where_they_lie(
    op_type: str, measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not read for it; those that a batch feeds are the ones."""
    read: list[str] = []
    read_constant = Graph.read_constant
    monkeypatch.setattr(
        Graph, "read_constant", lambda graph, name: read.append(name) or read_constant(graph, name)
    )
    weights = (
        np.float32([1, -1]).reshape(2, 1, 1, 1) if op_type == "ConvTranspose" else SIGNS[None, :, :, None]
    )
    scan = _scan(
        tmp_path, [node(op_type, "x w", "y")], {"x": [1, 2, 1, 1], "w": [*weights.shape]}, "y", w=weights
    )
    x = np.full((1, 2, 1, 1), 20000, np.float32)
    assert _sums(scan({"x": 2 * x}, {"x": 2 * x}, {"x": x, "w": 3 * weights})) == [120000]
    assert measured == [0] * 3
    assert "w" not in read


def test_weights_that_cannot_be_bounded_are_asked_for_no_more_than_twice(tmp_path: Path) -> None:
    watch = _watch(tmp_path, [node("MatMul", "x w", "y")], {"x": [1, 2]}, w=floats(np.nan, 1)[:, None])
    for _ in range(2):
        watch._look(0, None)
    assert np.isnan(watch._allowed[0, :2]).all()
    assert watch._allowed[0, 2] == 0


def test_one_question_is_answered_for_all_products_that_wait(tmp_path: Path) -> None:
    """Each would be a call into Python of its own in the first batch."""
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("MatMul", "x x", "y")]
    weights = {"w": floats(2, -4)[:, None], "v": floats(1e5, 1)[:, None]}
    watch = _watch(tmp_path, nodes, {"x": [2, 2]}, **weights)
    watch._look(0, None)
    room = 65504.0
    expected = [(room / (2 * 4), 0, 1), (np.inf, np.inf, 0), (room, room, 0)]
    np.testing.assert_allclose(watch._allowed, expected, rtol=1e-12)


def test_large_constants_are_read_in_pieces(
    measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_watch, "_LARGE_BYTES", 1)
    monkeypatch.setattr(ProductSessions, "measure", lambda *_: pytest.fail("in one piece"))
    w = np.repeat(np.resize(SIGNS, (64, 1)), 64, axis=1)
    scan = _scan(tmp_path, [node("MatMul", "x w", "y")], {"x": [1, 64]}, "y", w=w)
    assert _sums(scan({"x": np.full((1, 64), 2000, np.float32)})) == [128000]
    assert measured == [0]

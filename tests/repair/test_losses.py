"""What each node loses by itself in FP16, however wrong an artifact is before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto, helper

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Batch, RangeTable
from overflow_fixer.repair import chunks
from overflow_fixer.repair.losses import Loss, _Probe, measure_losses

X = np.linspace(0.1, 1, 32, dtype=np.float32).reshape(4, 8)


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], outputs: str, **constants: np.ndarray
) -> tuple[Graph, RangeTable]:
    return scan(make_model(nodes, {"x": [4, 8]}, outputs, constants), folder, {"x": X})


def _measure(graph: Graph, ranges: RangeTable, *half: str, **more: tuple[str, ...]) -> dict[str, Loss]:
    """Losses with the nodes `half` in FP16; with none named, all of them."""
    labels = half or tuple(at.label for at in graph.nodes)
    return measure_losses(graph, ranges, labels, Batch("b", {"x": X}), **more)


def _snr_db(right: np.ndarray, found: np.ndarray) -> float:
    right, found = right.astype(np.float64), found.astype(np.float64)
    return 10 * math.log10(np.square(right).sum() / np.square(right - found).sum())


CANCELLING = [
    node("Mul", "x third", "a"),
    node("Add", "a c", "b"),
    node("Sub", "b c", "d"),
    node("Tanh", "d", "y"),
]


@pytest.mark.parametrize(("value", "worst_db"), [(1e-8, math.inf), (1e6, -math.inf)])
def test_what_is_made_of_constants_loses_no_digits_but_infinities(
    value: float, worst_db: float, tmp_path: Path
) -> None:
    """A bias that is too small to be seen, as exporters share it."""
    nodes = [node("Identity", "c", "bias"), node("Add", "x bias", "y")]
    graph, ranges = _scan(tmp_path, nodes, "y", c=scalar(value))
    assert _measure(graph, ranges)["Identity_bias"].worst_db == worst_db


def test_each_node_against_numpy(tmp_path: Path) -> None:
    third, c = np.float32(1 / 3), np.float32(4096)
    graph, ranges = _scan(tmp_path, CANCELLING, "y", third=scalar(third), c=scalar(c))
    losses = _measure(graph, ranges)
    a = X * third
    b = a + c
    half = lambda v: np.asarray(v).astype(np.float16).astype(np.float32)  # noqa: E731
    assert losses["Mul_a"].read_db == pytest.approx(_snr_db(a, half(X) * half(third)), abs=1e-3)
    assert losses["Mul_a"].written_db == pytest.approx(_snr_db(a, half(a)), abs=1e-3)
    assert losses["Add_b"].read_db == pytest.approx(_snr_db(b, half(a) + half(c)), abs=1e-3)
    assert losses["Add_b"].written_db == pytest.approx(_snr_db(b, half(b)), abs=1e-3)
    assert losses["Sub_d"].read_db == pytest.approx(_snr_db(b - c, half(b) - half(c)), abs=1e-3)
    assert losses["Sub_d"].worst_db < 10 < 60 < losses["Sub_d"].written_db
    assert min(losses[name].worst_db for name in ("Mul_a", "Add_b", "Tanh_y")) > 60


def test_a_fault_does_not_hide_those_behind_it(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x big", "a"),
        node("Mul", "a small", "b"),
        node("Mul", "b big", "d"),
        node("Mul", "d small", "y"),
    ]
    graph, ranges = _scan(tmp_path, nodes, "y", big=scalar(1e6), small=scalar(1e-6))
    losses = _measure(graph, ranges)
    assert [losses[f"Mul_{name}"].written_db for name in "ad"] == [-math.inf] * 2
    assert [losses[f"Mul_{name}"].read_db for name in "by"] == [-math.inf] * 2
    assert losses["Mul_b"].written_db > 60


@pytest.mark.parametrize(
    ("half", "read", "written"),
    [
        (("Neg_a", "Neg_b", "Neg_y"), True, True),
        (("Neg_a",), True, False),
        (("Neg_b",), True, True),
        (("Neg_y",), False, False),
    ],
)
def test_a_tensor_is_rounded_where_its_writer_or_its_reader_is_in_fp16(
    half: tuple[str, ...], read: bool, written: bool, tmp_path: Path
) -> None:
    nodes = [node("Neg", "x", "a"), node("Neg", "a", "b"), node("Neg", "b", "y")]
    graph, ranges = _scan(tmp_path, nodes, "y")
    loss = _measure(graph, ranges, *half)["Neg_b"]
    assert (loss.read_db < math.inf, loss.written_db < math.inf) == (read, written)


def test_what_vanishes_when_written_and_zeros(tmp_path: Path) -> None:
    nodes = [node("Mul", "x tiny", "a"), node("Div", "a a", "y"), node("Sub", "x x", "z")]
    graph, ranges = _scan(tmp_path, nodes, "y z", tiny=scalar(1e-9))
    losses = _measure(graph, ranges)
    assert losses["Mul_a"].written_db == pytest.approx(0)
    assert losses["Div_y"].read_db == -math.inf
    assert losses["Sub_z"] == Loss(math.inf, math.inf)


def test_nan_and_infinity_of_fp32_itself_are_no_loss(tmp_path: Path) -> None:
    nodes = [node("Sub", "x one", "a"), node("Log", "a", "b"), node("Neg", "b", "y")]
    graph, ranges = _scan(tmp_path, nodes, "y", one=scalar(0.5))
    losses = _measure(graph, ranges)
    assert min(loss.worst_db for loss in losses.values()) > 40


def test_tensors_that_differ_by_design_are_not_rounded(tmp_path: Path) -> None:
    nodes = [node("Expand", "k shape", "m"), node("Add", "x m", "s"), node("Softmax", "s", "y")]
    mask = np.asarray([0] * 7 + [-1e9], np.float32)
    graph, ranges = _scan(tmp_path, nodes, "y", k=mask, shape=ints(4, 8))
    assert _measure(graph, ranges)["Add_s"].worst_db == -math.inf
    losses = _measure(graph, ranges, exact=("k", "m", "s"))
    assert losses["Expand_m"] == Loss(math.inf, math.inf)
    assert losses["Softmax_y"].read_db == math.inf
    assert losses["Add_s"].worst_db > 60


def test_every_node_that_computes_is_measured_and_others_are_not(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["a"], ["inner"])], "body", [], [info])
    nodes = [
        node("Constant", "", "yes", value=onnx.numpy_helper.from_array(np.asarray(True))),
        node("Constant", "", "two", value_float=2.0),
        node("Resize", "x - scales", "a", mode="nearest"),
        node("If", "yes", "b", then_branch=body, else_branch=body),
        node("SequenceConstruct", "a b", "s"),
        node("SequenceAt", "s zero", "d"),
        node("TopK", "d k", "e i"),
        node("Cast", "e", "wide", to=TensorProto.DOUBLE),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Mul", "e two", "g", name=""),
        node("Split", "g", "h1 h2", axis=0),
        node("Add", "h1 h2", "p"),
        node("Mul", "f two", "y"),
    ]
    model = make_model(
        nodes,
        {"x": [4, 8]},
        "y p wide",
        {"scales": floats(1, 1.5), "zero": np.asarray(0, np.int64), "k": ints(2)},
        output_types={"wide": TensorProto.DOUBLE},
    )
    graph, ranges = scan(model, tmp_path, {"x": X})
    losses = _measure(graph, ranges)
    expected = {"Resize_a", "TopK_e", "Cast_f", "node_of_g", "Split_h1", "Add_p", "Mul_y"}
    assert set(losses) == expected
    assert losses["Resize_a"].worst_db > 60, "its scales are not rounded"


def test_chunks_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, ranges = _scan(tmp_path, CANCELLING, "y", third=scalar(1 / 3), c=scalar(4096))
    whole = _measure(graph, ranges)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)
    assert _measure(graph, ranges) == whole


def test_names_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    nodes = [
        node("Neg", "x", "x__loss_half"),
        node("Neg", "x__loss_half", "x__loss_view"),
        node("Neg", "x__loss_view", "x__loss_half__loss_twin"),
    ]
    graph, ranges = _scan(tmp_path, nodes, "x__loss_half__loss_twin")
    assert len(_measure(graph, ranges)) == 3


def test_the_graph_is_not_touched(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, CANCELLING, "y", third=scalar(1 / 3), c=scalar(4096))
    before = graph.model.SerializeToString(deterministic=True)
    _measure(graph, ranges)
    assert graph.model.SerializeToString(deterministic=True) == before


UP_TO_70000 = [
    node("ReduceSum", "x", "total", keepdims=0),
    node("Mul", "total k", "end"),
    node("Range", "zero end step", "r"),
    node("ReduceMax", "r", "top", keepdims=0),
]
"""A Range that ends where FP16 has an infinity."""


def test_a_node_that_cannot_be_run_on_rounded_values_loses_everything(tmp_path: Path) -> None:
    nodes = [
        *UP_TO_70000,
        node("Add", "x top", "y"),
    ]
    graph, ranges = _scan(
        tmp_path, nodes, "y", k=scalar(70000 / X.sum(dtype=np.float64)), zero=scalar(0), step=scalar(7000)
    )
    losses = _measure(graph, ranges)
    assert losses["Range_r"].read_db == -math.inf
    assert losses["ReduceSum_total"].worst_db > 60
    assert losses["Add_y"].read_db > 60


def test_chunks_stay_bounded_behind_a_node_that_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first chunk, up to Add_t0, does not run as a whole; how large it is in truth is learnt from its halves."""
    nodes = [
        *UP_TO_70000,
        node("Add", "x top", "t0"),
        *(node("Neg", f"t{i}", f"t{i + 1}") for i in range(20)),
    ]
    graph, ranges = _scan(
        tmp_path, nodes, "t20", k=scalar(70000 / X.sum(dtype=np.float64)), zero=scalar(0), step=scalar(35000)
    )
    bound = 1550
    monkeypatch.setattr(chunks, "CHUNK_BYTES", bound)
    run, sizes = _Probe.run, list[int]()

    def run_and_note(*arguments: Any) -> Any:
        found = run(*arguments)
        sizes.append(found[1])
        return found

    monkeypatch.setattr(_Probe, "run", run_and_note)
    assert _measure(graph, ranges)["Range_r"].read_db == -math.inf
    assert sum(sizes) > 20 * 2 * X.nbytes
    assert max(sizes) <= bound


def test_parameters_are_not_rounded(tmp_path: Path) -> None:
    """8 x 2.9999 columns are 23; 2.9999 is 3 in FP16."""
    nodes = [node("Resize", "x - scales", "y", mode="nearest")]
    graph, ranges = _scan(tmp_path, nodes, "y", scales=floats(1, 2.9999))
    assert _measure(graph, ranges)["Resize_y"].worst_db > 60


def test_what_onehot_places_by_is_not_rounded(tmp_path: Path) -> None:
    """Of 2049 there is no FP16 number, and in a row of 3000 the one would stand elsewhere."""
    nodes = [node("ReduceSum", "x", "n", keepdims=0), node("OneHot", "places depth values", "h")]
    nodes.append(node("Add", "h n", "y"))
    constants = {"places": floats(2049, 5), "depth": floats(3001), "values": floats(0, 1)}
    graph, ranges = _scan(tmp_path, nodes, "y", **constants)
    assert _measure(graph, ranges)["OneHot_h"] == Loss(math.inf, math.inf)


def test_what_fp16_wrote_is_rounded_though_it_says_what_to_do(tmp_path: Path) -> None:
    """The artifact stores it so; 2049 becomes 2048 whatever type the reader is in."""
    nodes = [node("Mul", "x zero", "z"), node("ReduceSum", "z", "s", keepdims=0), node("Add", "s far", "n")]
    nodes.append(node("OneHot", "n depth values", "y"))
    constants = {"zero": floats(0), "far": floats(2049), "depth": floats(3001), "values": floats(0, 1)}
    graph, ranges = _scan(tmp_path, nodes, "y", **constants)
    assert _measure(graph, ranges)["OneHot_y"].read_db == pytest.approx(-10 * math.log10(2))


def test_of_a_node_with_several_outputs_the_worst_counts(tmp_path: Path) -> None:
    nodes = [node("Mul", "x factors", "m"), node("Split", "m sizes", "p q", axis=1)]
    factors = floats(1e6, 1e6, 1e6, 1e6, 1, 1, 1, 1)
    graph, ranges = _scan(tmp_path, nodes, "p q", factors=factors, sizes=ints(4, 4))
    assert _measure(graph, ranges)["Split_p"] == Loss(-math.inf, -math.inf)


def test_where_there_is_no_signal_none_is_lost(tmp_path: Path) -> None:
    nodes = [node("Identity", "x", "p"), node("Sub", "p x", "y")]
    graph, ranges = _scan(tmp_path, nodes, "y")
    assert _measure(graph, ranges, "Identity_p")["Sub_y"] == Loss(math.inf, math.inf)


def test_what_draws_or_drops_is_not_measured(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Dropout", "x", "d"), node("Neg", "d", "y")], "y")
    assert _measure(graph, ranges).keys() == {"Neg_y"}


def test_a_small_sigmoid_loses_what_rounding_takes_and_not_a_kernels_noise(tmp_path: Path) -> None:
    """Rounded logits of -14.4 to -13.5 err by 0.2 %; ONNX Runtime's own Sigmoid of them by 5 %."""
    nodes = [node("Sub", "x offset", "a"), node("Sigmoid", "a", "y")]
    graph, ranges = _scan(tmp_path, nodes, "y", offset=scalar(14.5))
    assert 45 < _measure(graph, ranges)["Sigmoid_y"].read_db < 65

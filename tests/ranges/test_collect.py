"""The whole scan: ranges equal those of a run with every tensor marked, on models of every kind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scan_cases import (
    MemoryBatches,
    assert_same,
    reckon,
    run_marked,
    save_model,
    value_info,
)
from ways_to_observe import assert_same_inner, scan_each_way

from overflow_fixer.errors import CalibrationError, ModelError
from overflow_fixer.graph import model as graph_module
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import collect, collect_ranges, observers
from overflow_fixer.ranges.constants import summarize_constants
from overflow_fixer.ranges.observers import Observe
from overflow_fixer.ranges.small_values import SmallValues
from overflow_fixer.ranges.store import load_header
from overflow_fixer.records import Array, Batch, RangeTable
from overflow_fixer.sessions.settings import has_native_probes


def scan_both_small_values(graph: Graph, feeds: list[dict[str, Any]]) -> RangeTable:
    """Scan in each way, small values of some tensors and of all."""
    wanted: tuple[SmallValues, ...] = ("needed", "all")
    for small_values in wanted:
        table = scan_each_way(graph, MemoryBatches(feeds), small_values=small_values)
    return table


def assert_right(graph: Graph, feeds: list[dict[str, Any]]) -> RangeTable:
    """All ways, and against the tensors of the file itself, reckoned number by number."""
    table = scan_both_small_values(graph, feeds)
    computed = [found.tensor for found in table.ranges if found.tensor in graph.producers]
    runs = [run_marked(graph.path, computed, batch) for batch in feeds]
    values = {name: [run[name] for run in runs] for name in computed}
    for spec in graph.inputs:
        values[spec.name] = [batch[spec.name] for batch in feeds]
    for name in graph.initializers:
        values[name] = [graph.read_constant(name)] * len(feeds)
    main = [found for found in table.ranges if found.tensor in graph.tensors]  # bodies: test_bodies
    assert_same(main, [reckon(found.tensor, values[found.tensor]) for found in main])
    by_batch = [[reckon(r.tensor, [a]).max_abs for a in values[r.tensor]] for r in main]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(table.batch_max_abs[: len(main)], np.array(by_batch, np.float32))
    return table


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def test_a_network_with_every_trouble(tmp_path: Path) -> None:
    """Overflow in one batch alone, NaN and infinities made by the network, constants out of range."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Exp", ["a"], ["e"]),
        helper.make_node("Constant", [], ["mask"], value_floats=[0.0, -3.4028235e38, 0.0]),
        helper.make_node("Add", ["e", "mask"], ["m"]),
        helper.make_node("Log", ["a"], ["l"]),
        helper.make_node("Div", ["a", "zero"], ["d"]),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Cast", ["s"], ["sf"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.abs(normal(4, 3)), "w"),
        numpy_helper.from_array(np.float32([0, -0.0, 1]), "zero"),
    ]
    outputs = [value_info(name) for name in ("m", "l", "y", "sf")]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=["N", 4])], outputs, weights)
    batches = [normal(5, 4), np.abs(normal(2, 4, scale=90)), normal(7, 4, seed=1)]
    table = assert_right(graph, [{"x": x} for x in batches])
    ranges = table.by_tensor
    assert ranges["e"].over_fp16_count > 0
    assert table.worst_batch_of(ranges["e"]) == "batch1"
    assert ranges["l"].nan_count > 0
    assert ranges["d"].inf_count > 0
    assert ranges["mask"].element_count == 9
    assert ranges["mask"].over_fp16_count == 3
    assert ranges["mask"].worst_batch == 0
    assert table.calibration == "memory"
    assert table.model_sha256 == graph.sha256


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["where"]),
        helper.make_node("Cast", ["where"], ["places"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
    ]
    outputs = [value_info("places"), value_info("total")]
    weights = [numpy_helper.from_array(np.zeros((0, 3), np.float32), "none")]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=["N"])], outputs, weights)
    table = assert_right(graph, [{"x": -np.ones(3, np.float32)}, {"x": np.float32([-1, 2])}])
    assert table.by_tensor["places"].element_count == 1
    assert table.by_tensor["places"].worst_batch == 1
    assert np.isnan(table.batch_max_abs[[r.tensor for r in table.ranges].index("places"), 0])
    assert table.by_tensor["none"].worst_batch == -1
    assert table.by_tensor["total"].element_count == 2


def test_double_is_reduced_in_double(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    inputs = [value_info("x", TensorProto.DOUBLE, ["N"])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y", TensorProto.DOUBLE)])
    table = assert_right(
        graph, [{"x": np.array([1e-200, 1 + 2**-40, 65519.999999999])}, {"x": np.array([1e150])}]
    )
    assert table.by_tensor["x"].over_fp16_count == 1
    assert table.batch_max_abs[1].tolist() == [np.float32(65519.999999999**2), np.inf]


@pytest.mark.filterwarnings("error")
def test_a_double_over_the_range_of_float32_beside_what_is_derived_warns_of_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Mul", ["e", "three"], ["z"]),
        helper.make_node("Tanh", ["z"], ["t"]),
        helper.make_node("Cast", ["e"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["d", "large"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(1e230), "large"),
        numpy_helper.from_array(np.float32(3), "three"),
    ]
    outputs = [value_info("y", TensorProto.DOUBLE), value_info("t")]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x")], outputs, weights)
    table = assert_right(graph, [{"x": np.float32([0, -1])}, {"x": np.float32([-2])}])
    assert (table.by_tensor["y"].max_abs, table.by_tensor["z"].max_abs) == (1e230, 3)


def fp16_nodes() -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["h", "w"], ["a"]),
        helper.make_node("Cast", ["a"], ["a32"], to=TensorProto.FLOAT),
        helper.make_node("Softmax", ["a32"], ["p"]),
        helper.make_node("Cast", ["p"], ["p16"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["p16"], ["again"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["p16", "a"], ["m"]),
        helper.make_node("Transpose", ["m"], ["t"], perm=[1, 0]),
        helper.make_node("Exp", ["t"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.DOUBLE),
    ]


@pytest.mark.parametrize("cast_name", ["", "InsertedPrecisionFreeCast_a"])
def test_fp16_values_are_those_that_a_marked_run_stores(tmp_path: Path, cast_name: str) -> None:
    """ONNX Runtime keeps FP16 values in float between nodes, unless they are outputs."""
    nodes = fp16_nodes()
    nodes[1].name = cast_name
    weights = [numpy_helper.from_array(normal(6, 5).astype(np.float16), "w")]
    outputs = [value_info("y", TensorProto.DOUBLE), value_info("again")]
    inputs = [value_info("h", TensorProto.FLOAT16, ["N", 6])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, weights)
    feeds = [{"h": normal(4, 6, scale=scale).astype(np.float16)} for scale in (1, 30)]
    table = assert_right(graph, feeds)
    a = table.by_tensor["a"].max_abs
    assert float(np.float16(a)) == a == table.by_tensor["a32"].max_abs
    assert table.by_tensor["e"].inf_count > 0


def test_inputs_with_fractions_are_told(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["whole", "later"], ["y"]),
        helper.make_node("Cast", ["ids"], ["z"], to=1),
    ]
    inputs = [
        value_info("whole", dims=[2]),
        value_info("later", dims=[2]),
        value_info("ids", TensorProto.INT64, [2]),
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y"), value_info("z")])
    whole, ids = np.float32([0, 255]), np.array([1, 2])
    feeds = [{"whole": whole, "later": later, "ids": ids} for later in (whole, np.float32([1.5, 3]), whole)]
    assert collect_ranges(graph, MemoryBatches(feeds[:1])).fractional == frozenset()
    assert collect_ranges(graph, MemoryBatches(feeds)).fractional == {"later"}


def test_fractions_are_those_of_what_was_fed_and_not_of_what_a_node_wrote_there(tmp_path: Path) -> None:
    """ONNX Runtime writes the running statistics of BatchNormalization in training where they lie, in a body too."""
    statistics = ["s", "b", "mean", "variance"]
    made = [helper.make_node("BatchNormalization", ["x", *statistics], ["t", "m", "v"], training_mode=1)]
    then_branch = helper.make_graph(made, "then", [], [value_info("t")])
    plain = [helper.make_node("Identity", ["x"], ["e"])]
    else_branch = helper.make_graph(plain, "else", [], [value_info("e")])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then_branch, else_branch=else_branch)]
    inputs = [value_info("c", TensorProto.BOOL, [1]), value_info("x", dims=[4, 2])]
    inputs += [value_info(name, dims=[2]) for name in statistics]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")])
    feeds = {"c": np.array([True]), "x": normal(4, 2), **{name: np.float32([1, 2]) for name in statistics}}
    assert collect_ranges(graph, MemoryBatches([feeds])).fractional == {"x"}


def test_bf16_tensors_and_inputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["brain"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = [value_info("x", dims=["N"]), value_info("brain", TensorProto.BFLOAT16, ["N"])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y"), value_info("z")])
    x = np.float32([1.0009765625, 3e38, -1e-39, np.nan])
    ranges = scan_both_small_values(graph, [{"x": x, "brain": x.astype(ml_dtypes.bfloat16)}]).by_tensor
    rounded = x.astype(ml_dtypes.bfloat16)
    assert_same(
        [ranges[name] for name in ("b", "brain", "y", "z")],
        [reckon(name, [rounded]) for name in ("b", "brain", "y", "z")],
    )


def test_sequences_and_optionals_are_passed_by(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["seq"], axis=0),
        helper.make_node("SequenceAt", ["seq", "one"], ["part"]),
        helper.make_node("Optional", ["part"], ["maybe"]),
        helper.make_node("OptionalGetElement", ["maybe"], ["got"]),
        helper.make_node("Mul", ["got", "got"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.array(1), "one")]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[3, 2])], [value_info("y")], weights, opset=18
    )
    table = assert_right(graph, [{"x": normal(3, 2, scale=400)}])
    assert [found.tensor for found in table.ranges] == ["x", "part", "got", "y"]
    assert set(table.not_observed) == {"seq", "maybe"}


def test_control_flow_nameless_nodes_and_other_domains(tmp_path: Path) -> None:
    then = helper.make_graph([helper.make_node("Exp", ["g"], ["t"])], "then", [], [value_info("t")])
    other = helper.make_graph([helper.make_node("Neg", ["g"], ["e"])], "else", [], [value_info("e")])
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft", name="twice"),
        helper.make_node("BiasGelu", ["g", "bias"], ["h"], domain="com.microsoft", name="twice"),
        helper.make_node("If", ["flag"], ["i"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["i", "h"], ["y"]),
    ]
    inputs = [value_info("x", dims=["N", 3]), value_info("flag", TensorProto.BOOL, [])]
    weights = [numpy_helper.from_array(normal(3), "bias")]
    graph = save_model(
        tmp_path / "m.onnx", nodes, inputs, [value_info("y")], weights, domains=["com.microsoft"]
    )
    feeds = [{"x": normal(2, 3, scale=90), "flag": np.array(flag)} for flag in (False, True)]
    table = assert_right(graph, feeds)
    assert [found.tensor for found in table.ranges[:6]] == ["x", "bias", "g", "h", "i", "y"]
    branches = {"node_of_i/then_branch/": "gt", "node_of_i/else_branch/": "ge"}
    inside = {prefix + name for prefix, names in branches.items() for name in names}
    assert {found.tensor for found in table.ranges[6:]} == inside
    assert table.by_tensor["i"].over_fp16_count > 0


def test_an_opset_9_model_with_overridden_defaults(tmp_path: Path) -> None:
    """An initializer may be an input's default; what is fed in its place is what counts."""
    weights = [numpy_helper.from_array(np.float32([2]), "w")]
    inputs = [value_info("x", dims=[1]), value_info("w", dims=[1])]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")], weights, opset=9, ir_version=4)
    one = np.float32([1])
    ranges = scan_both_small_values(graph, [{"x": one}, {"x": one, "w": np.float32([-7e4])}]).by_tensor
    assert_same([ranges["w"]], [reckon("w", [np.float32([2]), np.float32([-7e4])])])
    assert ranges["y"].min == -7e4


def test_no_shape_is_told_by_a_default_in_whose_place_another_value_is_fed(tmp_path: Path) -> None:
    """By the default the slice would have 2 x 4 elements."""
    ends = numpy_helper.from_array(np.array([2, 4]), "ends")
    inputs = [value_info("x", dims=[3, 5]), value_info("ends", TensorProto.INT64, dims=[2])]
    constant = helper.make_node("Constant", [], ["starts"], value_ints=[0, 0])
    nodes = [constant, helper.make_node("Slice", ["x", "starts", "ends"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")], [ends], ir_version=8)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    ranges = scan_both_small_values(graph, [{"x": x}, {"x": x, "ends": np.array([3, 1])}]).by_tensor
    assert_same([ranges["y"]], [reckon("y", [x[:2, :4], x[:3, :1]])])


@pytest.mark.parametrize("default", [None, "w"])
def test_copies_of_constants_are_looked_at_with_them(
    default: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in the run: exporters share equal weights by an Identity. One that may be fed is copied as it is fed."""
    probed: list[str] = []

    def adding(graph: Graph, tensors: Sequence[str], *others: Any) -> Any:
        probed.extend(tensors)
        return add_probes(graph, tensors, *others)

    add_probes = observers.add_probes
    monkeypatch.setattr(observers, "add_probes", adding)
    weights = {
        "w": np.float32([2, -3e-7, 7e4]),
        "bad": np.float32([np.nan, np.inf, 1]),
        "half": np.float16([6e-8, -1, 2]),
        "none": np.zeros(0, np.float32),
    }
    nodes = [
        helper.make_node("Identity", [read], [written])
        for read, written in (("w", "v"), ("v", "u"), ("bad", "b"), ("half", "h"), ("none", "n"), ("x", "i"))
    ]
    nodes += [
        helper.make_node("Mul", ["x", "u"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
        helper.make_node("Abs", ["h"], ["z"]),
        helper.make_node("Abs", ["i"], ["j"]),
        helper.make_node("Abs", ["n"], ["o"]),
    ]
    inputs = [value_info("x", dims=[3]), *([value_info(default, dims=[3])] if default else [])]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    outputs = [value_info(name) for name in "yjo"] + [value_info("z", TensorProto.FLOAT16)]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, held)
    feeds: list[dict[str, Any]] = [{"x": normal(3)}, {"x": normal(3, seed=1)}]
    if default is None:
        table = assert_right(graph, feeds)
    else:
        feeds[1][default] = np.float32([8e4, 0, 0])
        table = scan_both_small_values(graph, feeds)
        both = [weights["w"], feeds[1]["w"]]
        assert_same([table.by_tensor["w"]], [reckon("w", both)])
    assert [table.by_tensor[name].max_abs for name in "wvu"] == [8e4 if default else 7e4] * 3
    assert table.by_tensor["b"].nan_count == table.by_tensor["b"].inf_count == 2
    assert {"v", "u", "b", "h", "n"}.isdisjoint(probed)
    assert "m" in probed


@pytest.mark.parametrize("elem_type", [TensorProto.INT64, TensorProto.FLOAT])
def test_a_model_that_only_copies_constants(elem_type: int, tmp_path: Path) -> None:
    """A run has to give something, and numpy has no BF16."""
    held = helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1, 7e4])
    nodes = [helper.make_node("Identity", ["w"], ["v"])]
    inputs, outputs = [value_info("x", elem_type, [2])], [value_info("v", TensorProto.BFLOAT16)]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, outputs, [held])
    x = np.ones(2, helper.tensor_dtype_to_np_dtype(elem_type))
    table = scan_both_small_values(graph, [{"x": x}])
    assert table.by_tensor["v"].max_abs == table.by_tensor["w"].max_abs == 70144


def test_a_node_that_writes_into_its_inputs(tmp_path: Path) -> None:
    """BatchNormalization in training updates its running statistics in place."""
    outputs = ["y", "new_mean", "new_variance"]
    nodes = [helper.make_node("BatchNormalization", ["x", "s", "s", "mean", "s"], outputs, training_mode=1)]
    inputs = [value_info("x", dims=["N", 2]), value_info("mean", dims=[2])]
    weights = [numpy_helper.from_array(np.ones(2, np.float32), "s")]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info(n) for n in outputs], weights)
    feeds = [{"x": normal(4, 2, scale=1e6), "mean": np.zeros(2, np.float32)}] * 3
    assert assert_right(graph, feeds).by_tensor["mean"].max_abs == 0


def test_weights_in_external_data(tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(normal(64, 64, scale=1e4), name) for name in ("w", "v")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])]
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    plain = save_model(
        tmp_path / "plain.onnx", nodes, [value_info("x", dims=[2, 64])], [value_info("y")], weights
    )
    onnx.save(onnx.load(plain.path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = [{"x": normal(2, 64)}]
    graph = load_graph(path)
    before = graph.model.SerializeToString()
    assert_same(scan_both_small_values(graph, feeds).ranges, assert_right(plain, feeds).ranges)
    assert graph.model.SerializeToString() == before


def test_a_model_without_floats(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    inputs = [value_info("x", TensorProto.INT64, [2])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y", TensorProto.INT64)])
    table = scan_both_small_values(graph, [{"x": np.array([1, 2])}])
    assert table.ranges == ()
    assert table.batch_max_abs.shape == (0, 1)


def tiny(path: Path) -> Graph:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    weights = [numpy_helper.from_array(np.array([2, -1]), "shape")]
    return save_model(path, nodes, [value_info("x", dims=["N"])], [value_info("y")], weights)


def test_progress_is_told_at_the_start_and_after_each_batch(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    data = MemoryBatches([{"x": normal(4)}] * 3)
    collect_ranges(tiny(tmp_path / "m.onnx"), data, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("observe", ["reductions", "outputs"])
def test_a_batch_that_cannot_be_run_is_named(tmp_path: Path, observe: Any) -> None:
    data = MemoryBatches([{"x": normal(4)}, {"x": normal(3)}])
    with pytest.raises(ModelError, match="batch1"):
        collect_ranges(tiny(tmp_path / "m.onnx"), data, observe=observe)


def test_a_model_that_is_written_meanwhile_ends_the_scan(small_graph: Graph, tmp_path: Path) -> None:
    """Its weights may be read as it runs, and what was run with others is not kept."""

    def write(done: int, total: int) -> None:
        if done == 2:
            os.utime(small_graph.path, ns=(1, 1))

    batches = MemoryBatches([{"x": normal(3, 2)} for _ in range(4)])
    with pytest.raises(ModelError, match="changed while it was in use"):
        collect_ranges(small_graph, batches, progress=write, store=tmp_path / "ranges.h5")
    assert load_header(tmp_path / "ranges.h5").batches_done == 2


@pytest.mark.parametrize("count", [1, 3])
def test_data_that_changes_its_length_is_an_error(tmp_path: Path, count: int) -> None:
    data = MemoryBatches([{"x": normal(4)}] * 2)
    graph = tiny(tmp_path / "m.onnx")
    walk = MemoryBatches([{"x": normal(4)}] * count).__iter__
    data.__class__ = type("Changing", (MemoryBatches,), {"__iter__": lambda self: walk()})
    with pytest.raises(CalibrationError, match=r"memory gave .* Expected the 2"):
        collect_ranges(graph, data)


def test_data_without_a_batch_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"memory gave no batch\. Expected at least one"):
        collect_ranges(tiny(tmp_path / "m.onnx"), MemoryBatches([]), store=tmp_path / "ranges.h5")


def test_two_batches_of_one_name_are_refused(tmp_path: Path) -> None:
    class Named(MemoryBatches):
        def __iter__(self) -> Iterator[Batch]:
            return (Batch("same", feeds) for feeds in self._feeds)

    graph = tiny(tmp_path / "m.onnx")
    with pytest.raises(CalibrationError, match=r"memory gave two batches of the name 'same'\. Expected"):
        collect_ranges(graph, Named([{"x": normal(4)}] * 2))


@pytest.mark.parametrize("wrong", ["source", "fingerprint"])
def test_what_tells_of_the_data_has_to_be_text(wrong: str, tmp_path: Path) -> None:
    data = MemoryBatches([{"x": normal(4)}])
    setattr(data, wrong, None)
    with pytest.raises(CalibrationError, match=f"The {wrong} of the calibration data is None"):
        collect_ranges(tiny(tmp_path / "m.onnx"), data, store=tmp_path / "ranges.h5")


class ReadBatches(MemoryBatches):
    """Tells in which thread each batch is read."""

    def __init__(self, feeds: Sequence[dict[str, Array]]) -> None:
        super().__init__(feeds)
        self.threads: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            self.threads.append(threading.get_ident())
            yield batch


def test_all_batches_are_read_in_one_thread_beside_the_run(tmp_path: Path) -> None:
    """Of small ones and large ones: what data are read by may belong to a thread."""
    nodes = [helper.make_node("Sin", ["x"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x")], [value_info("y")])
    data = ReadBatches([{"x": np.ones(size, np.float32)} for size in (1, 1 << 20, 2, 3)])
    collect_ranges(graph, data)
    assert len(data.threads) == 4
    assert len(set(data.threads)) == 1
    assert data.threads[0] != threading.get_ident()


def test_no_garbage_is_looked_for_while_a_model_is_read_and_a_scan_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is while batches are run."""
    seen: dict[str, bool] = {}

    def spy(module: Any, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            seen[name] = gc.isenabled()
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    spy(graph_module, "number_nodes")
    spy(collect, "ModelWalk")
    spy(collect, "find_level")
    spy(observers, "run_session")
    nodes = [helper.make_node("Sin", ["x"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x")], [value_info("y")])
    collect_ranges(graph, MemoryBatches([{"x": np.ones(2, np.float32)}]))
    assert seen == {"number_nodes": False, "find_level": False, "ModelWalk": False, "run_session": True}


def test_constants_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(constants: Sequence[tuple[Graph, str]]) -> Any:
        read.extend(name for _, name in constants)
        return summarize_constants(constants)

    monkeypatch.setattr("overflow_fixer.ranges.constants.summarize_constants", counting)
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    weights = [numpy_helper.from_array(np.float32([2, 3]), "w")]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2])], [value_info("y")], weights)
    table = collect_ranges(graph, MemoryBatches([{"x": normal(2)}] * 4))
    assert read == ["w"]
    assert table.by_tensor["w"].element_count == 8


MEMORY_SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from overflow_fixer.graph.model import load_graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Batch

class Data:
    source, synthetic, fingerprint = "made", True, "made"
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __iter__(self):
        for i in range(self.count):
            yield Batch(str(i), {"x": np.full((1, 1 << 20), i, np.float32)})

graph = load_graph(Path(sys.argv[1]))
for count in (5, 60):
    collect_ranges(graph, Data(count), observe=sys.argv[2])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
@pytest.mark.parametrize("observe", ["reductions", "outputs"])
def test_memory_does_not_grow_with_the_batches(tmp_path: Path, observe: str) -> None:
    """Each batch has 4 MB and makes 12 more: the 55 further ones would take 220 MB to keep."""
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in ("xa", "ab", "by")]
    save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, "N"])], [value_info("y")])
    command = [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "m.onnx"), observe]
    few, many = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert many - few < 40_000


@pytest.mark.skipif(not has_native_probes(), reason="the library was not built")
@pytest.mark.parametrize("observe", ["reductions", "optimized"])
def test_a_network_of_common_operators_is_scanned_without_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observe: Observe
) -> None:
    """For ONNX's table of operators takes 8 MB, which the smallest networks' scans may not."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["c"], axes=[2, 3]),
        helper.make_node("GlobalAveragePool", ["a"], ["d"]),
        helper.make_node("Mul", ["c", "d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(normal(8, 3, 3, 3), "w"),
        numpy_helper.from_array(np.array([0, 8, 5, 5]), "shape"),
        numpy_helper.from_array(normal(8, 4), "v"),
    ]
    given, told = [value_info("x", dims=["n", 3, 5, 5])], [value_info("y", dims=["n", 4])]
    graph = save_model(tmp_path / "m.onnx", nodes, given, told, constants)
    feeds = [{"x": normal(2, 3, 5, 5, scale=1e4)}]
    expected = collect_ranges(graph, MemoryBatches(feeds), observe="outputs")
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *_, **__: pytest.fail("it was inferred"))
    found = collect_ranges(load_graph(graph.path), MemoryBatches(feeds), observe=observe)
    for inner, right in zip(found.inner, expected.inner, strict=True):
        assert_same_inner(inner, right)


def test_rows_of_a_constant_that_a_node_holds(tmp_path: Path) -> None:
    """Nothing computes it, so that there is no source to look for."""
    value = numpy_helper.from_array(np.full((1, 3, 4, 4), 2, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Add", ["x", "p"], ["y"]),
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[1, 3, 1, 1])], [value_info("y")])
    table = assert_right(graph, [{"x": normal(1, 3, 1, 1)}])
    assert [one.seen.max_abs for one in table.inner] == [32, 32]

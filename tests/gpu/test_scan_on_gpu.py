"""A scan on CUDA: its reductions are exact there, and its values near the CPU's (docs/scan-gpu.md)."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from cpu_nodes import count_on_cpu, record_places
from gpu_networks import (
    make_big_conv_chain,
    make_masked_block,
    make_transformer_block,
    make_wide_convs,
)
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save
from onnx import TensorProto

from overflow_fixer.calibration import open_calibration
from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.ranges import Observe, collect_ranges
from overflow_fixer.records import CalibrationSet, Range, RangeTable
from overflow_fixer.sessions.providers import Provider, choose_provider, find_lack
from overflow_fixer.sessions.session import open_session

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-4
"""Of a tensor's largest magnitude; docs/scan-gpu.md states it."""
SAMPLES = Path(__file__).parents[2] / "calib_data"
SAMPLE_NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/model.onnx"))
NETWORKS = {
    "conv chain": lambda: make_big_conv_chain(batch=2, channels=64, size=56),
    "wide convs": make_wide_convs,
    "transformer": lambda: make_transformer_block(batch=2, tokens=64, width=256, heads=4),
    "masked": lambda: make_masked_block(batch=2, tokens=64, width=256, heads=4),
}
_TENSOR_OPS = frozenset("Abs Conv IsNaN MatMul ReduceMax ReduceMin ReduceSum Softmax".split())
"""None of these may run on the CPU, for then whole tensors would leave the GPU."""


@pytest.fixture(scope="module", autouse=True)
def engines_can_be_built() -> None:
    """In place of what the tests of engines need: these need CUDA alone."""
    lack = find_lack("cuda")
    if lack is not None:
        pytest.skip(f"No scan on CUDA: {lack}.")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions that are opened, as they are, but that they record where their nodes run."""
    opened: list[Any] = []
    open_one = onnxruntime.InferenceSession

    def open_recorded(source: Any, options: Any, **more: Any) -> Any:
        record_places(options)
        opened.append(open_one(source, options, **more))
        return opened[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_recorded)
    return opened


def _scan(
    graph: Graph, calibration: CalibrationSet, provider: Provider, observe: Observe = "reductions"
) -> RangeTable:
    return collect_ranges(graph, calibration, observe=observe, provider=provider)


def _values(found: Range) -> tuple[Any, ...]:
    """All of a range, such that NaN equals NaN."""
    return tuple("nan" if value != value else value for value in astuple(found))


def _network(name: str, folder: Path) -> tuple[Graph, CalibrationSet]:
    if name in SAMPLE_NAMES:
        graph = load_graph(SAMPLES / name / "model.onnx")
        return graph, open_calibration(SAMPLES / name / "data", graph.inputs)
    network = NETWORKS[name]()
    return save(network.model, folder), InMemoryCalibration(network.batches)


every_network = pytest.mark.parametrize("name", [*SAMPLE_NAMES, *NETWORKS])


def test_the_provider_is_chosen_as_asked() -> None:
    assert choose_provider("cuda").lack is None
    assert choose_provider("cuda").provider == "cuda"


@every_network
def test_values_are_the_cpu_s_within_the_tolerance(name: str, tmp_path: Path) -> None:
    graph, calibration = _network(name, tmp_path)
    expected, found = (_scan(graph, calibration, provider) for provider in ("cpu", "cuda"))
    pairs = list(zip(expected.ranges, found.ranges, strict=True))
    off = [f"{cpu} but {cuda}" for cpu, cuda in pairs if not _is_near(cpu, cuda)]
    assert off == []
    assert len(pairs) > 5


def _is_near(cpu: Range, cuda: Range) -> bool:
    counts = ("tensor", "element_count", "nan_count", "inf_count")
    if any(getattr(cpu, name) != getattr(cuda, name) for name in counts):
        return False
    if abs(cpu.over_fp16_count - cuda.over_fp16_count) > TOLERANCE * cpu.element_count:
        return False
    ends = [[found.max_abs, found.min, found.max] for found in (cpu, cuda)]
    slack = TOLERANCE * cpu.max_abs if np.isfinite(cpu.max_abs) else 0.0
    return bool(np.allclose(ends[1], ends[0], rtol=0, atol=slack, equal_nan=True))


@every_network
def test_reductions_on_the_gpu_are_those_of_numpy_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Of the very values that CUDA computes, fetched whole. Where small values are not taken, none are told."""
    graph, calibration = _network(name, tmp_path)
    whole = _scan(graph, calibration, "cuda", "outputs")
    reduced = _scan(graph, calibration, "cuda")
    for one, other in zip(whole.ranges, reduced.ranges, strict=True):
        if np.isnan(other.min_nonzero_abs):
            one = replace(one, min_nonzero_abs=other.min_nonzero_abs)
        assert _values(one) == _values(other)
    assert np.array_equal(whole.batch_max_abs, reduced.batch_max_abs, equal_nan=True)


@every_network
def test_a_second_scan_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    graph, calibration = _network(name, tmp_path)
    first, second = (_scan(graph, calibration, "cuda") for _ in range(2))
    assert [_values(found) for found in first.ranges] == [_values(found) for found in second.ranges]


@every_network
def test_no_tensor_leaves_the_gpu(name: str, tmp_path: Path, sessions: list[Any]) -> None:
    graph, calibration = _network(name, tmp_path)
    _scan(graph, calibration, "cuda")
    assert sessions
    for session in sessions:
        on_cpu = count_on_cpu(session)
        if on_cpu is None:
            pytest.skip("this ONNX Runtime does not tell where its nodes run")
        assert not _TENSOR_OPS & on_cpu.keys(), on_cpu


AWKWARD = {
    "plain": floats(1, -2, 3),
    "zeros": floats(0, -0.0, 0),
    "subnormal": floats(0, 2.0**-149, -(2.0**-140)),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.float32(-5),
    "late_nan": floats(1, 2, np.nan, 4),
    "early_nan": floats(np.nan, 2, 70000),
    "only_nan": floats(np.nan, np.nan),
    "infinite": floats(np.inf, -np.inf, 1),
    "only_infinite": floats(np.inf, np.inf),
    "minus_infinite_and_nan": floats(-np.inf, np.nan, -np.inf),
    "border": floats(65519.996, 65520, -65520),
    "cancelling": floats(3e38, 3e38, -3e38, -3e38),
}


def test_awkward_tensors_are_told_exactly(tmp_path: Path) -> None:
    """Neg changes no bits but the sign's, so that CUDA and the CPU must agree wholly."""
    nodes = [node("Neg", name, f"{name}_neg") for name in AWKWARD]
    inputs = {name: list(value.shape) for name, value in AWKWARD.items()}
    model = make_model(nodes, inputs, " ".join(f"{name}_neg" for name in AWKWARD))
    graph, calibration = save(model, tmp_path), InMemoryCalibration((AWKWARD,))
    expected, found = (_scan(graph, calibration, provider) for provider in ("cpu", "cuda"))
    assert [_values(one) for one in found.ranges] == [_values(one) for one in expected.ranges]
    assert found.by_tensor["late_nan_neg"].nan_count == 1
    assert found.by_tensor["infinite_neg"].inf_count == 2
    assert found.by_tensor["border_neg"].over_fp16_count == 2


def test_nan_and_inf_that_a_network_makes_are_counted_like_the_cpu_s(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x huge", "grown"),
        node("Sub", "grown grown", "gone"),
        node("Log", "x", "logs"),
        node("Where", "c grown x", "picked"),
        node("Less", "x zero", "c"),
        node("MatMul", "x w", "mixed"),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    rng = np.random.RandomState(3)
    constants = {"huge": floats(3e38), "zero": floats(0), "w": rng.randn(64, 8).astype(np.float32)}
    model = make_model(nodes, {"x": [32, 64]}, "gone logs picked mixed", constants)
    graph = save(model, tmp_path)
    calibration = InMemoryCalibration(tuple({"x": rng.randn(32, 64).astype(np.float32)} for _ in range(3)))
    expected, found = (_scan(graph, calibration, provider) for provider in ("cpu", "cuda"))
    assert expected.by_tensor["gone"].nan_count > 0
    assert expected.by_tensor["grown"].inf_count > 0
    assert expected.by_tensor["logs"].nan_count > 0
    for cpu, cuda in zip(expected.ranges, found.ranges, strict=True):
        assert _is_near(cpu, cuda), f"{cpu} but {cuda}"


def test_counts_are_exact_past_what_float_can_count(tmp_path: Path) -> None:
    """CUDA's ReduceSum of integers adds in float, which holds every integer only up to 2^24."""
    size, kept = 2**25 + 7, 3
    values = np.full(size, np.nan, np.float32)
    values[:kept] = 1.0
    graph = save(make_model([node("Neg", "x", "y")], {"x": [size]}, "y"), tmp_path)
    found = _scan(graph, InMemoryCalibration(({"x": values},)), "cuda").by_tensor["y"]
    assert (found.element_count, found.nan_count) == (size, size - kept)


def test_fp16_tensors_are_seen_rounded(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "half", to=TensorProto.FLOAT16),
        node("Cast", "half", "y", to=TensorProto.FLOAT),
    ]
    graph = save(make_model(nodes, {"x": [4]}, "y"), tmp_path)
    calibration = InMemoryCalibration(({"x": floats(1.0001, 65519, 65520, -3)},))
    found = _scan(graph, calibration, "cuda").by_tensor["half"]
    assert (found.inf_count, found.over_fp16_count, found.min) == (1, 1, -3)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("lengths", [(4096,), (4097,), (100, 5000, 7)])
def test_rows_of_a_softmax_are_long_or_not_as_the_data_show(
    lengths: tuple[int, ...], op: str, tmp_path: Path
) -> None:
    """The number of elements of a row shows in the run alone."""
    graph = save(make_model([node(op, "x", "y", axis=-1)], {"x": ["n", "m"]}, "y"), tmp_path)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((3, length)).astype(np.float32)} for length in lengths]
    tables = (_scan(graph, InMemoryCalibration(tuple(feeds)), provider) for provider in ("cpu", "cuda"))
    label = graph.nodes[0].label
    expected, found = (table.inner_of[label]["sum of exponentials"].seen for table in tables)
    assert np.isnan(expected.max_abs) == (max(lengths) <= 4096)
    assert found.element_count == expected.element_count
    np.testing.assert_allclose(found.max_abs, expected.max_abs, rtol=TOLERANCE)


def test_memory_that_runs_out_on_the_gpu_is_told(tmp_path: Path) -> None:
    """Expand to 16 TiB: more than any GPU has, and nothing that the CPU has to hold."""
    nodes = [node("Expand", "x shape", "wide"), node("ReduceMax", "wide", "y")]
    model = make_model(nodes, {"x": [1]}, "y", {"shape": np.asarray([2**22, 2**20], np.int64)})
    graph = save(model, tmp_path)
    with pytest.raises(ModelError, match="--provider cpu"):
        _scan(graph, InMemoryCalibration(({"x": floats(1)},)), "cuda")


def test_an_optimised_session_runs_on_cuda_too(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [2]}, "y")
    session = open_session(model, tmp_path, optimize=True, provider="cuda")
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    assert session.run(None, {"x": floats(1, -2)})[0].tolist() == [-1, 2]

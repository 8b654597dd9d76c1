"""Weights that a model computes in front, such as dequantized ones, are there one after the other, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save, scalar
from ways_to_observe import Probes, use_probes

from overflow_fixer.flops import count_share
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Artifact, Batch
from overflow_fixer.repair import chunks
from overflow_fixer.repair.losses import measure_losses
from overflow_fixer.sessions import session
from overflow_fixer.sessions.providers import Provider
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.simulation.typed_model import simulate

COUNT = 8
FEEDS = {"x": np.ones((2, 3, 8), np.float32), "shape": np.array([6, 8], np.int64)}


def _network(folder: Path) -> Graph:
    """Products with COUNT weights of int8, of shapes that only a run can tell."""
    names = [f"t{i}" for i in range(COUNT + 1)]
    in_front = [node("DequantizeLinear", f"q{i} scale zero", f"w{i}") for i in range(COUNT)]
    products = [node("MatMul", f"{names[i]} w{i}", names[i + 1]) for i in range(COUNT)]
    weights = {f"q{i}": np.full((8, 8), 1 + i, np.int8) for i in range(COUNT)}
    fixed = {"scale": scalar(0.01), "zero": np.int8(0), **weights}
    inputs = {"x": ["a", "b", "c"], "shape": (onnx.TensorProto.INT64, [2])}
    nodes = [*in_front, node("Reshape", "x shape", "t0"), *products]
    return save(make_model(nodes, inputs, names[-1], {k: np.asarray(v) for k, v in fixed.items()}), folder)


def _scan(graph: Graph) -> None:
    collect_ranges(graph, InMemoryCalibration((FEEDS,)))


def _simulate(graph: Graph) -> None:
    run_session(open_session(simulate(graph), graph.folder, by_priority=True), None, Batch("b", FEEDS))


def _lose(graph: Graph) -> None:
    ranges = collect_ranges(graph, InMemoryCalibration((FEEDS,)), observe="outputs")
    measure_losses(graph, ranges, [one.label for one in graph.nodes], Batch("b", FEEDS))


def _count(graph: Graph) -> None:
    artifact = Artifact("onnx", graph.path, (graph.path,), (), (), (), 0)
    assert count_share(graph, artifact, Batch("b", FEEDS)).flops == 2 * 6 * 8 * 8 * COUNT


def _find_most_alive(model: onnx.ModelProto) -> int:
    """How many of the weights are there at once, if the nodes run as they stand."""
    asked = {info.name for info in model.graph.output}
    last = {name: i for i, one in enumerate(model.graph.node) for name in one.input if name not in asked}
    alive: set[str] = set()
    most = 0
    for i, one in enumerate(model.graph.node):
        alive.update(one.output if one.op_type == "DequantizeLinear" else ())
        most = max(most, len(alive))
        alive -= {name for name in alive if last.get(name, i) <= i}
    return most


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that are run in the order of their nodes."""
    by_priority: list[bool] = []
    found: list[onnx.ModelProto] = []
    choose, serialize = session.make_options, session._serialize

    def note_order(optimize: bool, is_ordered: bool, provider: Provider) -> Any:
        by_priority.append(is_ordered)
        return choose(optimize, is_ordered, provider)

    def note_model(model: onnx.ModelProto) -> bytes:
        found.extend([model] if by_priority[-1] else [])
        return serialize(model)

    monkeypatch.setattr(session, "make_options", note_order)
    monkeypatch.setattr(session, "_serialize", note_model)
    return found


@pytest.mark.parametrize(
    ("run", "probes"),
    [
        (_scan, "native"),
        (_scan, "shared"),
        (_scan, "operators"),
        (_simulate, "native"),
        (_lose, "native"),
        (_count, "native"),
    ],
)
def test_two_weights_at_most_are_there_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ordered: list[onnx.ModelProto],
    run: Callable[[Graph], None],
    probes: Probes,
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)
    graph = _network(tmp_path)
    assert _find_most_alive(graph.model) == COUNT
    with use_probes(probes):
        run(graph)
    assert 1 <= max(map(_find_most_alive, ordered)) <= 2


def test_the_file_keeps_its_order(tmp_path: Path) -> None:
    graph = _network(tmp_path)
    assert [one.index for one in graph.nodes] == list(range(len(graph.nodes)))
    assert [one.op_type for one in graph.run_order] == ["Reshape", *["DequantizeLinear", "MatMul"] * COUNT]

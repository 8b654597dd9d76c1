"""What holds for every pattern of the table, and for all regions together."""

from __future__ import annotations

import importlib
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from awkward_networks import awkward_graph, if_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import make_model, node, save
from spellings import CONSTANTS, SHAPE, Spelling
from test_attention_pattern import MASKED, attention_graph
from test_l2_norm_pattern import SPELLINGS as L2_NORMS
from test_layer_norm_pattern import SPELLINGS as LAYER_NORMS
from test_rms_norm_pattern import SPELLINGS as RMS_NORMS
from test_softmax_pattern import SPELLINGS as SOFTMAXES

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.patterns import PATTERNS, find_regions

CALIB_DATA = Path(__file__).parents[2] / "calib_data"
NORMS = [*LAYER_NORMS.values(), *RMS_NORMS.values(), *L2_NORMS.values()]
SPELLINGS = [*NORMS, *(spelling for _, spelling in SOFTMAXES.values())]


def _rename(spelling: Spelling, index: int) -> list[onnx.NodeProto]:
    """The spelling from t<index> to t<index + 1>, its other tensors numbered."""
    nodes = []
    for proto in spelling.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(proto)
        for names in (copy.input, copy.output):
            ends = {"x": f"t{index}", "y": f"t{index + 1}"}
            names[:] = [ends.get(n, n if n in CONSTANTS else f"{n}_{index}") for n in names]
        copy.name = f"{copy.name}_{index}"
        nodes.append(copy)
    return nodes


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_has_a_module_and_a_test_of_its_name(name: str) -> None:
    module = importlib.import_module(f"overflow_fixer.patterns.{name}")
    assert getattr(module, f"find_{name}") is PATTERNS[name]
    assert (Path(__file__).parent / f"test_{name}_pattern.py").is_file()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=6))
def test_of_any_row_of_patterns_each_is_found_and_nothing_else(row: list[Spelling]) -> None:
    nodes = [node("Sigmoid", "x", "t0")]
    for index, spelling in enumerate(row):
        nodes += [*_rename(spelling, 2 * index), node("Sigmoid", f"t{2 * index + 1}", f"t{2 * index + 2}")]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(nodes, {"x": list(SHAPE)}, nodes[-1].output[0], CONSTANTS, opset=13)
        graph = save(model, Path(folder))
        found = sorted(find_regions(graph), key=lambda region: graph.by_label[region.nodes[0]].index)
    expected = [
        tuple(f"{label}_{2 * index}" for label in spelling.labels) for index, spelling in enumerate(row)
    ]
    trimmed = [tuple(label for label in labels if not label.startswith("Cast_h_")) for labels in expected]
    assert [region.nodes for region in found] == trimmed


@pytest.mark.parametrize("name", MASKED)
def test_a_softmax_in_an_attention_is_no_second_region(name: str, tmp_path: Path) -> None:
    graph = attention_graph(tmp_path, *MASKED[name])
    assert [region.kind for region in find_regions(graph)] == ["attention"]


@pytest.mark.parametrize(
    ("sample", "kinds"),
    [
        ("conv_chain", []),
        ("needs_constraints", []),
        ("masked_attention", ["attention"]),
        ("layernorm_transformer", ["LayerNorm"] * 3),
    ],
)
def test_the_regions_of_the_samples(sample: str, kinds: list[str]) -> None:
    graph = load_graph(CALIB_DATA / sample / "model.onnx")
    assert [region.kind for region in find_regions(graph)] == kinds
    for region in find_regions(graph):
        _check_whole(graph, region.nodes)


def _check_whole(graph: Graph, labels: tuple[str, ...]) -> None:
    """The nodes are there, in order, and each but the last is read by another of them."""
    nodes = [graph.by_label[label] for label in labels]
    assert all(one.index < other.index for one, other in pairwise(nodes))
    read = {name for at in nodes for name in at.reads}
    assert all(not read.isdisjoint(at.writes) for at in nodes[:-1])


def test_networks_of_odd_operators_have_none(tmp_path: Path) -> None:
    assert find_regions(awkward_graph(tmp_path)) == ()
    assert find_regions(if_graph(tmp_path)) == ()


def test_operators_of_another_domain_are_none(tmp_path: Path) -> None:
    model = make_model(_rename(LAYER_NORMS["torch"], 0), {"t0": list(SHAPE)}, "t1", CONSTANTS, opset=13)
    graph = save(model, tmp_path)
    assert len(find_regions(graph)) == 1
    foreign = {"domain": "com.example", "is_standard": False}
    nodes = tuple(replace(at, **foreign) if at.op_type == "Sqrt" else at for at in graph.nodes)
    assert find_regions(replace(graph, nodes=nodes)) == ()

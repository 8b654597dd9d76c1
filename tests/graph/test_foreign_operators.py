"""Operators that nobody looks into are named, with how many nodes there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_calibration import floats, make_model, node, save

from overflow_fixer.cli import main
from overflow_fixer.graph.foreign_operators import count_foreign
from overflow_fixer.graph.model import Graph

NODES = [
    node("Gelu", "x", "a", domain="com.microsoft"),
    node("Gelu", "a", "b", domain="com.microsoft"),
    node("SkipLayerNormalization", "a b s", "c", domain="com.microsoft"),
    node("Relu", "c", "y"),
]


def _graph(folder: Path) -> Graph:
    return save(make_model(NODES, {"x": [2, 4]}, "y", {"s": floats(1, 1, 1, 1)}), folder)


def test_operators_of_other_domains_are_counted(tmp_path: Path) -> None:
    assert count_foreign(_graph(tmp_path)) == {
        "com.microsoft.Gelu": 2,
        "com.microsoft.SkipLayerNormalization": 1,
    }


def test_those_that_write_no_fp32_and_those_of_onnx_are_not(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "h", to=10),
        node("Gelu", "h", "g", domain="com.microsoft"),
        node("Cast", "g", "y", to=1),
    ]
    assert not count_foreign(save(make_model(nodes, {"x": [2, 4]}, "y"), tmp_path))


def test_the_plan_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = _graph(tmp_path)
    for verb in (("scan", "--calib", "random"), ("plan",)):
        with pytest.raises(SystemExit) as stop:
            main([verb[0], str(graph.path), *verb[1:], "--out", str(tmp_path / "out")])
        assert not stop.value.code
    said = capsys.readouterr().out
    assert (
        "Not looked into: com.microsoft.Gelu (2 nodes), com.microsoft.SkipLayerNormalization (1 node)."
        in said
    )

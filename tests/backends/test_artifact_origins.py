"""What an artifact says of the model and the plan that it was built from; nothing where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory_calibration import make_model, node, save

from overflow_fixer.backends import mixed_onnx
from overflow_fixer.backends.origins import Origin, read_origin
from overflow_fixer.backends.stamps import fingerprint
from overflow_fixer.records import PrecisionPlan


def test_a_typed_model_names_its_model_and_its_plan(tmp_path: Path) -> None:
    graph = save(make_model([node("Relu", "x", "y")], {"x": [2]}, "y"), tmp_path)
    plan = PrecisionPlan(graph.sha256, 10000.0, ())
    mixed_onnx.emit(graph, plan, tmp_path / "m.fp16.onnx")
    assert read_origin(tmp_path / "m.fp16.onnx", "onnx") == (graph.sha256, fingerprint(plan, "keep"))
    assert read_origin(graph.path, "onnx") == Origin("", "")


@pytest.mark.parametrize("sidecar", [None, b"", b"{", b"\xff", b"[]", b"3", b"{}", b'{"model_sha256": "a"}'])
def test_an_engine_whose_sidecar_cannot_be_read_names_nothing(sidecar: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    path.write_bytes(b"an engine")
    if sidecar is not None:
        path.with_name("m.engine.json").write_bytes(sidecar)
    assert read_origin(path, "tensorrt") == Origin("", "")


def test_an_engine_is_what_its_sidecar_says(tmp_path: Path) -> None:
    (tmp_path / "m.engine.json").write_text('{"model_sha256": "a", "plan_sha256": "b", "other": 1}')
    assert read_origin(tmp_path / "m.engine", "tensorrt") == ("a", "b")


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_typed_model_that_cannot_be_read_names_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "m.fp16.onnx").write_bytes(content)
    assert read_origin(tmp_path / "m.fp16.onnx", "onnx") == Origin("", "")

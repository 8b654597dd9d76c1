"""Custom operators of a real library, through every stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_extensions
import pytest
from onnx import TensorProto, helper

from overflow_fixer.cli import main
from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.reports import load_plan
from overflow_fixer.sessions.settings import hash_custom_ops, use_custom_ops

LIBRARY = Path(onnxruntime_extensions.get_library_path())


@pytest.fixture(autouse=True)
def leave_none_loaded() -> Iterator[None]:
    yield
    use_custom_ops([])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x into its negative and its positive part by a custom operator; their product overflows in FP16."""
    nodes = [
        helper.make_node("NegPos", ["x"], ["n", "p"], name="parts", domain="ai.onnx.contrib"),
        helper.make_node("ReduceSum", ["p"], ["total"], name="sum", keepdims=0),
        helper.make_node("Mul", ["n", "total"], ["large"], name="product"),
        helper.make_node("Div", ["large", "total"], ["y"], name="quotient"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [4])], [info("y", TensorProto.FLOAT, None)]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    (tmp_path / "data").mkdir()
    for i in range(2):
        np.savez(tmp_path / "data" / f"{i}.npz", x=np.array([500, -400, 700, -300 - i], np.float32))
    return path


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_the_whole_job_with_the_library(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (model, "--calib", tmp_path / "data", "--out", out, "--backend", "onnx", "-q")
    assert _run(*arguments, "--ort-custom-op", LIBRARY) == 0
    assert {"product", "quotient"} <= load_plan(out / "plan.json").pinned


def test_without_it_the_way_out_is_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("scan", model, "--calib", tmp_path / "data", "--out", tmp_path / "out") == 3
    said = capsys.readouterr().err
    assert "NegPos" in said
    assert "--ort-custom-op" in said
    assert "--provider tensorrt" in said


def test_the_config_file_names_libraries(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'custom_ops = ["{LIBRARY}"]')
    arguments = ("--calib", tmp_path / "data", "--out", tmp_path / "out", "--config", config, "-q")
    assert _run("scan", model, *arguments) == 0


def test_types_of_custom_outputs_are_known(model: Path) -> None:
    use_custom_ops([LIBRARY])
    assert {load_graph(model).dtypes[name] for name in ("n", "p", "large")} == {TensorProto.FLOAT}


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_what_is_no_library_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "lib.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"lib\.so does not load: .* Expected a shared library"):
        use_custom_ops([path])


def test_a_library_that_does_not_load_leaves_those_in_use(tmp_path: Path) -> None:
    use_custom_ops([LIBRARY])
    before = hash_custom_ops()
    with pytest.raises(ModelError):
        use_custom_ops([tmp_path / "none.so"])
    assert hash_custom_ops() == before != ""


def test_a_scan_with_other_libraries_is_not_gone_on_with(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "copy.so"
    other.write_bytes(LIBRARY.read_bytes() + b"\0")
    out = tmp_path / "out"
    arguments = ("scan", model, "--calib", tmp_path / "data", "--out", out, "-q", "--ort-custom-op")
    assert _run(*arguments, LIBRARY) == 0
    assert _run(*arguments, other) == 5
    assert "the custom operators' libraries" in capsys.readouterr().err

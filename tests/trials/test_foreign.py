"""What another tool made is held against FP32; tests/cli/test_main_job.py has the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node
from onnx import TensorProto

from overflow_fixer.config import FixConfig, VerifyOptions
from overflow_fixer.errors import BackendError, ConfigError, ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.progress import silent
from overflow_fixer.records import Verification
from overflow_fixer.trials import foreign
from overflow_fixer.trials.foreign import verify_foreign

_SQUARE = [node("Mul", "x x", "s"), node("Sqrt", "s", "y")]
_IN_FP16 = [
    node("Cast", "x", "h", to=TensorProto.FLOAT16),
    node("Mul", "h h", "s"),
    node("Sqrt", "s", "r"),
    node("Cast", "r", "y", to=TensorProto.FLOAT),
]


def _verify(
    folder: Path, nodes: list[onnx.NodeProto], largest: float, **options: Any
) -> tuple[Verification, tuple[str, ...]]:
    """The nodes instead of |x| as the root of a square, of x up to `largest`."""
    onnx.save(make_model(_SQUARE, {"x": [4]}, "y", {}), folder / "model.onnx")
    onnx.save(make_model(nodes, {next(iter(nodes[0].input)): [4]}, "y", {}), folder / "typed.onnx")
    np.savez(folder / "b.npz", x=np.array([1, 2, 3, largest], np.float32))
    config = FixConfig(model=folder / "model.onnx", calib=folder / "b.npz", verify=VerifyOptions(**options))
    return verify_foreign(config, load_graph(folder / "model.onnx"), folder / "typed.onnx", silent)


@pytest.mark.parametrize(("largest", "passes"), [(255.9, True), (256.0, False)])
def test_fp16_is_right_as_long_as_its_squares_are(largest: float, passes: bool, tmp_path: Path) -> None:
    found, remarks = _verify(tmp_path, _IN_FP16, largest)
    assert (found.passed, found.batch_count, remarks) == (passes, 1, ())
    assert found.outputs[0].error.lost_count == (0 if passes else 1)


def test_a_part_without_an_element_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="y has no element there in any batch"):
        _verify(tmp_path, _IN_FP16, 1.0, parts=("y[4:]",))


def test_a_model_without_fp16_proves_nothing(tmp_path: Path) -> None:
    found, remarks = _verify(tmp_path, _SQUARE, 256.0)
    assert found.passed
    assert remarks == (
        f"Nothing in {tmp_path / 'typed.onnx'} is FP16: FP32 was compared with FP32, which proves nothing of FP16.",
    )


def test_a_model_that_is_written_meanwhile_is_an_error(tmp_path: Path) -> None:
    _verify(tmp_path, _IN_FP16, 1.0)
    graph = load_graph(tmp_path / "model.onnx")
    config = FixConfig(model=graph.path, calib=tmp_path / "b.npz")

    def write(stage: str, done: int, total: int) -> None:
        os.utime(graph.path, ns=(1, 1))

    with pytest.raises(ModelError, match="changed while it was in use"):
        verify_foreign(config, graph, tmp_path / "typed.onnx", write)


def test_a_model_of_other_inputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"has the inputs z\. Expected those of .*model\.onnx: x\."):
        _verify(tmp_path, [node("Abs", "z", "y")], 1.0)


def test_fp16_that_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    branch = onnx.helper.make_graph(
        [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Abs", "h", "a"), node("Cast", "a", "b", to=1)],
        "branch",
        [],
        [onnx.helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])],
    )
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Cast", "m", "c", to=TensorProto.BOOL),
        node("If", "c", "y", then_branch=branch, else_branch=branch),
    ]
    with pytest.raises(BackendError, match="computes in FP16 where rounding cannot be simulated"):
        _verify(tmp_path, nodes, 1.0)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Mul", "h x", "y")], "different types"),
        (
            [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Abs", "h", "y")],
            "does not match expected type",
        ),
        ([node("NoSuchOperator", "x", "y")], "No Op registered for NoSuchOperator"),
    ],
)
def test_a_model_that_no_runtime_takes_is_refused_and_not_simulated(
    nodes: list[onnx.NodeProto], told: str, tmp_path: Path
) -> None:
    """In FP32, as it is simulated, FP16 and FP32 are one type. The message is about this file, not about the original."""
    with pytest.raises(BackendError, match=rf"refuses .*typed\.onnx: .*{told}"):
        _verify(tmp_path, nodes, 1.0)


def test_what_only_the_simulation_is_refused_for_is_told_of_this_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign.mixed_onnx, "find_fault", lambda path: None)
    with pytest.raises(BackendError, match=r"refuses .*typed\.onnx: .*NoSuchOperator"):
        _verify(tmp_path, [node("NoSuchOperator", "x", "y")], 1.0)


def test_want_of_memory_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = ModelError("bad allocation")
    monkeypatch.setattr(foreign.mixed_onnx, "find_fault", lambda path: fault)
    with pytest.raises(ModelError) as raised:
        _verify(tmp_path, _IN_FP16, 1.0)
    assert raised.value is fault


def test_a_file_that_is_no_model_is_told_as_an_artifact(tmp_path: Path) -> None:
    _verify(tmp_path, _IN_FP16, 1.0)
    (tmp_path / "typed.onnx").write_bytes(b"no model")
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "b.npz")
    with pytest.raises(BackendError, match=r"typed\.onnx"):
        verify_foreign(config, load_graph(config.model), tmp_path / "typed.onnx", silent)

"""FP8 outputs come as the numbers that they stand for, not as their codes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from overflow_fixer.records import Batch, Tolerance
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.verification.comparison import verify


def _open(folder: Path, *types: int) -> SessionRunner:
    """Casts of x, in order y0, y1, ..."""
    casts = [helper.make_node("Cast", ["x"], [f"y{k}"], to=to) for k, to in enumerate(types)]
    ends = [helper.make_tensor_value_info(f"y{k}", to, None) for k, to in enumerate(types)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 19)]
    model = helper.make_model(helper.make_graph(casts, "g", [x], ends), opset_imports=opsets, ir_version=9)
    return SessionRunner(open_session(model, folder))


@pytest.mark.parametrize("beside", [TensorProto.UINT8, TensorProto.BFLOAT16])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_fp8_outputs_come_as_ml_dtypes_arrays_beside_others(
    beside: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    found = _open(tmp_path, TensorProto.FLOAT8E4M3FN, beside).run(
        Batch("b", {"x": np.full(shape, 3.1, np.float32)})
    )
    assert found["y0"].dtype == ml_dtypes.float8_e4m3fn
    assert found["y1"].dtype == onnx.helper.tensor_dtype_to_np_dtype(beside)
    np.testing.assert_array_equal(found["y0"].astype(np.float32), np.full(shape, 3.0, np.float32))


class _Doubled:
    """Of what another runner is fed, twice as much."""

    def __init__(self, runner: SessionRunner) -> None:
        self.output_names = runner.output_names
        self._runner = runner

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        return self._runner.run(Batch(batch.name, {"x": batch.feeds["x"] * 2}))


def test_fp8_outputs_are_compared_as_numbers(tmp_path: Path) -> None:
    runner = _open(tmp_path, TensorProto.FLOAT8E4M3FN)
    batch = Batch("b", {"x": np.array([1, -16, 32], np.float32)})
    (found,) = verify(runner, _Doubled(runner), [batch], Tolerance()).outputs
    assert not found.passed
    assert (found.error.is_float, found.error.max_abs_error, found.error.max_abs_reference) == (True, 32, 32)
    assert found.error.snr_db == pytest.approx(0)

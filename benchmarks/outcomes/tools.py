"""The tools: each writes its one .onnx into a folder, given a model and a folder of batches, with the defaults of its documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

TYPED = "typed.onnx"
Tool = Callable[[Path, Path, Path], None]


def convert_by_overflow_fixer(model: Path, calib: Path, folder: Path) -> None:
    """The main job, repair included; what it could not verify is written all the same, and judged."""
    from overflow_fixer import FixConfig, fix

    fix(FixConfig(model=model, calib=calib, out=folder, build={"backend": "onnx"}))


def convert_by_autocast(model: Path, calib: Path, folder: Path) -> None:
    """AutoCast, by its reference run on all batches."""
    import onnx
    from modelopt.onnx.autocast import convert_to_mixed_precision

    converted = convert_to_mixed_precision(str(model), keep_io_types=True, calibration_data=str(calib))
    onnx.save(converted, folder / TYPED)


def convert_by_onnxconverter(model: Path, calib: Path, folder: Path) -> None:
    """onnxconverter_common's float16: all in FP16 but the operators it always keeps. Data are not asked for."""
    import onnx
    from onnxconverter_common import float16

    converted = float16.convert_float_to_float16(onnx.load(model), keep_io_types=True)
    onnx.save(converted, folder / TYPED)


def convert_by_onnxruntime(model: Path, calib: Path, folder: Path) -> None:
    """ONNX Runtime's own float16, for transformers but taking any model: as onnxconverter_common's, which it came from."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), folder / TYPED)


def convert_by_onnxconverter_mixed(model: Path, calib: Path, folder: Path) -> None:
    """onnxconverter_common's search for nodes to keep, by the tolerances of its documentation, on the first batch: it takes one."""
    import onnx
    from onnxconverter_common import auto_mixed_precision

    with np.load(min(calib.glob("*.npz"))) as batch:
        feeds = dict(batch)
    converted = auto_mixed_precision.auto_convert_mixed_precision(
        onnx.load(model), feeds, rtol=0.01, atol=0.001, keep_io_types=True
    )
    onnx.save(converted, folder / TYPED)


TOOLS: dict[str, Tool] = {
    "overflow_fixer": convert_by_overflow_fixer,
    "ModelOpt AutoCast": convert_by_autocast,
    "onnxconverter_common, mixed": convert_by_onnxconverter_mixed,
    "onnxconverter_common, float16": convert_by_onnxconverter,
    "ONNX Runtime, float16": convert_by_onnxruntime,
}

"""Whether ONNX Runtime loads a typed model optimised, as its users do: asked in another process, for it may crash.

Optimisers of ONNX Runtime have refused and crashed on valid models that mix FP16 and FP32.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime

from overflow_fixer.records import Artifact

_MOST_NODES = 2000
"""Opening a session takes the square of the number of FP16 nodes: see loading."""
_MOST_BYTES = 500_000_000
_TIMEOUT_SECONDS = 60
_DISABLE = "optimization.disable_specified_optimizers"
_OFTEN = ("LayerNormFusionL1", "NchwcTransformer", "LayerNormFusionL1;NchwcTransformer")
"""Optimisers that were seen to fail: docs/typed-onnx.md."""
_REFUSED = 3
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
_LOAD = f"""
import sys
sys.path[:] = sys.argv[3].split({os.pathsep!r})
import onnxruntime
options = onnxruntime.SessionOptions()
if sys.argv[2] == "off":
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
else:
    options.add_session_config_entry("{_DISABLE}", sys.argv[2])
options.log_severity_level = 4
options.add_session_config_entry("session.disable_prepacking", "1")
for library in sys.argv[4:]:
    options.register_custom_ops_library(library)
try:
    onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    sys.stderr.write(" ".join(str(error).split()))
    sys.exit({_REFUSED})
"""


def warn_of_default_loading(artifact: Artifact, custom_ops: Sequence[Path]) -> Iterator[str]:
    """That ONNX Runtime does not load the typed model at its default optimisation, and how it does.

    Nothing where it loads, or does not at all; where the model has over 2000 nodes or 500 MB, or loading takes over a
    minute, which is not waited for.
    """
    size = sum(path.stat().st_size for path in artifact.files)
    if size > _MOST_BYTES or len(artifact.fp16_nodes) + len(artifact.fp32_nodes) > _MOST_NODES:
        return
    fault = _find_fault(artifact.path, "", custom_ops)
    if fault is None:
        return
    remedies = {**{name: f"{_DISABLE} set to {name}" for name in _OFTEN}, "off": "optimisation off"}
    works = (
        said for without, said in remedies.items() if not _find_fault(artifact.path, without, custom_ops)
    )
    remedy = next(works, None)
    if remedy is not None:
        yield (
            f"ONNX Runtime {onnxruntime.__version__} does not load {artifact.path.name} on the CPU as it does by default, "
            f"optimised: {fault}. It loads with {remedy}. TensorRT is not concerned (docs/typed-onnx.md)."
        )


def _find_fault(model: Path, without: str, custom_ops: Sequence[Path]) -> str | None:
    """What happens without an optimiser, or all ("off"); None where the model loads, or nothing is known."""
    libraries = [str(path.resolve()) for path in custom_ops]
    command = [sys.executable, "-c", _LOAD, str(model), without, os.pathsep.join(sys.path), *libraries]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == _REFUSED:
        return done.stderr.strip().rstrip(".")
    crash = next((one for one in _CRASHES if done.returncode == -one), None)
    return None if crash is None else f"it crashes ({crash.name})"

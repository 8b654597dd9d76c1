"""Whether ONNX Runtime loads a typed model optimised, as its users do: asked in another process, for it may crash.

Optimisers of ONNX Runtime have refused and crashed on valid models that mix FP16 and FP32.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import onnxruntime

from overflow_fixer.records import Artifact

_MOST_NODES = 2000
"""Opening a session takes the square of the number of FP16 nodes: see loading."""
_MOST_BYTES = 500_000_000
_TIMEOUT_SECONDS = 60
_DISABLE = "optimization.disable_specified_optimizers"
_SEEN = ("LayerNormFusionL1", "NchwcTransformer", "SimplifiedLayerNormFusion")
"""Optimisers that were seen to fail: docs/typed-onnx.md."""
_REMEDIES = tuple(";".join(some) for count in (1, 2, 3) for some in combinations(_SEEN, count))
_REFUSED = 3
_MARK = "refused:"
_LONGEST = 400
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_LOAD = f"""
import sys
sys.path[:] = sys.argv[3].split({os.pathsep!r})
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
import onnxruntime
options = onnxruntime.SessionOptions()
if sys.argv[2] == "off":
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
else:
    options.add_session_config_entry("{_DISABLE}", sys.argv[2])
options.log_severity_level = 4
for library in sys.argv[4:]:
    options.register_custom_ops_library(library)
try:
    onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print("{_MARK}" + (" ".join(str(error).split()) or type(error).__name__)[:{_LONGEST}], flush=True)
    sys.exit({_REFUSED})
"""


def warn_of_default_loading(artifact: Artifact, custom_ops: Sequence[Path]) -> Iterator[str]:
    """That ONNX Runtime does not load the typed model at its default optimisation, and how it does.

    Nothing where it loads, or was not seen to load in any way; where over 2000 nodes compute floats, the model has
    over 500 MB, or a load takes over a minute.
    """
    size = sum(path.stat().st_size for path in artifact.files)
    if size > _MOST_BYTES or len(artifact.fp16_nodes) + len(artifact.fp32_nodes) > _MOST_NODES:
        return
    fault = _find_fault(artifact.path, "", custom_ops)
    if not fault:
        return
    tried = (
        without for without in (*_REMEDIES, "off") if _find_fault(artifact.path, without, custom_ops) == ""
    )
    helps = next(tried, None)
    if helps is not None:
        yield (
            f"ONNX Runtime {onnxruntime.__version__} does not load {artifact.path.name} on the CPU as it does by default, "
            f"optimised: {fault}. It loads with {_say_remedy(helps)} (docs/typed-onnx.md)."
        )


def _say_remedy(without: str) -> str:
    if without == "off":
        return "optimisation off"
    return f"{_DISABLE} set to {without}. TensorRT is not concerned"


def _find_fault(model: Path, without: str, custom_ops: Sequence[Path]) -> str | None:
    """What happens without these optimisers ("off": without any); "" where the model loads, None where nothing is known."""
    if not sys.executable:
        return None
    paths = os.pathsep.join(path for path in sys.path if isinstance(path, str))
    libraries = [str(path.resolve()) for path in custom_ops]
    command = [sys.executable, "-c", _LOAD, str(model), without, paths, *libraries]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return _read_fault(done.returncode, done.stdout)


def _read_fault(code: int, said: str) -> str | None:
    if code == 0:
        return ""
    marked = [line.removeprefix(_MARK) for line in said.splitlines() if line.startswith(_MARK)]
    if code == _REFUSED and marked:
        return marked[-1].rstrip(".")
    crash = next((one for one in _CRASHES if code == -one), None)
    return None if crash is None else f"it crashes ({crash.name})"

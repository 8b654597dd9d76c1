"""What is told where ONNX Runtime refuses a model, or memory runs out."""

from __future__ import annotations

import onnxruntime

from overflow_fixer.sessions.providers import EXECUTION_PROVIDERS, Provider

_OF_UNKNOWN_OPERATORS = (
    "Run the model in ONNX Runtime alone to see the same error. For operators that it does not know, name "
    "their library with --ort-custom-op, or scan TensorRT's plug-ins with --provider tensorrt where that loads, which fix-fp16 doctor tells (docs/custom-ops.md)"
)
_REMEDIES = {
    "tensor(float16)": (
        "The model has FP16 where FP32 is to be, or the other way round, as a conversion by another tool or an export under autocast "
        "leaves it. Give the FP32 model that it was made from, or export it anew in FP32"
    ),
    "Could not find an implementation": (
        "Operators into which an optimiser fused others for a GPU do not run there. Give the model as it was before that"
    ),
}
"""By what ONNX Runtime says, what to do of a model that is none of the kind that is looked for."""


def tell_refusal(provider: Provider, reason: str) -> str:
    """Of a model that ONNX Runtime does not open, for `reason`, ONNX Runtime's own words."""
    expected = "on the CPU" if provider == "cpu" else f"with its {EXECUTION_PROVIDERS[provider]}"
    remedy = "Use --provider cpu if it is the GPU that cannot (docs/scan-gpu.md)"
    if provider == "cpu":
        remedy = next((text for mark, text in _REMEDIES.items() if mark in reason), _OF_UNKNOWN_OPERATORS)
    return (
        f"ONNX Runtime {onnxruntime.__version__} refuses the model: {reason}. Expected a model that it can run "
        f"{expected}, since every value is taken from a real run. {remedy}."
    )


def tell_want_of_memory(reason: str) -> str:
    """Of a model that memory cannot hold."""
    return (
        f"Memory ran out when ONNX Runtime {onnxruntime.__version__} opened the model: {reason}. Expected room for the model, one "
        "batch and what is computed from it. Use a machine with more memory, or raise the limit of what a process may take "
        "(ulimit -v), and of its threads (ulimit -u)."
    )


def first_line(error: BaseException) -> str:
    """What an error says first, without its full stop; its type where it says nothing."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__

"""`fix-fp16 doctor`: what this machine can do."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
from collections.abc import Iterator

import click
import onnx
import onnxruntime

from overflow_fixer import __version__


@click.command("doctor")
def doctor_command() -> None:
    """Say what this machine can do: libraries, ONNX Runtime's providers, the GPU, TensorRT."""
    for name, text in (*_libraries(), ("GPU", _describe_gpu()), ("TensorRT", _describe_tensorrt())):
        click.echo(f"{name:<16} {text}")


def _libraries() -> Iterator[tuple[str, str]]:
    yield "overflow_fixer", f"{__version__} on Python {platform.python_version()}"
    yield "onnx", f"{onnx.__version__}, opsets 9 to {onnx.defs.onnx_opset_version()}"
    yield (
        "onnxruntime",
        f"{onnxruntime.__version__}, providers {', '.join(onnxruntime.get_available_providers())}",
    )


def _describe_gpu() -> str:
    """Asks the CUDA driver itself, which is the only thing that can be asked safely without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "none: the CUDA driver is not installed"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "none: the CUDA driver finds no device"
    return f"{count.value} found by the CUDA driver"


def _describe_tensorrt() -> str:
    if importlib.util.find_spec("tensorrt") is None:
        return "not installed; the typed model that fix-fp16 builds is for TensorRT 10.12 or newer elsewhere"
    return "installed; this version of fix-fp16 builds typed models, not engines"

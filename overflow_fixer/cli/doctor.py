"""`fix-fp16 doctor`: what this machine can do."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import click
import onnx
import onnxruntime

from overflow_fixer import __version__
from overflow_fixer.backends.tensorrt.capabilities import import_tensorrt, is_installed, probe
from overflow_fixer.backends.tensorrt.cuda import open_device
from overflow_fixer.cli.results import say
from overflow_fixer.cli.verb import TellsHelp
from overflow_fixer.errors import BackendError
from overflow_fixer.model_file.opsets import MIN_OPSET
from overflow_fixer.sessions.providers import Provider, find_lack


@click.command("doctor", cls=TellsHelp)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def doctor_command(debug: bool) -> None:
    """Say what this machine can do: libraries, ONNX Runtime's providers, the GPU, TensorRT."""
    told = (*_libraries(), *_providers(), ("GPU", _describe_gpu()), ("TensorRT", _describe_tensorrt()))
    for name, text in told:
        say(f"{name:<16} {text}")


def _libraries() -> Iterator[tuple[str, str]]:
    yield "overflow_fixer", f"{__version__} on Python {platform.python_version()}"
    yield "onnx", f"{onnx.__version__}, opsets {MIN_OPSET} to {onnx.defs.onnx_opset_version()}"
    yield (
        "onnxruntime",
        f"{onnxruntime.__version__}, providers {', '.join(onnxruntime.get_available_providers())}",
    )


def _providers() -> Iterator[tuple[str, str]]:
    """Each is tried, for one that onnxruntime lists need not load."""
    asked: tuple[Provider, ...] = ("cuda", "tensorrt")
    for provider in asked:
        lack = find_lack(provider)
        yield f"scan on {provider}", "works" if lack is None else f"no: {lack}"


def _describe_gpu() -> str:
    """Asks the CUDA driver itself, which is the only thing that can be asked safely without one."""
    try:
        device = open_device()
    except BackendError as error:
        text = str(error).split(". ")[0]
        return text[0].lower() + text[1:]
    major, minor = device.compute_capability
    gib = device.free_bytes() / 2**30
    return f"{device.name}, compute capability {major}.{minor}, {gib:.0f} GiB free, CUDA {device.cuda_version} driver"


def _describe_tensorrt() -> str:
    if not is_installed():
        return "not installed; the typed model that fix-fp16 builds is for TensorRT 10.12 or newer elsewhere"
    try:
        found = probe(import_tensorrt())
    except BackendError as error:
        return str(error)
    modes = " and ".join(mode for mode, can in (("weak", found.weak), ("strong", found.strong)) if can)
    return f"{found.version}, {modes} typing; --typing auto is {found.default_typing}"

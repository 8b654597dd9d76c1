"""Whether engines can be built here, and if not what is missing. Safe to ask on any machine."""

from __future__ import annotations

from overflow_fixer.backends.tensorrt.capabilities import import_tensorrt, is_installed, probe
from overflow_fixer.backends.tensorrt.cuda import list_devices, open_device
from overflow_fixer.errors import BackendError


def require() -> str:
    """What engines are built with here, such as "TensorRT 8.6.0 on NVIDIA H200".

    Raises BackendError naming what is missing: the GPU, TensorRT, or a TensorRT that is new enough.
    """
    device = open_device()
    found = probe(import_tensorrt())
    return f"TensorRT {found.version} on {device.name}"


def find_lack() -> str | None:
    """What is missing to build engines, in a few words; None where nothing is."""
    if not is_installed():
        return "TensorRT is not installed here"
    if not list_devices():
        return "there is no GPU here"
    try:
        require()
    except BackendError as error:
        return str(error).split(". ")[0]
    return None

"""The CUDA driver through ctypes: one ABI for CUDA 11 to 13, and it comes with the driver itself.

TensorRT uses the device's primary context; so does everything here. Nothing touches CUDA before
`open_device` is called, and without a driver or a device it raises instead of crashing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from overflow_fixer.errors import BackendError
from overflow_fixer.records import Array

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_COMPUTE_CAPABILITY = (75, 76)
_NON_BLOCKING = 1
_SIGNATURES: dict[str, Sequence[Any]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid": (c_char_p, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class Device:
    """The first GPU, its primary context made current on this thread, with one stream."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        handle = c_int()
        self._call("cuDeviceGet", byref(handle), 0)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, 256, handle)
        self.name = name.value.decode()
        major, minor = (self._attribute(handle, which) for which in _COMPUTE_CAPABILITY)
        self.compute_capability = (major, minor)
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        self.cuda_version = f"{version.value // 1000}.{version.value % 1000 // 10}"
        self._context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), handle)
        self.make_current()
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        self.stream = int(stream.value or 0)

    def make_current(self) -> None:
        """Use the device on the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size_bytes: int) -> Buffer:
        """Device memory of at least `size_bytes` (never 0: TensorRT refuses null addresses)."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), max(size_bytes, 256))
        return Buffer(self, int(address.value), max(size_bytes, 256))

    def upload(self, array: Array, buffer: Buffer) -> None:
        """Copy a contiguous array to the device and wait for it."""
        contiguous = np.ascontiguousarray(array)
        self._call(
            "cuMemcpyHtoDAsync_v2", buffer.address, contiguous.ctypes.data, contiguous.nbytes, self.stream
        )
        self.synchronize()

    def download(self, buffer: Buffer, array: Array) -> None:
        """Fill a contiguous array from the device and wait for it."""
        self._call("cuMemcpyDtoHAsync_v2", array.ctypes.data, buffer.address, array.nbytes, self.stream)
        self.synchronize()

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", self.stream)

    def create_event(self) -> int:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), 0)
        return int(event.value or 0)

    def record(self, event: int) -> None:
        self._call("cuEventRecord", event, self.stream)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Milliseconds between two recorded events; waits for the second."""
        self._call("cuEventSynchronize", end)
        found = c_float()
        self._call("cuEventElapsedTime", byref(found), start, end)
        return float(found.value)

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return int(free.value)

    def release(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def _attribute(self, handle: c_int, which: int) -> int:
        value = c_int()
        self._call("cuDeviceGetAttribute", byref(value), which, handle)
        return int(value.value)

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code != 0:
            text = c_char_p()
            self._driver.cuGetErrorString(code, byref(text))
            reason = (text.value or b"unknown error").decode()
            raise BackendError(
                f"The CUDA driver refused {function}: {reason} (code {code}). Expected a GPU that answers, with "
                "memory left. Look at nvidia-smi; free the GPU or use a smaller batch."
            )


class Buffer:
    """Device memory, freed when dropped."""

    def __init__(self, device: Device, address: int, size_bytes: int) -> None:
        self._device, self.address, self.size_bytes = device, address, size_bytes

    def __del__(self) -> None:
        if self.address and not sys.is_finalizing():
            with suppress(BackendError):  # a GPU that failed refuses this too, and was reported
                self._device.release(self.address)
            self.address = 0


@lru_cache(maxsize=1)
def open_device() -> Device:
    """The GPU. Raises BackendError with one sentence where there is no driver or no device."""
    driver, count = _count_devices()
    if driver is None or count == 0:
        raise BackendError(
            "No GPU: the CUDA driver is missing or finds no device. Expected an NVIDIA GPU, to build or run an engine. "
            "Run this on the machine with the GPU, or build the typed model with --backend onnx."
        )
    return Device(driver)


def list_devices() -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may name each GPU that this process can use; none where there is no driver.

    Only counts and names them: no context is made, no memory taken. The variable itself is heeded.
    """
    driver, count = _count_devices()
    if driver is None or count == 0:
        return ()
    if count == 1:
        return (os.environ.get("CUDA_VISIBLE_DEVICES", "0"),)
    return tuple(_name_device(driver, index) for index in range(count))


def _name_device(driver: ctypes.CDLL, index: int) -> str:
    """By its UUID, which is the same whatever is visible; by its number where the driver does not tell."""
    found = ctypes.create_string_buffer(16)
    if driver.cuDeviceGetUuid(found, index) != 0:
        return str(index)
    return f"GPU-{uuid.UUID(bytes=found.raw)}"


def _count_devices() -> tuple[ctypes.CDLL | None, int]:
    """The driver, started, and how many devices it finds; None and 0 where it is missing or refuses."""
    driver, count = _load_driver(), c_int()
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(byref(count)) != 0:
        return None, 0
    return driver, count.value


def _load_driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(driver, name)
        function.argtypes, function.restype = list(arguments), c_int
    return driver

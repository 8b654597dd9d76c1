"""A GPU that is this machine's memory: a CUDA driver in Python under the package's own Device.

`use_standin_gpu` puts it, and a fake TensorRT, where the package looks for the real ones.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from overflow_fixer.backends.tensorrt import cuda, logger, network, timings


class StandInDriver:
    """The driver's functions. Addresses are real, so that what is uploaded can be read from them.

    `allocated` maps an address to its memory; `fails` maps a function's name to the code that it returns;
    `elapsed_ms` are the times between events, one a question, the last one over and over.
    """

    def __init__(self, compute_capability: tuple[int, int] = (9, 0), devices: int = 1) -> None:
        self.compute_capability, self.devices = compute_capability, devices
        self.allocated: dict[int, Any] = {}
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []
        self.elapsed_ms = [1.0]
        self._events = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            self.calls.append(name)
            code = self.fails.get(name, 0)
            if code:
                return lambda *_: code
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:  # noqa: N802
        handle._obj.value = ordinal
        return 0

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:  # noqa: N802
        name.value = b"Stand-in GPU"
        return 0

    def cuDeviceGetUuid(self, uuid: Any, handle: int) -> int:  # noqa: N802
        uuid[:] = bytes([handle] * 16)
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, handle: Any) -> int:  # noqa: N802
        value._obj.value = self.compute_capability[{75: 0, 76: 1}[which]]
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 12040
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> int:  # noqa: N802
        context._obj.value = 1
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:  # noqa: N802
        stream._obj.value = 7
        return 0

    def cuStreamSynchronize(self, stream: int) -> int:  # noqa: N802
        return 0

    def cuMemAlloc_v2(self, address: Any, size: int) -> int:  # noqa: N802
        memory = ctypes.create_string_buffer(size)
        address._obj.value = ctypes.addressof(memory)
        self.allocated[ctypes.addressof(memory)] = memory
        return 0

    def cuMemFree_v2(self, address: int) -> int:  # noqa: N802
        del self.allocated[address]
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value, total._obj.value = 3 << 30, 4 << 30
        return 0

    def cuMemcpyHtoDAsync_v2(self, address: int, source: int, size: int, stream: int) -> int:  # noqa: N802
        return self._copy(address, source, size, address)

    def cuMemcpyDtoHAsync_v2(self, target: int, address: int, size: int, stream: int) -> int:  # noqa: N802
        return self._copy(target, address, size, address)

    def cuEventCreate(self, event: Any, flags: int) -> int:  # noqa: N802
        self._events += 1
        event._obj.value = self._events
        return 0

    def cuEventRecord(self, event: int, stream: int) -> int:  # noqa: N802
        return 0

    def cuEventSynchronize(self, event: int) -> int:  # noqa: N802
        return 0

    def cuEventElapsedTime(self, found: Any, start: int, end: int) -> int:  # noqa: N802
        found._obj.value = self.elapsed_ms.pop(0) if len(self.elapsed_ms) > 1 else self.elapsed_ms[0]
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = {2: b"out of memory", 700: b"an illegal memory access"}.get(code)
        return 0

    def _copy(self, target: int, source: int, size: int, on_device: int) -> int:
        memory = self.allocated.get(on_device)
        if memory is None or size > len(memory):
            return 700
        ctypes.memmove(target, source, size)
        return 0


@contextmanager
def use_standin_gpu(trt: Any, driver: StandInDriver | None = None) -> Iterator[StandInDriver]:
    """Put the driver, and `trt` as the module tensorrt; what the package keeps of either is dropped."""
    driver = driver or StandInDriver()
    kept = (cuda.open_device, logger.make_logger, network.open_builder)
    with pytest.MonkeyPatch.context() as patch:
        for function in kept:
            function.cache_clear()
        patch.setattr(cuda, "_load_driver", lambda: driver)
        patch.setattr(timings, "_MAPS", Path("no cuDNN is loaded"))
        trt.__spec__ = ModuleSpec("tensorrt", None, origin="a fake")
        patch.setitem(sys.modules, "tensorrt", trt)
        yield driver
    for function in kept:
        function.cache_clear()

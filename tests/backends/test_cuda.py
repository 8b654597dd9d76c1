"""The CUDA driver: what is asked of it, and one paragraph where it is missing or refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_tensorrt import Script, fake_tensorrt
from standin_gpu import StandInDriver, use_standin_gpu

from overflow_fixer.backends.tensorrt import cuda
from overflow_fixer.backends.tensorrt.availability import find_lack, require
from overflow_fixer.backends.tensorrt.cuda import list_devices, open_device
from overflow_fixer.errors import BackendError

_REAL_LOADER = cuda._load_driver


@pytest.fixture
def driver() -> Iterator[StandInDriver]:
    with use_standin_gpu(fake_tensorrt("8.6", Script())) as found:
        yield found


def _refuse_library(name: str, *_: Any) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def _refusal() -> str:
    with pytest.raises(BackendError) as error:
        open_device()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_a_driver_there_is_no_gpu(driver: StandInDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_load_driver", _REAL_LOADER)
    monkeypatch.setattr(ctypes, "CDLL", _refuse_library)
    assert _refusal().startswith(
        "No GPU: the CUDA driver is missing or finds no device. Expected an NVIDIA GPU, to build or run an engine"
    )


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetCount"])
def test_a_driver_that_does_not_start_is_no_gpu(driver: StandInDriver, function: str) -> None:
    driver.fails[function] = 100
    assert _refusal().startswith("No GPU")


def test_no_device_is_no_gpu(driver: StandInDriver) -> None:
    driver.devices = 0
    assert _refusal().startswith("No GPU")
    assert find_lack() == "there is no GPU here"


def test_devices_are_named_as_cuda_visible_devices_takes_them(
    driver: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert list_devices() == ("3",)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert list_devices() == ("0",)
    driver.devices = 2
    uuids = "GPU-00000000-0000-0000-0000-000000000000", "GPU-01010101-0101-0101-0101-010101010101"
    assert list_devices() == uuids
    driver.fails["cuDeviceGetUuid"] = 1
    assert list_devices() == ("0", "1")
    driver.fails["cuInit"] = 100
    assert list_devices() == ()
    assert "cuDevicePrimaryCtxRetain" not in driver.calls


def test_a_driver_that_refuses_says_why(driver: StandInDriver) -> None:
    device = open_device()
    driver.fails["cuMemAlloc_v2"] = 2
    with pytest.raises(BackendError, match=r"refused cuMemAlloc_v2: out of memory \(code 2\)\. Expected"):
        device.allocate(100)
    driver.fails["cuMemAlloc_v2"] = 999
    with pytest.raises(BackendError, match=r"unknown error \(code 999\)"):
        device.allocate(100)


def test_the_device_is_known_by_name_and_capability(driver: StandInDriver) -> None:
    device = open_device()
    assert (device.name, device.compute_capability, device.cuda_version) == ("Stand-in GPU", (9, 0), "12.4")
    assert device.stream == 7
    assert device.free_bytes() == 3 << 30
    assert open_device() is device
    assert require() == "TensorRT 8.6.1 on Stand-in GPU"
    assert find_lack() is None


def test_arrays_come_back_as_they_went(driver: StandInDriver) -> None:
    device = open_device()
    sent = np.arange(100, dtype=np.float32).reshape(10, 10).T
    buffer = device.allocate(sent.nbytes)
    device.upload(sent, buffer)
    found = np.empty((10, 10), np.float32)
    device.download(buffer, found)
    np.testing.assert_array_equal(found, sent)


def test_memory_is_never_empty_and_is_freed_once(driver: StandInDriver) -> None:
    buffer = open_device().allocate(0)
    assert buffer.size_bytes == 256
    assert list(driver.allocated) == [buffer.address]
    del buffer
    assert driver.allocated == {}
    assert driver.calls.count("cuMemFree_v2") == 1


def test_every_function_that_is_called_is_declared(driver: StandInDriver) -> None:
    device = open_device()
    array = np.zeros(4, np.float32)
    buffer = device.allocate(array.nbytes)
    device.upload(array, buffer)
    device.download(buffer, array)
    events = device.create_event(), device.create_event()
    device.record(events[0])
    assert device.elapsed_ms(*events) == 1.0
    device.free_bytes()
    driver.devices = 2
    list_devices()
    driver.fails["cuCtxSetCurrent"] = 2
    with pytest.raises(BackendError):
        device.make_current()
    del buffer
    assert set(driver.calls) == set(cuda._SIGNATURES)

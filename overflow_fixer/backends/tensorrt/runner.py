"""An engine run on the GPU: named inputs and outputs, dynamic shapes, outputs whose shape depends on data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from overflow_fixer.backends.tensorrt.cuda import Buffer, Device, open_device
from overflow_fixer.backends.tensorrt.logger import last_errors, make_logger
from overflow_fixer.errors import BackendError
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.records import Array, Batch, ShapeRange

_DTYPES: dict[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
}


class EngineRunner:
    """A Runner over a deserialized engine, on the device's one stream.

    Feeds are cast to what the engine takes (8.x has INT32 where the model says INT64); integers that do
    not fit raise BackendError. Outputs come as the engine has them.
    """

    def __init__(self, trt: Any, plan: bytes) -> None:
        self._trt, self._device, self._logger = trt, open_device(), make_logger(trt)
        self._device.make_current()
        self._logger.forget()
        self._runtime = trt.Runtime(self._logger)
        self.engine = self._runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise BackendError(
                f"TensorRT {trt.__version__} cannot load the engine: {last_errors(self._logger)}. Expected one built by "
                "this TensorRT on this kind of GPU. Build it again here with fix-fp16 build."
            )
        self.context = self.engine.create_execution_context()
        if self.context is None:
            raise self._refusal("make an execution context for the engine")
        names = [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]
        self.input_names = tuple(n for n in names if self._mode(n) == trt.TensorIOMode.INPUT)
        self.output_names: tuple[str, ...] = tuple(
            n for n in names if self._mode(n) == trt.TensorIOMode.OUTPUT
        )
        self._inputs: dict[str, Buffer | Array] = {}
        self._outputs: dict[str, Any] = {}
        self._unsized: frozenset[str] | None = None

    def __del__(self) -> None:
        """TensorRT wants the context dropped before its engine, that before the runtime, and buffers last."""
        for name in ("context", "engine", "_runtime", "_inputs", "_outputs"):
            self.__dict__.pop(name, None)

    def run(self, batch: Batch) -> dict[str, Array]:
        """Run one batch. Raises BackendError naming the batch where the engine does not take or run it."""
        self.bind(batch)
        self.enqueue()
        self._device.synchronize()
        return {name: self._fetch(name) for name in self.output_names}

    def set_shapes(self, shapes: Mapping[str, ShapeRange]) -> None:
        """Fix the usual shape of every open input, without data: what the inspector needs to tell types."""
        for name in self.input_names:
            known = shapes.get(name)
            if known is None:
                continue
            if self._is_on_host(name) and known.values is not None:
                array: Array = np.require(known.values[1], self._dtype(name), ["C", "A"])
                self._inputs[name] = array
                self.context.set_tensor_address(name, array.ctypes.data)
            if -1 in tuple(self.engine.get_tensor_shape(name)):
                self.context.set_input_shape(name, known.opt)
        self.context.infer_shapes()

    def bind(self, batch: Batch) -> None:
        """Put a batch's inputs on the device and give every output room; `enqueue` then runs it."""
        self._device.make_current()
        for name in self.input_names:
            self._bind_input(name, batch)
        missing = self.context.infer_shapes()
        if missing:
            raise self._refusal(f"tell the shapes of {', '.join(missing)} on batch {batch.name}")
        if self._unsized is None:  # once it has run, TensorRT tells the last size
            self._unsized = frozenset(
                n for n in self.output_names if -1 in tuple(self.context.get_tensor_shape(n))
            )
        for name in self.output_names:
            self._bind_output(name)

    def enqueue(self) -> None:
        """Start one inference on what is bound; returns before it ends."""
        if not self.context.execute_async_v3(self._device.stream):
            raise self._refusal("run the engine")

    def _bind_input(self, name: str, batch: Batch) -> None:
        array = self._cast(name, batch)
        if not self._is_on_host(name) or tuple(self.engine.get_tensor_shape(name)) != array.shape:
            self._set_shape(name, array, batch)
        if self._is_on_host(name):
            self._inputs[name] = array
            self.context.set_tensor_address(name, array.ctypes.data)
            return
        buffer = self._inputs.get(name)
        if not isinstance(buffer, Buffer) or buffer.size_bytes < array.nbytes:
            buffer = self._inputs[name] = self._device.allocate(array.nbytes)
        self._device.upload(array, buffer)
        self.context.set_tensor_address(name, buffer.address)

    def _set_shape(self, name: str, array: Array, batch: Batch) -> None:
        if self.context.set_input_shape(name, tuple(array.shape)):
            return
        bounds = self.engine.get_tensor_profile_shape(name, 0)
        told = " / ".join("x".join(map(str, tuple(shape))) for shape in bounds)
        raise BackendError(
            f"The engine does not take input {name!r} of batch {batch.name}: its shape is {list(array.shape)}. Expected "
            f"one within the profile that it was built for (min / opt / max): {told}. Build it again with --profile "
            f"{name}:MIN:OPT:MAX that covers the data."
        )

    def _cast(self, name: str, batch: Batch) -> Array:
        if name not in batch.feeds:
            raise BackendError(
                f"The engine wants an input {name!r}, and batch {batch.name} has {', '.join(batch.feeds) or 'none'}. Expected "
                "an engine of this model. Build it again with fix-fp16 build."
            )
        array = np.asarray(batch.feeds[name])
        wanted = self._dtype(name)
        if wanted == np.float16 and array.dtype != np.float16:
            cast = round_to_fp16(array)
        else:
            cast = array.astype(wanted, order="C", copy=False)
        if array.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise BackendError(
                f"Input {name!r} of batch {batch.name} holds {array.min()} to {array.max()}, which the engine's "
                f"{np.dtype(wanted).name} cannot. Expected values that fit: this TensorRT has no wider integers. Use "
                "TensorRT 10 or newer, or other data."
            )
        aligned: Array = np.require(cast, requirements=["C", "A"])
        return aligned

    def _bind_output(self, name: str) -> None:
        kept = self._outputs.get(name)
        if self._unsized and name in self._unsized:
            if kept is None:
                self._outputs[name] = _make_allocator(self._trt, self._device)
                self.context.set_output_allocator(name, self._outputs[name])
            return
        array = np.empty(tuple(self.context.get_tensor_shape(name)), self._dtype(name))
        if self._is_on_host(name):
            self._outputs[name] = array
            self.context.set_tensor_address(name, array.ctypes.data)
            return
        buffer = kept[0] if isinstance(kept, tuple) else None
        if buffer is None or buffer.size_bytes < array.nbytes:
            buffer = self._device.allocate(array.nbytes)
        self._outputs[name] = (buffer, array)
        self.context.set_tensor_address(name, buffer.address)

    def _fetch(self, name: str) -> Array:
        found = self._outputs[name]
        if isinstance(found, np.ndarray):
            copied: Array = found.copy()
            return copied
        is_known = isinstance(found, tuple)
        buffer: Buffer = found[0] if is_known else found.buffer
        array: Array = np.empty(found[1].shape if is_known else found.fetch_shape(), self._dtype(name))
        if array.nbytes:
            self._device.download(buffer, array)
        return array

    def _mode(self, name: str) -> Any:
        return self.engine.get_tensor_mode(name)

    def _is_on_host(self, name: str) -> bool:
        return bool(self.engine.get_tensor_location(name) == self._trt.TensorLocation.HOST)

    def _dtype(self, name: str) -> Any:
        dtype = self.engine.get_tensor_dtype(name).name
        if dtype not in _DTYPES:
            raise BackendError(
                f"Tensor {name!r} of the engine is of type {dtype}, which cannot be compared here. Expected inputs and "
                f"outputs of {', '.join(_DTYPES)}. Cast it in the model."
            )
        return _DTYPES[dtype]

    def _refusal(self, what: str) -> BackendError:
        return BackendError(
            f"TensorRT {self._trt.__version__} could not {what}: {last_errors(self._logger)}. Expected an engine that "
            "runs the calibration data. Look at free GPU memory (nvidia-smi) and at the shapes of the data."
        )


def _make_allocator(trt: Any, device: Device) -> Any:
    """An output whose size TensorRT tells while it runs."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer = device.allocate(0)
            self._shape: tuple[int, ...] = ()

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            if size > self.buffer.size_bytes:
                self.buffer = device.allocate(size)
            return self.buffer.address

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self._shape = tuple(shape)

        def fetch_shape(self) -> tuple[int, ...]:
            return self._shape

    return Allocator()

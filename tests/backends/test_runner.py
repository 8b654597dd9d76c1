"""Engines run: what is fed, in which type and where; what comes back; what is refused."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_tensorrt import IoSpec, Plan, Script, fake_tensorrt
from hypothesis import given
from hypothesis import strategies as st
from standin_gpu import StandInDriver, use_standin_gpu

from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.errors import BackendError
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.records import Batch, ShapeRange

_DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT32": np.int32,
    "INT64": np.int64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "BOOL": np.bool_,
}
Arrays = Mapping[str, np.ndarray]


def _write(address: int, array: np.ndarray) -> None:
    ctypes.memmove(address, array.ctypes.data, array.nbytes)


def _make_context(trt: Any, compute: Callable[[Arrays], Arrays]) -> type:
    """An execution context that really computes: from the addresses that it was given, to those."""

    class Context(trt.IExecutionContext):  # type: ignore[misc]
        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return tuple(self._shapes[name])

        def execute_async_v3(self, stream_handle: int) -> bool:
            if stream_handle != 7 or not super().execute_async_v3(stream_handle):
                return False
            specs = self._engine._io
            inputs = {name: self._read(name, spec) for name, spec in specs.items() if spec.mode == "INPUT"}
            for name, value in compute(inputs).items():
                self._put(name, np.ascontiguousarray(value, _DTYPES[specs[name].dtype]))
            return True

        def _read(self, name: str, spec: IoSpec) -> np.ndarray:
            dtype, shape = np.dtype(_DTYPES[spec.dtype]), self._shapes[name]
            content = ctypes.string_at(self._addresses[name], dtype.itemsize * math.prod(shape))
            return np.frombuffer(content, dtype).reshape(shape)

        def _put(self, name: str, value: np.ndarray) -> None:
            allocator = self._allocators.get(name)
            if allocator is None:
                _write(self._addresses[name], value)
                return
            _write(allocator.reallocate_output(name, 0, value.nbytes, 256), value)
            allocator.notify_shape(name, value.shape)

    return Context


@contextmanager
def _open(
    *io: IoSpec, compute: Callable[[Arrays], Arrays] = lambda inputs: {}, variant: Any = "8.6"
) -> Iterator[EngineRunner]:
    trt = fake_tensorrt(variant, Script(engines={b"engine": Plan(io=io)}))
    trt.IExecutionContext = _make_context(trt, compute)
    with use_standin_gpu(trt):
        yield EngineRunner(trt, b"engine")


def _batch(**feeds: Any) -> Batch:
    return Batch("batch 3", {name: np.asarray(value) for name, value in feeds.items()})


def _double(dtype: str = "FLOAT", shape: tuple[int, ...] = (2, 3)) -> tuple[IoSpec, IoSpec]:
    return IoSpec("x", "INPUT", dtype, shape), IoSpec("y", "OUTPUT", dtype, shape)


def _hand_on(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"]}


def _text(error: pytest.ExceptionInfo[Any]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- there and back


def test_what_goes_in_is_computed_with_and_comes_back() -> None:
    io = (
        IoSpec("a", "INPUT", shape=(2, 3)),
        IoSpec("b", "INPUT", shape=(3,)),
        IoSpec("y", "OUTPUT", shape=(2, 3)),
    )
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([10, 20, 30], np.float32)
    with _open(*io, compute=lambda inputs: {"y": inputs["a"] + inputs["b"]}) as runner:
        assert (runner.input_names, runner.output_names) == (("a", "b"), ("y",))
        found = runner.run(_batch(a=a, b=b))
        assert list(found) == ["y"]
        np.testing.assert_array_equal(found["y"], a + b)
        again = runner.run(_batch(a=-a, b=b))
        np.testing.assert_array_equal(again["y"], b - a)
        np.testing.assert_array_equal(found["y"], a + b)


def test_arrays_in_any_layout_are_fed_right() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    with _open(*_double(), compute=_hand_on) as runner:
        for array in (x.T, np.asfortranarray(x.T), np.stack([x.T, x.T], axis=-1)[..., 0], x.T.astype(">f4")):
            np.testing.assert_array_equal(runner.run(_batch(x=array))["y"], x.T)


def test_memory_is_used_again_and_grows_with_the_batch() -> None:
    profile = ((1, 64), (8, 64), (64, 64))
    io = IoSpec("x", "INPUT", shape=(-1, 64), profile=profile), IoSpec("y", "OUTPUT", shape=(-1, 64))
    with _open(*io, compute=_hand_on) as runner:
        driver: Any = runner._device._driver
        sizes = []
        for rows in (8, 8, 1, 64, 8):
            x = np.full((rows, 64), rows, np.float32)
            np.testing.assert_array_equal(runner.run(_batch(x=x))["y"], x)
            sizes.append(sorted(len(memory) for memory in driver.allocated.values()))
    assert sizes == [[2048, 2048]] * 3 + [[16384, 16384]] * 2


def test_an_input_of_rank_0_keeps_its_shape() -> None:
    io = IoSpec("x", "INPUT", shape=()), IoSpec("y", "OUTPUT", shape=())
    with _open(*io, compute=_hand_on) as runner:
        found = runner.run(_batch(x=np.float32(2.5)))
    assert found["y"].shape == ()
    assert found["y"] == np.float32(2.5)


def test_an_empty_input_has_an_address_and_an_empty_output_comes_back() -> None:
    io = (
        IoSpec("x", "INPUT", shape=(-1, 4), profile=((0, 4), (0, 4), (2, 4))),
        IoSpec("y", "OUTPUT", shape=(-1, 4)),
    )
    with _open(*io, compute=_hand_on) as runner:
        found = runner.run(_batch(x=np.zeros((0, 4), np.float32)))
        assert runner.context._addresses["x"] != 0
    assert (found["y"].shape, found["y"].dtype) == ((0, 4), np.float32)


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("FLOAT", np.array([[1.5, -2, np.inf], [np.nan, 0, 3]], np.float32)),
        ("FLOAT", np.array([[1.5, -2, 0], [1, 0, 3]], np.float64)),
        ("HALF", np.array([[1.5, -2, np.inf], [np.nan, 0, 3]], np.float16)),
        ("INT32", np.array([[1, -2, 3], [2**31 - 1, -(2**31), 0]], np.int64)),
        ("INT32", np.array([[1, 0, 3], [4, 5, 6]], np.uint8)),
        ("INT8", np.array([[-128, 127, 0], [1, 2, 3]], np.int8)),
        ("UINT8", np.array([[255, 127, 0], [1, 2, 3]], np.uint8)),
        ("BOOL", np.array([[True, False, True], [False, False, True]])),
    ],
)
def test_values_that_fit_are_cast_to_what_the_engine_takes(dtype: str, array: np.ndarray) -> None:
    with _open(*_double(dtype), compute=_hand_on) as runner:
        found = runner.run(_batch(x=array))["y"]
    assert found.dtype == _DTYPES[dtype]
    np.testing.assert_array_equal(found, array)


def test_newer_releases_take_int64_as_it_is() -> None:
    array = np.array([[2**40, -(2**40), 0], [1, 2, 3]])
    with _open(*_double("INT64"), compute=_hand_on, variant="10.0") as runner:
        found = runner.run(_batch(x=array))["y"]
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_that_does_not_fit_is_refused(value: int) -> None:
    array = np.array([[0, 1, 2], [3, 4, value]])
    with _open(*_double("INT32"), compute=_hand_on) as runner, pytest.raises(BackendError) as error:
        runner.run(_batch(x=array))
    assert _text(error).startswith(
        f"Input 'x' of batch batch 3 holds {array.min()} to {array.max()}, which the engine's int32 cannot. Expected"
    )


def test_floats_fed_to_fp16_are_rounded_as_fp16_hardware_does() -> None:
    array = np.array([[65519.99, 65520, -1e30], [1 + 2**-11, 1 + 3 * 2**-11, 6e-8]], np.float32)
    with _open(*_double("HALF"), compute=_hand_on) as runner, np.errstate(all="raise"):
        found = runner.run(_batch(x=array))["y"]
    expected = np.array([[65504, np.inf, -np.inf], [1, 1 + 2**-9, 2**-24]], np.float16)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected)


@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=6, max_size=6))
def test_every_float_is_rounded_to_its_fp16(values: list[float]) -> None:
    array = np.array(values, np.float32).reshape(2, 3)
    with _open(*_double("HALF"), compute=_hand_on) as runner:
        found = runner.run(_batch(x=array))["y"]
    np.testing.assert_array_equal(found, round_to_fp16(array))


def test_a_type_that_cannot_be_compared_is_refused() -> None:
    with _open(*_double("BF16"), variant="10.0") as runner, pytest.raises(BackendError) as error:
        runner.run(_batch(x=np.zeros((2, 3), np.float32)))
    assert _text(error).startswith(
        "Tensor 'x' of the engine is of type BF16, which cannot be compared here. Expected"
    )


# ---------------------------------------------------------------- shapes


def test_a_shape_outside_the_profile_is_refused_with_the_profile() -> None:
    io = (
        IoSpec("x", "INPUT", shape=(-1, 4), profile=((1, 4), (2, 4), (8, 4))),
        IoSpec("y", "OUTPUT", shape=(-1, 4)),
    )
    with _open(*io, compute=_hand_on) as runner:
        runner.run(_batch(x=np.zeros((8, 4), np.float32)))
        for shape in ((9, 4), (1, 5), (4,)):
            with pytest.raises(BackendError) as error:
                runner.run(_batch(x=np.zeros(shape, np.float32)))
            text = _text(error)
            assert text.startswith(
                f"The engine does not take input 'x' of batch batch 3: its shape is {list(shape)}. Expected one within "
                "the profile that it was built for (min / opt / max): 1x4 / 2x4 / 8x4."
            )
            assert "--profile x:MIN:OPT:MAX" in text


def test_shapes_that_tensorrt_cannot_tell_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with _open(*_double(), compute=_hand_on) as runner:
        monkeypatch.setattr(type(runner.context), "infer_shapes", lambda _: ["x"])
        with pytest.raises(
            BackendError, match=r"could not tell the shapes of x on batch batch 3: it gave no reason"
        ):
            runner.run(_batch(x=np.zeros((2, 3), np.float32)))


def test_an_output_whose_shape_depends_on_data_is_allocated_as_it_comes() -> None:
    """Once more, once less, then none: nothing is left over, and memory is kept where it suffices."""
    io = IoSpec("x", "INPUT", shape=(2, 3)), IoSpec("y", "OUTPUT", "INT32", (2, -1))
    with _open(*io, compute=lambda inputs: {"y": np.stack(np.nonzero(inputs["x"]))}) as runner:
        for text in ("100000", "111111", "001100", "000000"):
            x = np.array(list(text), np.float32).reshape(2, 3)
            found = runner.run(_batch(x=x))["y"]
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, np.stack(np.nonzero(x)))


def test_a_large_output_of_unknown_shape_gets_the_room_it_asks_for() -> None:
    io = IoSpec("x", "INPUT", shape=(2, 3)), IoSpec("y", "OUTPUT", shape=(-1,))
    with _open(*io, compute=lambda inputs: {"y": np.repeat(inputs["x"], 200)}) as runner:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(runner.run(_batch(x=x))["y"], np.repeat(x, 200))


# ---------------------------------------------------------------- inputs and outputs on the host


_HOST = (
    IoSpec("x", "INPUT", shape=(-1,), profile=((1,), (6,), (64,))),
    IoSpec("size", "INPUT", "INT32", (2,), "HOST"),
    IoSpec("y", "OUTPUT", shape=(-1, -1)),
    IoSpec("told", "OUTPUT", "INT32", (2,), "HOST"),
)


def _reshape(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"].reshape(inputs["size"]), "told": inputs["size"]}


def test_a_shape_is_read_from_and_written_to_host_memory() -> None:
    with _open(*_HOST, compute=_reshape) as runner:
        driver: Any = runner._device._driver
        for size in ((2, 3), (3, 2), (6, 1)):
            x = np.arange(6, dtype=np.float32)
            found = runner.run(_batch(x=x, size=np.array(size)))
            np.testing.assert_array_equal(found["y"], x.reshape(size))
            assert tuple(found["told"]) == size
            assert not {runner.context._addresses[name] for name in ("size", "told")} & set(driver.allocated)
        assert found["told"].ctypes.data != runner.context._addresses["told"]


def test_the_usual_shapes_are_set_without_data() -> None:
    shapes = {
        "x": ShapeRange((1,), (6,), (64,)),
        "size": ShapeRange((2,), (2,), (2,), ((1, 1), (2, 3), (8, 8))),
        "other": ShapeRange((1,), (1,), (1,)),
    }
    with _open(*_HOST, compute=_reshape) as runner:
        runner.set_shapes(shapes)
        assert tuple(runner.context.get_tensor_shape("x")) == (6,)
        address = runner.context._addresses["size"]
        assert list(np.frombuffer(ctypes.string_at(address, 8), np.int32)) == [2, 3]
    with _open(*_HOST, compute=_reshape) as runner:
        runner.set_shapes({})
        assert tuple(runner.context.get_tensor_shape("x")) == (-1,)


# ---------------------------------------------------------------- failures


def test_a_foreign_engine_is_refused_in_tensorrts_words() -> None:
    trt = fake_tensorrt("8.6", Script())
    with use_standin_gpu(trt), pytest.raises(BackendError) as error:
        EngineRunner(trt, b"no engine")
    assert _text(error).startswith(
        "TensorRT 8.6.1 cannot load the engine: IRuntime::deserializeCudaEngine: Error Code 1: magic tag does not match."
    )


def test_no_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trt = fake_tensorrt("8.6", Script(engines={b"engine": Plan(io=_double())}))
    monkeypatch.setattr(trt.ICudaEngine, "create_execution_context", lambda _: None)
    with (
        use_standin_gpu(trt),
        pytest.raises(BackendError, match="could not make an execution context") as error,
    ):
        EngineRunner(trt, b"engine")
    _text(error)


def test_a_run_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with _open(*_double(), compute=_hand_on) as runner:
        monkeypatch.setattr(type(runner.context), "execute_async_v3", lambda *_: False)
        with pytest.raises(
            BackendError, match=r"TensorRT 8\.6\.1 could not run the engine: it gave no reason"
        ) as error:
            runner.run(_batch(x=np.zeros((2, 3), np.float32)))
        _text(error)


def test_a_full_gpu_is_refused() -> None:
    with _open(*_double(), compute=_hand_on) as runner:
        driver: Any = runner._device._driver
        driver.fails["cuMemAlloc_v2"] = 2
        with pytest.raises(BackendError, match="out of memory"):
            runner.run(_batch(x=np.zeros((2, 3), np.float32)))


def test_all_memory_is_given_back() -> None:
    driver = StandInDriver()
    trt = fake_tensorrt("8.6", Script(engines={b"engine": Plan(io=_HOST)}))
    trt.IExecutionContext = _make_context(trt, _reshape)
    with use_standin_gpu(trt, driver):
        runner = EngineRunner(trt, b"engine")
        runner.run(_batch(x=np.zeros(6, np.float32), size=np.array([2, 3])))
        assert driver.allocated
        del runner
        assert driver.allocated == {}


# ---------------------------------------------------------------- let go


def test_the_context_goes_before_its_engine_and_the_buffers_go_last() -> None:
    gone: list[str] = []
    io = (IoSpec("x", "INPUT", shape=(2, 3)), IoSpec("y", "OUTPUT", shape=(2, 3)))
    trt = fake_tensorrt("8.6", Script(engines={b"engine": Plan(io=io)}))
    for name in ("IExecutionContext", "ICudaEngine", "Runtime"):
        owner = _make_context(trt, _hand_on) if name == "IExecutionContext" else getattr(trt, name)
        setattr(trt, name, type(name, (owner,), {"__del__": lambda self, n=name: gone.append(n)}))
    with use_standin_gpu(trt) as driver:
        runner = EngineRunner(trt, b"engine")
        runner.run(_batch(x=np.zeros((2, 3), np.float32)))
        held = len(driver.allocated)
        driver.cuMemFree_v2 = lambda address: gone.append("a buffer") or 0  # type: ignore[method-assign]
        del runner
    assert held == 2
    assert gone == ["IExecutionContext", "ICudaEngine", "Runtime", "a buffer", "a buffer"]


def test_an_input_that_the_data_lacks_is_named() -> None:
    with _open(*_double(), compute=_hand_on) as runner, pytest.raises(BackendError) as error:
        runner.run(_batch(z=np.zeros((2, 3), np.float32)))
    assert _text(error).startswith("The engine wants an input 'x', and batch batch 3 has z. Expected")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_gpu_that_refuses_to_free_memory_says_nothing() -> None:
    trt = fake_tensorrt("8.6", Script(engines={b"engine": Plan(io=_double())}))
    trt.IExecutionContext = _make_context(trt, _hand_on)
    with use_standin_gpu(trt) as driver:
        runner = EngineRunner(trt, b"engine")
        runner.run(_batch(x=np.zeros((2, 3), np.float32)))
        driver.fails["cuMemFree_v2"] = 700
        del runner
        assert "cuMemFree_v2" in driver.calls

"""Engines run with what real models have: dynamic shapes, shapes that depend on data or are fed, booleans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from gpu_networks import (
    Feeds,
    Network,
    make_choice,
    make_dynamic_conv,
    make_lookup,
    make_non_zero,
    make_reshape_by_input,
    write_network,
)

from overflow_fixer.backends.tensorrt import emit, open_runner
from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.calibration import open_calibration, survey_shapes
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.records import Batch, BuildSettings, PrecisionPlan

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Opened:
    """A network with its engine, built for the shapes of its batches, and ONNX Runtime to compare with."""

    network: Network
    runner: EngineRunner
    session: onnxruntime.InferenceSession

    def run(self, feeds: Feeds) -> Feeds:
        return self.runner.run(Batch("a batch", feeds))

    def assert_right(self, feeds: Feeds) -> None:
        """Floats to FP16's precision, integers exactly; of the same shape."""
        found = self.run(feeds)
        names = [output.name for output in self.session.get_outputs()]
        for name, expected in zip(names, self.session.run(None, feeds), strict=True):
            is_float = expected.dtype.kind == "f"
            assert found[name].shape == expected.shape
            np.testing.assert_allclose(found[name], expected, **(_FP16 if is_float else _EXACT))


_FP16, _EXACT = {"rtol": 5e-3, "atol": 5e-3}, {"rtol": 0.0, "atol": 0.0}


@dataclass
class Engines:
    """Builds the engine of each network when it is first asked for; a failure is raised again."""

    folder: Path
    _opened: dict[str, Opened | Exception] = field(default_factory=dict)

    def __call__(self, make: Callable[[], Network]) -> Opened:
        name = make.__name__
        if name not in self._opened:
            try:
                self._opened[name] = _open(make(), self.folder / name)
            except Exception as error:
                self._opened[name] = error
        found = self._opened[name]
        if isinstance(found, Exception):
            raise found
        return found


def _open(network: Network, folder: Path) -> Opened:
    path, data = write_network(network, folder)
    graph = load_graph(path)
    settings = BuildSettings(shapes=survey_shapes(open_calibration(data, graph.inputs)))
    artifact = emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), folder / "model.engine", settings)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return Opened(network, open_runner(artifact, settings), session)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("runner"))


@pytest.mark.parametrize(
    "make",
    [make_dynamic_conv, make_non_zero, make_reshape_by_input, make_choice, make_lookup],
    ids=lambda make: make.__name__,
)
def test_every_batch_is_right_there_and_back(engines: Engines, make: Callable[[], Network]) -> None:
    """Forwards, then backwards: nothing is left over from a larger batch, nor from a smaller one."""
    opened = engines(make)
    for feeds in (*opened.network.batches, *reversed(opened.network.batches)):
        opened.assert_right(feeds)


def test_a_batch_inside_the_profile_that_was_never_seen_is_right(engines: Engines) -> None:
    image = np.random.RandomState(1).standard_normal((7, 3, 8, 8)).astype(np.float32)
    engines(make_dynamic_conv).assert_right({"image": image})


def test_a_batch_outside_the_profile_is_refused_with_both(engines: Engines) -> None:
    opened = engines(make_dynamic_conv)
    image = np.zeros((17, 3, 8, 8), np.float32)
    with pytest.raises(BackendError, match=r"'image' .*\[17, 3, 8, 8\].* 1x3x8x8 / .* / 16x3x8x8"):
        opened.run({"image": image})
    opened.assert_right({"image": image[:16]})


def test_an_output_whose_shape_depends_on_data_can_be_empty(engines: Engines) -> None:
    opened = engines(make_non_zero)
    shapes = [opened.run(feeds)["positions"].shape for feeds in opened.network.batches]
    assert shapes[1:] == [(2, 20), (2, 0)]
    assert 0 < shapes[0][1] < 20


def test_a_shape_that_is_fed_may_be_one_never_seen(engines: Engines) -> None:
    x = np.arange(12, dtype=np.float32)
    engines(make_reshape_by_input).assert_right({"x": x, "shape": np.array((2, 6))})
    engines(make_reshape_by_input).assert_right({"x": x, "shape": np.array((3, 4))})


def test_a_boolean_scalar_chooses_the_branch(engines: Engines) -> None:
    opened = engines(make_choice)
    positive, turned = (opened.run(feeds)["chosen"] for feeds in opened.network.batches)
    assert positive.min() >= 0 > turned.min()


def test_an_int64_that_does_not_fit_the_engine_is_refused(engines: Engines) -> None:
    opened = engines(make_lookup)
    if opened.runner.engine.get_tensor_dtype("ids").name == "INT64":
        pytest.skip("This TensorRT takes int64 as it is.")
    with pytest.raises(BackendError, match=r"'ids' .*1099511627776.*int32"):
        opened.run({"ids": np.array((0, 2**40, 1))})

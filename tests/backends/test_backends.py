"""The table of backends: each line keeps the contract, and the choice says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typed_models import plan_of, write_model

from overflow_fixer.backends import BACKENDS, choose_backend
from overflow_fixer.backends.choice import NAMES
from overflow_fixer.backends.tensorrt import find_lack
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.progress import silent
from overflow_fixer.records import Batch, BuildSettings, ShapeRange

SETTINGS = BuildSettings(shapes={"x": ShapeRange((1, 4), (1, 4), (2, 4))})


LACK = find_lack()
AVAILABLE = [
    pytest.param(name, marks=pytest.mark.skipif(backend.is_engine and LACK is not None, reason=str(LACK)))
    for name, backend in BACKENDS.items()
]


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_backend_emits_and_opens(tmp_path: Path, name: str) -> None:
    graph = load_graph(
        write_model(tmp_path, "g (float[N,4] x) => (float[N,4] y) { a = Abs(x) b = Mul(a, a) y = Sqrt(b) }")
    )
    backend = BACKENDS[name]
    path = tmp_path / f"model{backend.suffix}"
    plan = plan_of(graph, ["node_of_b", "node_of_y"])
    artifact = backend.emit(graph, plan, path, SETTINGS, silent)
    assert (artifact.backend, artifact.path) == (name, path)
    assert all(file.is_file() for file in artifact.files)
    assert set(artifact.fp16_nodes) | set(artifact.fp32_nodes) == {node.label for node in graph.nodes}
    assert {"node_of_b", "node_of_y"} <= set(artifact.fp32_nodes)
    assert backend.describe(graph, plan, path, SETTINGS) == artifact
    runner = backend.open_runner(artifact, SETTINGS)
    found = runner.run(Batch("batch", {"x": np.asarray([[1, 2, 300, -4]], np.float32)}))
    assert runner.output_names == ("y",)
    np.testing.assert_array_equal(found["y"], [[1, 2, 300, 4]])


@pytest.mark.parametrize("stem", ["model", "n" * 300])
@pytest.mark.parametrize("name", BACKENDS)
def test_what_was_not_built_is_told(tmp_path: Path, name: str, stem: str) -> None:
    """And so is what no file system has a name for."""
    graph = load_graph(write_model(tmp_path, "g (float[4] x) => (float[4] y) { y = Abs(x) }"))
    backend = BACKENDS[name]
    path = tmp_path / f"{stem}{backend.suffix}"
    with pytest.raises(BackendError, match=r"is not there.* Build it with fix-fp16 build"):
        backend.describe(graph, plan_of(graph, []), path, SETTINGS)


def test_a_plan_knows_the_names_of_all_backends() -> None:
    assert tuple(BACKENDS) == NAMES


def test_the_choice_says_why() -> None:
    assert choose_backend("onnx") == ("onnx", "asked for")
    name, reason = choose_backend("auto")
    assert name in BACKENDS
    assert "\n" not in reason


@pytest.mark.skipif(LACK is None, reason="engines can be built here")
def test_without_a_gpu_engines_are_refused_in_one_sentence_and_auto_says_why() -> None:
    with pytest.raises(BackendError, match="GPU"):
        choose_backend("tensorrt")
    assert choose_backend("auto") == ("onnx", f"a typed ONNX model: {LACK}")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BackendError, match=r"'tensorflow' is not in .*auto, onnx"):
        choose_backend("tensorflow")

"""Results take the place of nothing that a run reads, nor of what something else made."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from fake_tensorrt import Script, Variant, fake_tensorrt
from in_memory_calibration import make_model, node

from overflow_fixer import FixConfig, PrecisionPlan, fix, load_graph, open_calibration
from overflow_fixer.backends import BACKENDS, mixed_onnx
from overflow_fixer.cli import main
from overflow_fixer.errors import OutputError
from overflow_fixer.pipeline import scan
from overflow_fixer.progress import silent
from overflow_fixer.trials.place import check_place, name_artifact

WEIGHTS = {"w": np.eye(4, dtype=np.float32)}


def _save(folder: Path, weights: str | None = None) -> Path:
    """A model with its weights in that file beside it, and data for it."""
    path = folder / "m.onnx"
    model = make_model([node("MatMul", "x w", "y")], {"x": [2, 4]}, "y", WEIGHTS)
    options: dict[str, Any] = {"save_as_external_data": True, "location": weights, "size_threshold": 0}
    onnx.save(model, path, **(options if weights else {}))
    np.savez(folder / "x.npz", x=np.ones((2, 4), np.float32))
    return path


def _hash_all(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _configure(folder: Path, **given: Any) -> FixConfig:
    return FixConfig(model=folder / "m.onnx", calib=folder / "x.npz", out=folder, **given)


@pytest.mark.parametrize(
    "weights",
    [
        "m.fp16.onnx.data",
        "m.fp16.onnx",
        "plan.json",
        "ranges.h5",
        "report.html",
        "report.json",
        "timing.cache",
    ],
)
def test_weights_are_not_replaced(weights: str, tmp_path: Path) -> None:
    _save(tmp_path, weights)
    before = _hash_all(tmp_path)
    with pytest.raises(OutputError, match=f"{weights} is a file that is read here") as raised:
        fix(_configure(tmp_path))
    assert raised.value.exit_code == 2
    assert _hash_all(tmp_path) == before


@pytest.mark.parametrize("verb", ["scan", "plan", "build", "verify"])
def test_nor_by_a_stage(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = _save(tmp_path, "report.json")
    before = _hash_all(tmp_path)
    options = ["--calib", str(tmp_path / "x.npz")] if verb in ("scan", "verify") else []
    with pytest.raises(SystemExit, match="2"):
        main([verb, str(model), "--out", str(tmp_path), *options])
    assert "report.json is a file that is read here" in capsys.readouterr().err
    assert _hash_all(tmp_path) == before


def test_data_are_not_replaced_by_ranges(tmp_path: Path) -> None:
    _save(tmp_path)
    with h5py.File(tmp_path / "ranges.h5", "w") as file:
        file["x"] = np.ones((2, 4), np.float32)
    config = FixConfig(model=tmp_path / "m.onnx", calib=tmp_path / "ranges.h5", out=tmp_path)
    with pytest.raises(OutputError, match=r"ranges\.h5 is a file that is read here"):
        fix(config, existing="overwrite")


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: {"custom_ops": (folder / "plan.json",)},
        lambda folder: {"build": {"plugins": [folder / "plan.json"]}},
    ],
)
def test_libraries_are_not_replaced(given: Callable[[Path], Any], tmp_path: Path) -> None:
    _save(tmp_path)
    (tmp_path / "plan.json").write_bytes(b"a library")
    config = _configure(tmp_path, **given(tmp_path))
    with pytest.raises(OutputError, match=r"plan\.json is a file that is read here"):
        check_place(config, load_graph(config.model), "onnx")


@pytest.mark.parametrize(
    "name",
    [
        "m.onnx",
        "w.bin",
        "data/x.npz",
        "data/timings",
        "out/ranges.h5",
        "out/m.engine",
        "out/m.engine.json",
        ".",
    ],
)
def test_kernel_timings_take_the_place_of_nothing(name: str, tmp_path: Path) -> None:
    """Whatever the file holds is taken for timings that are torn, and replaced."""
    graph = load_graph(_save(tmp_path, "w.bin"))
    (tmp_path / "data").mkdir()
    (tmp_path / "x.npz").rename(tmp_path / "data" / "x.npz")
    build = {"backend": "tensorrt", "timing_cache": tmp_path / name}
    config = FixConfig(model=graph.path, calib=tmp_path / "data", out=tmp_path / "out", build=build)
    with pytest.raises(
        OutputError, match=f"The kernel timings would be written to .*{name}.* --timing-cache"
    ):
        check_place(config, graph, "tensorrt")


def test_kernel_timings_have_a_file_of_their_own(tmp_path: Path) -> None:
    graph = load_graph(_save(tmp_path))
    for name in ("out/timing.cache", "elsewhere/all.cache"):
        build = {"backend": "tensorrt", "timing_cache": tmp_path / name}
        config = FixConfig(model=graph.path, calib=tmp_path / "x.npz", out=tmp_path / "out", build=build)
        check_place(config, graph, "tensorrt")


def test_a_name_of_kernel_timings_that_is_too_long_is_refused_before_the_scan(tmp_path: Path) -> None:
    graph = load_graph(_save(tmp_path))
    config = _configure(tmp_path, build={"timing_cache": tmp_path / ("n" * 300)})
    with pytest.raises(OutputError, match=r"longer than the file system takes.* --timing-cache"):
        check_place(config, graph, "tensorrt")


def test_a_link_to_the_weights_is_known(tmp_path: Path) -> None:
    _save(tmp_path, "weights.bin")
    (tmp_path / "plan.json").symlink_to("weights.bin")
    with pytest.raises(OutputError, match=r"plan\.json is a file that is read here"):
        fix(_configure(tmp_path))


def test_what_another_tool_made_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.fp16.onnx").write_bytes(_save(tmp_path).read_bytes())
    before = _hash_all(tmp_path)
    with pytest.raises(OutputError, match=r"m\.fp16\.onnx is there, and fix-fp16 did not make it"):
        fix(_configure(tmp_path))
    assert _hash_all(tmp_path) == before


@pytest.mark.parametrize("name", ["m.fp16.onnx", "m.fp16.onnx.data"])
@pytest.mark.parametrize("trace", ["ranges.h5", ".trials-x", ".m.fp16.onnx.7-0123abcd.tmp"])
def test_what_a_killed_run_left_torn_is_made_anew(name: str, trace: str, tmp_path: Path) -> None:
    config = _configure(tmp_path).model_copy(update={"out": tmp_path / "out"})
    graph = load_graph(_save(tmp_path))
    if trace == "ranges.h5":
        scan(config, graph, open_calibration(config.calib, graph.inputs), silent)
    else:
        (config.folder / trace).mkdir(parents=True)
    (config.folder / name).write_bytes(b"?")
    assert fix(config).fixed.passed


@pytest.mark.parametrize("name", ["m.fp16.onnx", "m.fp16.onnx.data"])
def test_what_is_torn_where_nothing_was_run_is_anothers(name: str, tmp_path: Path) -> None:
    _save(tmp_path)
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(OutputError, match=f"{re.escape(name)} is there, and fix-fp16 did not make it"):
        fix(_configure(tmp_path))
    assert (tmp_path / name).read_bytes() == b"mine"


def test_a_name_that_is_too_long_is_refused_before_the_scan(tmp_path: Path) -> None:
    """The limit is that of the name while it is written: what is just short enough is fixed."""
    _save(tmp_path)
    room = os.pathconf(tmp_path, "PC_NAME_MAX") - len(f"..fp16.onnx.{os.getpid()}-01234567.tmp")
    for length in (room, room + 1):
        model = tmp_path / f"{'n' * length}.onnx"
        shutil.copy(tmp_path / "m.onnx", model)
        config = _configure(tmp_path).model_copy(
            update={"model": model, "out": tmp_path / "out" / str(length)}
        )
        if length == room:
            assert fix(config).fixed.passed
            continue
        with pytest.raises(OutputError, match="is longer than the file system takes") as refused:
            fix(config)
        assert "Rename the model, or link to it by another name" in str(refused.value)
        assert not config.folder.exists()


def test_an_earlier_one_of_its_own_is(tmp_path: Path) -> None:
    _save(tmp_path)
    assert fix(_configure(tmp_path)).artifact == fix(_configure(tmp_path)).artifact


@pytest.mark.parametrize("has_sidecar", [False, True])
def test_an_engine_without_a_sidecar_is_anothers(has_sidecar: bool, tmp_path: Path) -> None:
    graph, config = load_graph(_save(tmp_path)), _configure(tmp_path)
    path = name_artifact(config, "tensorrt")
    check_place(config, graph, "tensorrt")
    path.write_bytes(b"an engine")
    if has_sidecar:
        path.with_name("m.engine.json").write_text("{}")
        check_place(config, graph, "tensorrt")
        return
    with pytest.raises(OutputError, match=r"m\.engine is there, and fix-fp16 did not make it"):
        check_place(config, graph, "tensorrt")


@pytest.mark.parametrize(("variant", "typing"), [("8.6", "auto"), ("11", "auto"), ("10.0", "strong")])
def test_the_typed_model_of_an_engine_is_not_anothers(
    variant: Variant, typing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strong typing writes one, and weak typing leaves it alone."""
    trt = fake_tensorrt(variant, Script())
    trt.__spec__ = ModuleSpec("tensorrt", None, origin="a fake")
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    graph = load_graph(_save(tmp_path))
    (tmp_path / "m.fp16.onnx").write_bytes((tmp_path / "m.onnx").read_bytes())
    config = _configure(tmp_path, build={"typing": typing})
    if variant == "8.6":
        check_place(config, graph, "tensorrt")
        return
    with pytest.raises(OutputError, match=r"m\.fp16\.onnx is there, and fix-fp16 did not make it"):
        check_place(config, graph, "tensorrt")
    mixed_onnx.emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), tmp_path / "m.fp16.onnx")
    check_place(config, graph, "tensorrt")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_artifact_is_the_first_of_its_files(backend: str, tmp_path: Path) -> None:
    path = name_artifact(_configure(tmp_path), backend)
    assert BACKENDS[backend].name_files(path)[0] == path


@pytest.mark.parametrize("place", ["m.onnx", "weights"])
def test_nothing_is_emitted_over_the_original(place: str, tmp_path: Path) -> None:
    graph = load_graph(_save(tmp_path, "weights.data"))
    before = _hash_all(tmp_path)
    with pytest.raises(OutputError, match=r"m\.onnx|weights\.data"):
        mixed_onnx.emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), tmp_path / place)
    assert _hash_all(tmp_path) == before

"""The commands with engines, over a stand-in GPU and fakes whose engines compute: exit codes and words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_tensorrt import Plan, Script, Variant, fake_tensorrt
from onnx import TensorProto, helper
from standin_gpu import StandInDriver, use_standin_gpu
from working_tensorrt import working_tensorrt

from overflow_fixer.backends import BACKENDS
from overflow_fixer.cli import main
from overflow_fixer.records import Artifact

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
MODEL, DATA = SAMPLE / "model.onnx", SAMPLE / "data"


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@contextmanager
def _machine(folder: Path, variant: Variant = "8.6", driver: StandInDriver | None = None) -> Iterator[None]:
    with use_standin_gpu(working_tensorrt(variant, folder / "works"), driver):
        yield


def _plan(out: Path, model: Path = MODEL, data: Path = DATA) -> None:
    assert _run("scan", model, "--calib", data, "--out", out, "-q") == 0
    assert _run("plan", model, "--out", out, "-q") == 0


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fix-fp16: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert "a fault of fix-fp16 itself" not in said.err
    return said.err


def _open_model(folder: Path) -> Path:
    """y = x * 2 over any number of rows."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy"]
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"], "double")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [two])
    path = folder / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _rows(folder: Path, *counts: int) -> Path:
    data = folder / "rows"
    data.mkdir()
    for index, count in enumerate(counts):
        np.savez(data / f"batch_{index}.npz", x=np.ones((count, 4), np.float32))
    return data


# ---------------------------------------------------------------- the stages


@pytest.mark.parametrize("variant", ["8.6", "10.12", "11"])
def test_the_stages_one_after_the_other(
    variant: Variant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _plan(tmp_path)
    engine = ("--out", tmp_path, "--backend", "tensorrt")
    with _machine(tmp_path, variant):
        assert _run("build", MODEL, "--calib", DATA, *engine) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{tmp_path / 'model.engine'}: ")
        assert ("casts inserted" in said) == (variant != "8.6")
        assert "asked for: TensorRT " in said
        assert "on Stand-in GPU. Not verified yet." in said
        assert _run("verify", MODEL, "--calib", DATA, *engine) == 0
        assert "FIXED and verified" in capsys.readouterr().out
        assert _run("verify", MODEL, "--calib", DATA, *engine, "--no-compare", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["verdict"]["passed"]
        assert document["verification"]["naive"] is None
    assert _run("report", tmp_path) == 0  # on a machine without a GPU
    assert "VERIFIED" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "told"), [(5, 5), (7, 6)])
def test_build_tells_what_is_to_be_known_of_an_engine(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    told: int,
) -> None:
    """Such as pins that are only preferred; of many warnings the first, as the report has them."""
    backend = BACKENDS["tensorrt"]

    def warn(*arguments: Any) -> Artifact:
        artifact = backend.emit(*arguments)
        assert artifact.engine is not None
        warnings = tuple(f"number {number}" for number in range(count))
        return replace(artifact, engine=replace(artifact.engine, warnings=warnings))

    monkeypatch.setitem(BACKENDS, "tensorrt", replace(backend, emit=warn))
    _plan(tmp_path)
    with _machine(tmp_path):
        assert _run("build", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt") == 0
        _, *lines = capsys.readouterr().out.splitlines()
        assert (
            _run("build", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "--json") == 0
        )
    assert lines[:5] == [f"Warning: number {number}" for number in range(5)]
    assert len(lines) == told
    assert count == 5 or lines[5] == f"2 warnings more: see {tmp_path / 'model.engine.json'}"
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == count


def test_build_tells_what_it_built_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _plan(tmp_path)
    with _machine(tmp_path):
        assert (
            _run("build", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "--json") == 0
        )
    told = json.loads(capsys.readouterr().out)
    assert (told["backend"], told["path"]) == ("tensorrt", str(tmp_path / "model.engine"))
    assert told["fp32_nodes"] > 0


def test_shapes_come_from_the_data_or_a_profile_and_must_come_from_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = _open_model(tmp_path), _rows(tmp_path, 2, 3)
    out, few = tmp_path / "out", tmp_path / "few"
    _plan(out, model, data)
    shutil.copytree(out, few)
    engine = ("build", model, "--backend", "tensorrt", "-q")
    with _machine(tmp_path):
        assert _run(*engine, "--out", out) == 2
        assert "Nothing says which shape input 'x' has" in _error(capsys)
        assert not (out / "open.engine").exists()
        assert _run(*engine, "--out", out, "--calib", data) == 0
        assert _run("verify", model, "--calib", data, "--out", out, "--backend", "tensorrt", "-q") == 0
        assert _run(*engine, "--out", few, "--profile", "x:1x4:2x4:2x4") == 0
        capsys.readouterr()
        assert _run("verify", model, "--calib", data, "--out", few, "--backend", "tensorrt", "-q") == 6
        text = _error(capsys)
    assert "its shape is [3, 4]" in text
    assert "1x4 / 2x4 / 2x4" in text


def test_fp16_inputs_and_outputs_are_part_of_what_was_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _plan(tmp_path)
    engine = (MODEL, "--out", tmp_path, "--backend", "tensorrt", "-q")
    with _machine(tmp_path):
        assert _run("build", *engine, "--calib", DATA, "--io-types", "fp16") == 0
        assert _run("verify", *engine, "--calib", DATA, "--io-types", "fp16") in (0, 1)
        capsys.readouterr()
        assert _run("verify", *engine, "--calib", DATA) == 6
    assert "was built from this plan with io_types 'fp16'. Expected 'keep'" in _error(capsys)


# ---------------------------------------------------------------- an engine of another tool


@pytest.mark.parametrize("suffix", [".engine", ".plan", ".trt"])
def test_another_tools_engine_is_held_against_the_model(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _plan(tmp_path)
    with _machine(tmp_path):
        assert _run("build", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "-q") == 0
        foreign = Path(shutil.copy(tmp_path / "model.engine", tmp_path / f"foreign{suffix}"))
        assert _run("verify", MODEL, "--calib", DATA, "--artifact", foreign) == 0
        assert capsys.readouterr().out.startswith("ok    logits: SNR ")
        assert _run("verify", MODEL, "--calib", DATA, "--artifact", foreign, "--json") == 0
        assert json.loads(capsys.readouterr().out)["passed"]


def test_an_engine_that_overflows_is_not_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert _run("scan", MODEL, "--calib", DATA, "--out", out, "-q") == 0
    assert _run("plan", MODEL, "--out", out, "-q", "--threshold", "65504", "--exclude-ops", "Conv") == 0
    with _machine(tmp_path):
        assert _run("build", MODEL, "--calib", DATA, "--out", out, "--backend", "tensorrt", "-q") == 0
        assert _run("verify", MODEL, "--calib", DATA, "--artifact", out / "model.engine") == 1
        assert capsys.readouterr().out.startswith("WRONG logits: ")
        assert _run("verify", MODEL, "--calib", DATA, "--out", out, "--backend", "tensorrt", "-q") == 1


def _truncated(folder: Path) -> Path:
    path = folder / "model.engine"
    path.write_bytes(path.read_bytes()[:4])
    return path


def _missing(folder: Path) -> Path:
    return folder / "nowhere.engine"


def _a_folder(folder: Path) -> Path:
    path = folder / "folder.engine"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_truncated, "cannot load the engine"), (_missing, "cannot be read"), (_a_folder, "cannot be read")],
)
def test_an_engine_that_is_none(
    spoil: Callable[[Path], Path], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _plan(tmp_path)
    with _machine(tmp_path):
        assert _run("build", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "-q") == 0
        capsys.readouterr()
        assert _run("verify", MODEL, "--calib", DATA, "--artifact", spoil(tmp_path)) == 6
    assert words in _error(capsys)


def test_an_engine_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = _open_model(tmp_path), tmp_path / "out"
    _plan(out, model, _rows(tmp_path, 2))
    with _machine(tmp_path):
        assert _run("build", model, "--out", out, "--backend", "tensorrt", "--profile", "x:1x4:2x4:2x4") == 0
        capsys.readouterr()
        assert _run("verify", MODEL, "--calib", DATA, "--artifact", out / "open.engine") == 6
    assert "has no output 'logits'; it has y" in _error(capsys)


def test_an_engine_that_was_changed_after_it_was_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _plan(tmp_path)
    engine = (MODEL, "--out", tmp_path, "--backend", "tensorrt", "-q")
    with _machine(tmp_path):
        assert _run("build", *engine, "--calib", DATA) == 0
        _truncated(tmp_path)
        capsys.readouterr()
        assert _run("verify", *engine, "--calib", DATA) == 6
    assert "is not the engine that its sidecar model.engine.json tells of" in _error(capsys)


def test_an_engine_that_was_never_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _plan(tmp_path)
    with _machine(tmp_path):
        assert _run("verify", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt") == 6
    assert "Build it with fix-fp16 build --backend tensorrt." in _error(capsys)


# ---------------------------------------------------------------- what cannot be had

_REFUSED = [
    (["--typing", "strong"], 6, "TensorRT 8.6.1 has no strong typing. Expected --typing weak or auto."),
    (["--tactic-source", "nonsense"], 2, "has no tactic source 'nonsense'. Expected some of: CUBLAS,"),
    (["--optimization-level", "9"], 2, "build.optimization_level: input should be less than or equal to 5"),
    (["--workspace-gib", "0"], 2, "build.workspace_gib: input should be greater than 0"),
    (["--profile", "x:1x4:2x4"], 2, "'x:1x4:2x4' is not NAME:MIN:OPT:MAX"),
    (["--profile", "x:one:two:three"], 2, "'x:one:two:three' is not NAME:MIN:OPT:MAX"),
    (["--profile", "x:1:2:3", "--profile", "x:2:3:4"], 2, "the input 'x' was given two profiles"),
    (["--profile", "nobody:1:2:3"], 2, "The profile nobody:1:2:3 does not fit the model"),
    (["--plugin", "missing.so"], 6, "The plug-in library missing.so does not load: missing.so: cannot open"),
]


@pytest.mark.parametrize(("flags", "code", "words"), _REFUSED, ids=[flags[0][0][2:] for flags in _REFUSED])
@pytest.mark.parametrize("verb", ["fix", "build"])
def test_what_cannot_be_had_is_refused_in_one_paragraph(
    verb: str,
    flags: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if verb == "build":
        _plan(tmp_path)
    capsys.readouterr()
    with _machine(tmp_path):
        assert (
            _run(verb, MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "-q", *flags)
            == code
        )
    assert words in _error(capsys)
    assert not (tmp_path / "model.engine").exists()


def test_weak_typing_where_it_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _plan(tmp_path)
    with _machine(tmp_path, "11"):
        assert (
            _run(
                "build",
                MODEL,
                "--calib",
                DATA,
                "--out",
                tmp_path,
                "--backend",
                "tensorrt",
                "--typing",
                "weak",
            )
            == 6
        )
    assert "has no weak typing. Expected --typing strong or auto." in _error(capsys)


def test_a_gpu_that_is_not_there_and_one_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ("fix", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "-q")
    with _machine(tmp_path, driver=StandInDriver(devices=0)):
        assert _run(*engine) == 6
        assert "No GPU: the CUDA driver is missing or finds no device." in _error(capsys)
    broken = StandInDriver()
    broken.fails = {"cuStreamSynchronize": 700, "cuMemFree_v2": 700}
    with _machine(tmp_path, driver=broken):
        assert _run(*engine) == 6
        assert "The CUDA driver refused cuStreamSynchronize: an illegal memory access" in _error(capsys)


def test_a_tensorrt_that_builds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(parse_errors=["no importer of Strange"], engines={b"": Plan()})
    with use_standin_gpu(fake_tensorrt("10.0", script)):
        assert _run("fix", MODEL, "--calib", DATA, "--out", tmp_path, "--backend", "tensorrt", "-q") == 6
    assert "cannot take" in (text := _error(capsys))
    assert "no importer of Strange" in text

"""`fix-fp16 plan`: another threshold without another scan, and what it says."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from edited_ranges import edit_ranges

from overflow_fixer.cli import main
from overflow_fixer.reports import load_plan, save_plan

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    _run("scan", SAMPLE / "model.onnx", "--calib", SAMPLE / "data", "--out", folder, "-q")
    return folder


def _run(*arguments: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert (stop.value.code or 0) == code


def test_a_branch_that_was_never_taken_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[N] y) {
        [branch] y = If (c) <
            then_branch = t () => (float[N] o) { o = Relu (x) },
            else_branch = e () => (float[N] q) { q = Neg (x) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones(4, np.float32), c=np.array(True))
    common = tmp_path / "m.onnx", "--out", tmp_path / "out"
    _run("scan", *common, "--calib", tmp_path / "data.npz", "-q")
    _run("plan", *common)
    told = "branch/else_branch was not observed: If branch never took its else_branch in the data that were scanned."
    assert told in capsys.readouterr().out.splitlines()


def test_a_plan_of_another_model_is_replaced_and_not_compared_with(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(out / "ranges.h5", tmp_path)
    arguments = ("plan", SAMPLE / "model.onnx", "--out", tmp_path)
    _run(*arguments, "-q")
    for sha256, compares in ((load_plan(tmp_path / "plan.json").model_sha256, True), ("0" * 64, False)):
        save_plan(replace(load_plan(tmp_path / "plan.json"), model_sha256=sha256), tmp_path / "plan.json")
        _run(*arguments)
        assert ("Against the plan there was" in capsys.readouterr().out) is compares


def test_ranges_alone_name_the_model_and_where_its_plan_is(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ranges.h5", "plan.json"):
        if (out / name).exists():
            shutil.copy(out / name, tmp_path)
    _run("plan", "--ranges", tmp_path / "ranges.h5")
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'plan.json'}: ")
    (tmp_path / "c.toml").write_text("[plan]\nthreshold = 1000\n")
    given = ("--config", tmp_path / "c.toml", "--out", tmp_path / "other")
    _run("plan", "--ranges", tmp_path / "ranges.h5", *given)
    said = capsys.readouterr().out
    assert "(threshold 10000, now 1000): " in said
    assert load_plan(tmp_path / "other" / "plan.json").threshold == 1000
    assert load_plan(tmp_path / "plan.json").threshold == 10000


def test_ranges_of_a_model_that_is_gone_ask_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(SAMPLE / "model.onnx", tmp_path)
    _run("scan", tmp_path / "model.onnx", "--calib", SAMPLE / "data", "--out", tmp_path, "-q")
    (tmp_path / "model.onnx").rename(tmp_path / "moved.onnx")
    _run("plan", "--ranges", tmp_path / "ranges.h5", code=5)
    assert f"are of {tmp_path / 'model.onnx'}, which is not there. Expected" in capsys.readouterr().err
    _run("plan", tmp_path / "moved.onnx", "--ranges", tmp_path / "ranges.h5", "--out", tmp_path)
    with edit_ranges(tmp_path / "ranges.h5") as file:
        del file.attrs["model_path"]
    _run("plan", "--ranges", tmp_path / "ranges.h5", code=5)
    assert "do not say of which file they are. Expected" in capsys.readouterr().err


def test_another_threshold_tells_what_changed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ("plan", SAMPLE / "model.onnx", "--ranges", out / "ranges.h5", "--out", out)
    _run(*plan)
    first = capsys.readouterr().out
    assert "Against" not in first  # there was none
    before = load_plan(out / "plan.json").pinned
    _run(*plan, "--threshold", 1000)
    said = capsys.readouterr().out
    more = load_plan(out / "plan.json").pinned - before
    assert more
    assert f"(threshold 10000, now 1000): {len(more)} more pinned, 0 no longer." in said
    assert sum(line.startswith("  + ") for line in said.splitlines()) == min(len(more), 6)
    _run(*plan)
    assert f"{len(more)} no longer" in capsys.readouterr().out
    assert load_plan(out / "plan.json").pinned == before


def test_how_sure_the_plan_is_is_said(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("plan", SAMPLE / "model.onnx", "--out", out)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("More data", "No value is left"))
    assert "bits left" in last


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", '{"schema_version": "1.2"}', '{"schema_version": "1.2", "model_sha256": 7}', "\udcff"],
)
def test_a_file_that_is_no_plan_is_replaced_silently(
    out: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (out / "plan.json").write_text(content, errors="surrogateescape")
    _run("plan", SAMPLE / "model.onnx", "--out", out)
    assert "Against" not in capsys.readouterr().out


def test_one_is_no_plural(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mask that is clamped, in a model of two nodes that is scanned on one batch."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4] x, bool[2, 4] c) => (float[2, 4] y) <float k = {-1e30}> {
        w = Where (c, k, x)
        y = Softmax (w)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((2, 4), np.float32), c=np.eye(2, 4, dtype=bool))
    common = tmp_path / "m.onnx", "--out", tmp_path / "out"
    _run("scan", *common, "--calib", tmp_path / "data.npz")
    assert "tensors over 1 batch; 2 overflow in FP16" in capsys.readouterr().out
    _run("plan", *common)
    assert "0 of 2 nodes pinned, 1 constant clamped" in capsys.readouterr().out


def test_a_model_that_changed_without_a_trace_is_told_until_it_is_scanned_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, before = tmp_path / "m.onnx", (SAMPLE / "model.onnx").read_bytes()
    model.write_bytes(before)
    common = model, "--out", tmp_path / "out", "-q"
    _run("scan", *common, "--calib", SAMPLE / "data")
    stat = model.stat()
    with model.open("r+b") as file:
        file.write(_other_weights(before))
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    _run("plan", *common)
    _run("build", *common, code=5)
    assert "Scan it with fix-fp16 scan --fresh, then plan again" in capsys.readouterr().err
    _run("scan", *common, "--calib", SAMPLE / "data", "--fresh")
    _run("plan", *common)
    _run("build", *common)


def _other_weights(model: bytes) -> bytes:
    """The same model, of the same size, with a weight that is negative where it was not, or the other way round."""
    found = onnx.load_model_from_string(model)
    weight = next(t.raw_data for t in found.graph.initializer if len(t.raw_data) > 64)
    return model.replace(weight, weight[:3] + bytes([weight[3] ^ 0x80]) + weight[4:], 1)

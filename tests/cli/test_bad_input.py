"""Each bad input gets one paragraph on stderr and its own exit code, and leaves nothing half written."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from overflow_fixer.cli import main

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
LONG = "n" * 300
"""More than a file system takes: 255 bytes, on most."""
ONE_INPUT = Path(__file__).parents[2] / "calib_data" / "needs_constraints"


def _model(folder: Path) -> Path:
    return Path(shutil.copy(SAMPLE / "model.onnx", folder / "model.onnx"))


def _data(folder: Path) -> Path:
    return Path(shutil.copytree(SAMPLE / "data", folder / "data"))


def not_onnx(folder: Path) -> list[str]:
    (folder / "model.onnx").write_bytes(b"PK\x03\x04 this is a zip, not a model" * 40)
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def empty_file(folder: Path) -> list[str]:
    (folder / "model.onnx").write_bytes(b"")
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def missing_model(folder: Path) -> list[str]:
    return [str(folder / "nowhere.onnx"), "--calib", str(_data(folder))]


def truncated(folder: Path) -> list[str]:
    path = _model(folder)
    path.write_bytes(path.read_bytes()[:1000])
    return [str(path), "--calib", str(_data(folder))]


def old_opset(folder: Path) -> list[str]:
    model = onnx.load(_model(folder))
    model.opset_import[0].version = 8
    onnx.save(model, folder / "model.onnx")
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def future_opset(folder: Path) -> list[str]:
    model = onnx.load(_model(folder))
    model.opset_import[0].version = 999
    onnx.save(model, folder / "model.onnx")
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def missing_external_data(folder: Path) -> list[str]:
    _save_external(folder)
    (folder / "weights.bin").unlink()
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def truncated_external_data(folder: Path) -> list[str]:
    _save_external(folder)
    (folder / "weights.bin").write_bytes(b"\0" * 100)
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def escaping_external_data(folder: Path) -> list[str]:
    _save_external(folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../secret" if entry.key == "location" else entry.value
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def linked_external_data(folder: Path) -> list[str]:
    _save_external(folder)
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to("/etc/hostname")
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def unknown_operator(folder: Path) -> list[str]:
    model = onnx.load(_model(folder))
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, folder / "model.onnx")
    return [str(folder / "model.onnx"), "--calib", str(_data(folder))]


def long_model(folder: Path) -> list[str]:
    return [str(folder / f"{LONG}.onnx"), "--calib", str(_data(folder))]


def long_calibration(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(folder / LONG)]


def no_calibration(folder: Path) -> list[str]:
    return [str(_model(folder))]


def missing_calibration(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(folder / "nowhere")]


def empty_calibration(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    return [str(_model(folder)), "--calib", str(folder / "data")]


def wrong_names(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", _npz(folder, picture=np.zeros((1, 3, 64, 64), np.float32))]


def wrong_shape(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", _npz(folder, image=np.zeros((1, 3, 32, 32), np.float32))]


def wrong_type(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", _npz(folder, image=np.zeros((1, 3, 64, 64), np.float64))]


def nan_in_data(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", _npz(folder, image=np.full((1, 3, 64, 64), np.nan, np.float32))]


def corrupt_npz(folder: Path) -> list[str]:
    data = _data(folder)
    file = sorted(data.iterdir())[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return [str(_model(folder)), "--calib", str(data)]


def pickled_npz(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", _npz(folder, image=np.array([{"a": 1}], dtype=object))]


def unreadable_image(folder: Path) -> list[str]:
    (folder / "data").mkdir()
    (folder / "data" / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    return [str(_model(folder)), "--calib", str(folder / "data")]


def unknown_key(folder: Path) -> list[str]:
    (folder / "fix.toml").write_text("[plan]\ntreshold = 5\n")
    return [str(_model(folder)), "--calib", str(_data(folder)), "--config", str(folder / "fix.toml")]


def not_toml(folder: Path) -> list[str]:
    (folder / "fix.toml").write_text("plan: {threshold: 5}")
    return [str(_model(folder)), "--calib", str(_data(folder)), "--config", str(folder / "fix.toml")]


def bad_value(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(_data(folder)), "--threshold", "-1"]


def unknown_flag(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(_data(folder)), "--treshold", "5"]


def pattern_without_match(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(_data(folder)), "--include-nodes", "no such node"]


def out_is_a_file(folder: Path) -> list[str]:
    (folder / "out").write_text("in the way")
    return [str(_model(folder)), "--calib", str(_data(folder))]


def missing_backend(folder: Path) -> list[str]:
    return [str(_model(folder)), "--calib", str(_data(folder)), "--backend", "tensorrt"]


CASES: list[tuple[Callable[[Path], list[str]], int, tuple[str, ...]]] = [
    (not_onnx, 3, ("model.onnx", "not a whole ONNX model")),
    (empty_file, 3, ("model.onnx", "no graph")),
    (missing_model, 3, ("nowhere.onnx", "No such file")),
    (truncated, 3, ("model.onnx", "cut short")),
    (old_opset, 3, ("opset 8", "Expected 9 to", "target_opset")),
    (future_opset, 3, ("opset 999", "Install a newer onnx")),
    (missing_external_data, 3, ("weights.bin", "missing")),
    (truncated_external_data, 3, ("weights.bin", "truncated")),
    (escaping_external_data, 3, ("../secret", "outside the model's folder")),
    (linked_external_data, 3, ("weights.bin", "outside the model's folder")),
    (unknown_operator, 3, ("NoSuchOperator", "refuses the model")),
    (long_model, 3, ("File name too long", "an ONNX model file")),
    (long_calibration, 4, ("File name too long", "calibration data")),
    (no_calibration, 2, ("--calib", "random")),
    (missing_calibration, 4, ("nowhere",)),
    (empty_calibration, 4, ("data",)),
    (wrong_names, 4, ("batch.npz", "picture", "image")),
    (wrong_shape, 4, ("batch.npz", "32", "64")),
    (wrong_type, 4, ("batch.npz", "float64", "float32")),
    (nan_in_data, 4, ("batch.npz", "NaN")),
    (corrupt_npz, 4, ("batch_0.npz",)),
    (pickled_npz, 4, ("batch.npz",)),
    (unreadable_image, 4, ("cat.png",)),
    (unknown_key, 2, ("plan.treshold", "unknown key", "fix.toml")),
    (not_toml, 2, ("fix.toml", "not TOML")),
    (bad_value, 2, ("plan.threshold",)),
    (unknown_flag, 2, ("--treshold",)),
    (pattern_without_match, 5, ("no such node", "none of the")),
    (out_is_a_file, 2, ("out", "could not be written")),
    (missing_backend, 6, ("No GPU", "--backend onnx")),
]


def _save_external(folder: Path) -> None:
    model = onnx.load(SAMPLE / "model.onnx")
    onnx.save(
        model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )


def _npz(folder: Path, **arrays: np.ndarray) -> str:
    (folder / "data").mkdir()
    np.savez(folder / "data" / "batch.npz", **arrays)
    return str(folder / "data")


def _run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(("make", "code", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_bad_input_is_one_paragraph(
    make: Callable[[Path], list[str]],
    code: int,
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    found, text = _run([*make(tmp_path), "--out", str(out)], capsys)
    assert found == code, text
    assert all(word in text for word in words), text
    assert "Traceback" not in text
    if make is not unknown_flag:
        assert text.startswith("fix-fp16: ")
        assert text.count("\n") == 1
        assert "Expected" in text
    assert not list(out.rglob("*.onnx"))
    assert found == 5 or not out.is_dir() or not list(out.iterdir())
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("verb", "rest", "code"),
    [
        ("fix", ["--out", LONG], 2),
        ("scan", ["--out", LONG], 2),
        ("scan", ["--out", f"out/{LONG}/deeper"], 2),
        ("verify", ["--artifact", LONG], 6),
    ],
)
def test_a_name_that_no_file_can_have_is_told(
    verb: str, rest: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = _run([verb, str(_model(tmp_path)), "--calib", str(_data(tmp_path)), *rest], capsys)
    assert (found, text.count("\n")) == (code, 1), text
    assert "File name too long. Expected" in text


@pytest.mark.parametrize("zoo", [LONG, f"{LONG}.toml"])
def test_such_a_name_of_a_zoo_is_told(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = _run(["zoo", zoo], capsys)
    assert (found, text.count("\n")) == (2, 1), text
    assert "File name too long. Expected" in text


def test_debug_shows_the_traceback_and_keeps_the_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*missing_model(tmp_path), "--debug", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert end.value.code == 3
    assert said.startswith("Traceback")
    assert said.splitlines()[-1].startswith("fix-fp16: ")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own: too small for the sample's typed model."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_told_and_what_was_written_is_whole(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_disk / "out"
    code, text = _run(
        [str(SAMPLE / "model.onnx"), "--calib", str(SAMPLE / "data"), "--out", str(out)], capsys
    )
    assert code == 2
    assert f"{out / 'model.fp16.onnx'} could not be written: No space left on device. " in text
    assert re.search(r"with room left on its disk for a file of [\d.]+ kB\.", text)
    assert [path.name for path in out.iterdir()] == ["ranges.h5"]


def test_a_read_only_folder_is_told(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    out = small_disk / "out"
    code, text = _run(
        [str(SAMPLE / "model.onnx"), "--calib", str(SAMPLE / "data"), "--out", str(out)], capsys
    )
    assert code == 2
    assert "Read-only file system" in text

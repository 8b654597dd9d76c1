"""Plug-in libraries: those that register by themselves, and those that TensorRT must load."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt import Script, Variant, fake_tensorrt
from standin_gpu import use_standin_gpu

from overflow_fixer.backends.tensorrt.exports.standalone_loading import prepare_plugins
from overflow_fixer.backends.tensorrt.logger import make_logger
from overflow_fixer.backends.tensorrt.network import load_plugin, prepare
from overflow_fixer.errors import BackendError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to make a library with")

Load = Callable[[Any, Path], None]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    load_plugin.cache_clear()
    yield
    load_plugin.cache_clear()


def _make(folder: Path, symbol: str) -> Path:
    source, library = folder / "plugin.c", folder / f"lib{symbol}.so"
    source.write_text(f"void *{symbol}(int *count) {{ *count = 0; return 0; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def _load(trt: Any, library: Path) -> None:
    prepare(trt, [library])


def _load_alone(trt: Any, library: Path) -> None:
    prepare_plugins(trt, make_logger(trt), [str(library)])


@pytest.mark.parametrize("load", [_load, _load_alone])
@pytest.mark.parametrize("variant", ["8.6", "10.0", "10.12", "11"])
@pytest.mark.parametrize(
    ("symbol", "is_asked"), [("getCreators", True), ("getPluginCreators", True), ("something", False)]
)
def test_tensorrt_loads_what_hands_its_plugins_over(
    symbol: str, is_asked: bool, variant: Variant, load: Load, tmp_path: Path
) -> None:
    library, script = _make(tmp_path, symbol), Script()
    with use_standin_gpu(trt := fake_tensorrt(variant, script)):
        load(trt, library)
    assert script.plugin_libraries == ([str(library)] if is_asked else [])


@pytest.mark.parametrize("load", [_load, _load_alone])
def test_a_tensorrt_without_such_loading_is_not_asked(load: Load, tmp_path: Path) -> None:
    trt = fake_tensorrt("8.6", Script())
    trt.get_plugin_registry = object
    with use_standin_gpu(trt):
        load(trt, _make(tmp_path, "getCreators"))
    assert trt.script.plugin_libraries == []


def test_what_tensorrt_refuses_is_an_error(tmp_path: Path) -> None:
    library = _make(tmp_path, "getCreators")
    with use_standin_gpu(trt := fake_tensorrt("10.0", Script(bad_plugin_libraries=[str(library)]))):
        with pytest.raises(BackendError, match=r"libgetCreators\.so does not load: it gave no") as error:
            _load(trt, library)
        with pytest.raises(RuntimeError, match=r"cannot load the plug-in library .*libgetCreators\.so"):
            _load_alone(trt, library)
    assert "\n" not in str(error.value)


def test_a_library_in_the_working_folder_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, script = _make(tmp_path, "getCreators"), Script()
    monkeypatch.chdir(tmp_path)
    with use_standin_gpu(trt := fake_tensorrt("10.0", script)):
        _load(trt, Path(library.name))
        _load(trt, Path(library.name))
    assert script.plugin_libraries == [str(library.resolve())]


def test_a_name_that_no_file_system_takes_is_an_error_of_the_library() -> None:
    with (
        use_standin_gpu(trt := fake_tensorrt("10.0", Script())),
        pytest.raises(BackendError, match="nnn does not load"),
    ):
        _load(trt, Path("n" * 300))

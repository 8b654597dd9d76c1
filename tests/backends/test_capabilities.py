"""What a TensorRT can do is asked of the module: typing modes, names it lacks, and what the user reads."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt import Script, Variant, fake_tensorrt

from overflow_fixer.backends.tensorrt.capabilities import Capabilities, choose_typing, import_tensorrt, probe
from overflow_fixer.errors import BackendError

NOTHING = Capabilities("0", **{item.name: False for item in fields(Capabilities) if item.name != "version"})


def _delete(trt: Any, name: str) -> None:
    """Take a name, or a member of a class, out of the fake."""
    owner, _, member = name.rpartition(".")
    if not owner:
        delattr(trt, name)
        return
    for base in getattr(trt, owner).__mro__:
        if member in vars(base):
            return setattr(trt, owner, type(owner, (), {n: v for n, v in vars(base).items() if n != member}))
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("variant", "can"),
    [
        ("8.6", "weak explicit_batch named_io metadata parser_flags optimization_level normalization_layers"),
        (
            "10.0",
            "weak strong named_io metadata progress parser_flags optimization_level axes_inputs error_nodes "
            "normalization_layers native_instance_norm",
        ),
        (
            "10.12",
            "weak weak_is_deprecated strong named_io metadata progress parser_flags "
            "optimization_level axes_inputs error_nodes "
            "normalization_layers native_instance_norm",
        ),
        (
            "11",
            "weak_is_deprecated strong named_io metadata progress parser_flags optimization_level axes_inputs error_nodes "
            "normalization_layers native_instance_norm",
        ),
    ],
)
def test_each_release_is_known_by_what_it_has(variant: Variant, can: str) -> None:
    trt = fake_tensorrt(variant, Script())
    answers = asdict(probe(trt))
    assert answers.pop("version") == trt.__version__
    assert {name for name, answer in answers.items() if answer} == set(can.split())


def test_the_version_is_not_believed() -> None:
    trt = fake_tensorrt("11", Script())
    trt.__version__ = "8.6.1"
    assert not probe(trt).weak


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("OnnxParserFlag", "parser_flags"),
        ("IProgressMonitor", "progress"),
        ("ILayer.metadata", "metadata"),
        ("ILayer.precision", "weak"),
        ("OnnxParser.get_layer_output_tensor", "axes_inputs"),
        ("IBuilderConfig.builder_optimization_level", "optimization_level"),
        ("ParserError.node_operator", "error_nodes"),
        ("INormalizationLayer", "normalization_layers"),
        ("OnnxParser.get_layer_output_tensor", "native_instance_norm"),
    ],
)
def test_each_answer_hangs_on_its_own_name(name: str, field: str) -> None:
    trt = fake_tensorrt("10.0", Script())
    before = probe(trt)
    _delete(trt, name)
    assert getattr(before, field)
    assert not getattr(probe(trt), field)


def test_a_release_without_named_io_is_too_old() -> None:
    trt = fake_tensorrt("8.6", Script())
    _delete(trt, "ICudaEngine.num_io_tensors")
    with pytest.raises(
        BackendError, match=r"TensorRT 8\.6\.1 has no named inputs and outputs\. Expected 8\.5"
    ):
        probe(trt)


@pytest.mark.parametrize(
    ("weak", "deprecated", "strong", "chosen"),
    [
        (True, False, False, "weak"),
        (True, False, True, "weak"),
        (True, True, True, "strong"),
        (False, True, True, "strong"),
    ],
)
def test_the_default_is_what_the_release_recommends(
    weak: bool, deprecated: bool, strong: bool, chosen: str
) -> None:
    found = replace(NOTHING, weak=weak, weak_is_deprecated=deprecated, strong=strong)
    assert choose_typing(found, "auto") == chosen


def test_what_is_asked_for_is_taken() -> None:
    found = replace(NOTHING, weak=True, weak_is_deprecated=True, strong=True)
    assert (choose_typing(found, "weak"), choose_typing(found, "strong")) == ("weak", "strong")


@pytest.mark.parametrize(("has", "lacks"), [("weak", "strong"), ("strong", "weak")])
def test_a_typing_that_is_not_there_is_refused(has: str, lacks: Any) -> None:
    found = replace(NOTHING, version="1.2", **{has: True})
    with pytest.raises(
        BackendError, match=rf"TensorRT 1\.2 has no {lacks} typing\. Expected --typing {has} or auto"
    ):
        choose_typing(found, lacks)


def test_a_module_that_does_not_load_is_one_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text("raise OSError('libnvinfer.so.10:\\n cannot open')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(BackendError) as error:
        import_tensorrt()
    text = str(error.value)
    assert "libnvinfer.so.10: cannot open" in text
    assert "\n" not in text
    assert "--backend onnx" in text

"""What TensorRT computes in FP32 by itself, by version and typing."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any, Literal

import pytest
from fake_tensorrt import Script, fake_tensorrt

from overflow_fixer.backends.tensorrt.protection import find_protected, protected_by
from overflow_fixer.errors import BackendError

LN_GN = {"LayerNormalization", "GroupNormalization"}
ALL = {*LN_GN, "InstanceNormalization"}


@pytest.mark.parametrize(
    ("version", "operators"),
    [
        ("8.5.3.1", set()),
        ("8.6.0", LN_GN),
        ("8.6.1.6", LN_GN),
        ("9.3.0", LN_GN),
        ("10.0.0b6", ALL),
        ("10.16.0", ALL),
    ],
)
def test_weak_typing_protects_normalisations_from_the_version_that_has_a_layer_of_them(
    version: str, operators: set[str]
) -> None:
    found = protected_by(version, "weak")
    assert found.keys() == operators
    assert all(reason.startswith("protected: TensorRT's weak typing computes") for reason in found.values())


@pytest.mark.parametrize("version", ["8.6.1", "10.0.0", "11.0.0"])
def test_strong_typing_protects_nothing(version: str) -> None:
    assert protected_by(version, "strong") == {}


def _install(variant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trt = fake_tensorrt(variant, Script())
    trt.__spec__ = ModuleSpec("tensorrt", None, origin="a fake")
    monkeypatch.setitem(sys.modules, "tensorrt", trt)


@pytest.mark.parametrize(
    ("variant", "typing", "operators"),
    [
        ("8.6", "auto", LN_GN),
        ("8.6", "weak", LN_GN),
        ("10.0", "weak", ALL),
        ("10.0", "strong", set()),
        ("10.12", "auto", set()),
        ("10.12", "weak", ALL),
        ("11", "auto", set()),
    ],
)
def test_it_is_asked_of_the_tensorrt_that_is_there(
    variant: Any,
    typing: Literal["auto", "weak", "strong"],
    operators: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _install(variant, monkeypatch)
    assert find_protected(typing).keys() == operators


def test_a_typing_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _install("8.6", monkeypatch)
    with pytest.raises(BackendError, match="has no strong typing"):
        find_protected("strong")

"""What TensorRT computes in FP32 by itself, by what it has and by typing."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from typing import Any, Literal

import pytest
from fake_tensorrt import Script, Variant, fake_tensorrt

from overflow_fixer.backends.tensorrt.capabilities import Capabilities, probe
from overflow_fixer.backends.tensorrt.protection import find_protected, protected_by
from overflow_fixer.errors import BackendError

LN_GN = {"LayerNormalization", "GroupNormalization"}
ALL = {*LN_GN, "InstanceNormalization"}


def _found(variant: Variant, **changes: Any) -> Capabilities:
    return replace(probe(fake_tensorrt(variant, Script())), **changes)


@pytest.mark.parametrize(("variant", "operators"), [("8.6", LN_GN), ("10.0", ALL), ("10.12", ALL)])
def test_weak_typing_protects_normalisations_where_there_is_a_layer_of_them(
    variant: Variant, operators: set[str]
) -> None:
    found = protected_by(_found(variant), "weak")
    assert found.keys() == operators
    assert all(reason.startswith("protected: TensorRT's weak typing computes") for reason in found.values())
    assert protected_by(_found(variant, normalization_layers=False), "weak") == {}


def test_the_version_is_not_believed() -> None:
    assert protected_by(_found("8.6", version="10.0.1"), "weak").keys() == LN_GN
    assert protected_by(_found("10.0", version="8.6.1"), "weak").keys() == ALL


@pytest.mark.parametrize("variant", ["8.6", "10.0", "11"])
def test_strong_typing_protects_nothing(variant: Variant) -> None:
    assert protected_by(_found(variant), "strong") == {}


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

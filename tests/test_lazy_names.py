"""Packages whose names import their module late give every name they list, each from one module, again and again."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import overflow_fixer
from overflow_fixer.lazy_names import lazy_names

HIDDEN = "not TYPE_CHECKING"
PACKAGES = [
    "overflow_fixer",
    *(
        found.name
        for found in pkgutil.walk_packages(overflow_fixer.__path__, "overflow_fixer.")
        if found.ispkg and hasattr(import_module(found.name), "__getattr__")
    ),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_that_a_package_lists_is_there_and_is_no_module(name: str) -> None:
    package = import_module(name)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    for listed in package.__all__:
        assert listed not in modules
        found = getattr(package, listed)
        assert not isinstance(found, ModuleType)
        assert getattr(package, listed) is found


@pytest.mark.parametrize("name", PACKAGES)
def test_help_and_completion_know_every_name_before_it_is_used(name: str) -> None:
    code = f"import {name} as package; print(set(package.__all__) - set(dir(package)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_no_way_to_any_other_name(name: str) -> None:
    """They take what a module's `__getattr__` gives for anything, so that a name that is misspelt would pass them."""
    package = import_module(name)
    assert package.__file__ is not None
    statements = ast.parse(Path(package.__file__).read_text(encoding="utf-8")).body
    hidden = [one for one in statements if isinstance(one, ast.If) and ast.unparse(one.test) == HIDDEN]
    assert any("__getattr__" in ast.unparse(one) for one in hidden)
    assert not any("__getattr__" in ast.unparse(one) for one in statements if one not in hidden)


def test_a_name_that_is_not_listed_is_an_attribute_error() -> None:
    find, _ = lazy_names("overflow_fixer", {"errors": ("FixError",)})
    assert find("FixError") is overflow_fixer.FixError
    with pytest.raises(AttributeError, match="module 'overflow_fixer' has no attribute 'ModelError'"):
        find("ModelError")


def test_a_plan_imports_neither_what_scans_nor_what_builds_nor_what_draws_tables() -> None:
    code = "import sys, overflow_fixer.cli.plan; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    late = {
        "overflow_fixer.ranges.collect",
        "overflow_fixer.backends.table",
        "overflow_fixer.backends.mixed_onnx.emission",
        "overflow_fixer.calibration.readers",
        "overflow_fixer.reports.terminal",
        "onnx_graphsurgeon",
        "rich.console",
        "h5py",
    }
    assert late.isdisjoint(loaded)

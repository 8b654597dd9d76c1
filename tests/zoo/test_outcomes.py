"""Whether an outcome that is there still holds: as long as nothing that it rests on changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zoo_models import make_entry, write_model

from overflow_fixer.errors import OutputError
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import (
    Kind,
    describe_basis,
    find_current,
    find_versions,
    make_outcome,
    save_outcome,
)

LIBRARIES = ("library.so", "plugin.so")


@pytest.fixture
def entry(tmp_path: Path) -> ZooEntry:
    """A model with a library of custom operators and a plug-in."""
    found = make_entry(write_model(tmp_path, "m"))
    library, plugin = (tmp_path / name for name in LIBRARIES)
    for path in (library, plugin):
        path.write_bytes(b"a library")
    build = found.config.build.model_copy(update={"plugins": (plugin,)})
    return _configure(found, custom_ops=(library,), build=build)


def _configure(entry: ZooEntry, **changes: Any) -> ZooEntry:
    return replace(entry, config=entry.config.model_copy(update=changes))


def _end(entry: ZooEntry, kind: Kind = "failed", code: int | None = 3) -> None:
    save_outcome(make_outcome(entry, describe_basis(entry), kind, "it went so", code))


def _holds(entry: ZooEntry) -> bool:
    return find_current(entry, (find_versions(),)) is not None


@pytest.mark.parametrize("name", ["m.onnx", "m.npz", *LIBRARIES])
def test_an_outcome_holds_until_a_file_that_it_rests_on_changes(name: str, entry: ZooEntry) -> None:
    assert not _holds(entry)
    _end(entry)
    assert _holds(entry)
    path = entry.config.model.with_name(name)
    path.write_bytes(path.read_bytes() + b"?")
    assert not _holds(entry)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: _configure(entry, custom_ops=()),
        lambda entry: _configure(entry, refuse_layernorm=True),
        lambda entry: _configure(entry, calib="random"),
    ],
)
def test_other_settings_or_data_are_not_what_an_outcome_is_of(
    change: Callable[[ZooEntry], ZooEntry], entry: ZooEntry
) -> None:
    _end(entry)
    assert not _holds(change(entry))


def test_an_outcome_of_any_of_the_versions_that_it_could_be_run_with_holds(entry: ZooEntry) -> None:
    _end(entry)
    other = {**find_versions(), "onnxruntime": "another"}
    assert find_current(entry, (other, find_versions())) is not None
    assert find_current(entry, (other,)) is None


@pytest.mark.parametrize(
    ("kind", "code", "changed", "holds"),
    [
        ("timed_out", None, {"timeout_minutes": 1.0}, False),
        ("timed_out", None, {"memory_gib": 1.0}, False),
        ("out_of_memory", None, {"memory_gib": 1.0}, False),
        ("timed_out", None, {"priority": 3, "retries": 5}, True),
        ("failed", 3, {"timeout_minutes": 1.0, "memory_gib": 1.0}, True),
        ("failed", OutputError.exit_code, {}, False),
    ],
)
def test_limits_count_for_what_they_ended_and_a_folder_in_the_way_for_nothing(
    kind: Kind, code: int | None, changed: dict[str, Any], holds: bool, entry: ZooEntry
) -> None:
    _end(entry, kind, code)
    assert _holds(replace(entry, **changed)) is holds

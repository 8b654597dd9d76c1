"""The contract with TensorRT, 8.6 to 11.4: each name and signature the backend uses is where it believes.

The real bindings of each release are imported over stub libraries, so no GPU is needed: see binding_wheels.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from binding_uses import NAMES, USES, Use, attributes_used, find_fault, is_plain, names_defined
from binding_wheels import RELEASES, load

from overflow_fixer.backends import tensorrt

_OF_ONNX = "standalone_changes.py"
"""Its values of any type are ONNX's messages."""
SOURCES = tuple(
    path for path in sorted(Path(tensorrt.__file__).parent.rglob("*.py")) if path.name != _OF_ONNX
)

CAN = {
    "8.6.1": "weak explicit_batch named_io metadata parser_flags optimization_level normalization_layers",
    "10.0.1": "weak strong named_io metadata progress parser_flags optimization_level axes_inputs error_nodes "
    "normalization_layers native_instance_norm",
    "10.12.0.36": "weak weak_is_deprecated strong named_io metadata progress parser_flags "
    "optimization_level axes_inputs error_nodes "
    "normalization_layers native_instance_norm",
    "10.16.1.11": "weak weak_is_deprecated strong named_io metadata progress parser_flags "
    "optimization_level axes_inputs error_nodes "
    "normalization_layers native_instance_norm",
    "11.4.0.106": "weak_is_deprecated strong named_io metadata progress parser_flags "
    "optimization_level axes_inputs error_nodes "
    "normalization_layers native_instance_norm",
}
TYPING = {
    "8.6.1": ("weak", "weak", None),
    "10.0.1": ("weak", "weak", "strong"),
    "10.12.0.36": ("strong", "weak", "strong"),
    "10.16.1.11": ("strong", "weak", "strong"),
    "11.4.0.106": ("strong", None, "strong"),
}


@pytest.fixture(scope="module", params=[release.version for release in RELEASES])
def bindings(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = load(request.param, request.config)
    assert found["version"] == request.param
    return found


def test_the_probe_answers_as_it_should(bindings: dict[str, Any]) -> None:
    version = bindings["version"]
    answers = dict(bindings["capabilities"])
    assert answers.pop("version") == version
    assert {name for name, can in answers.items() if can} == set(CAN[version].split())


def test_typing_is_chosen_or_refused(bindings: dict[str, Any]) -> None:
    for asked, expected in zip(("auto", "weak", "strong"), TYPING[bindings["version"]], strict=True):
        chosen = bindings["typing"][asked]
        if expected is None:
            assert chosen.startswith(f"TensorRT {bindings['version']} has no {asked} typing")
        else:
            assert chosen == expected


def test_every_use_holds(bindings: dict[str, Any]) -> None:
    can = bindings["capabilities"] | {"always": True}
    used = [use for use in USES if can[use.when]]
    assert len(used) > len(USES) // 2
    assert [fault for use in used if (fault := find_fault(use, bindings)) is not None] == []


def test_pins_are_gone_where_weak_typing_is(bindings: dict[str, Any]) -> None:
    pins = [use for use in USES if use.when == "weak"]
    faults = [find_fault(use, bindings) for use in pins]
    assert pins
    assert [fault is None for fault in faults] == [bindings["capabilities"]["weak"]] * len(pins)


def test_callbacks_can_be_subclassed(bindings: dict[str, Any]) -> None:
    assert bindings["callbacks"] == {
        "IProfiler": True,
        "IOutputAllocator": True,
        "IProgressMonitor": bindings["capabilities"]["progress"],
    }


def test_the_logger_records_by_severity(bindings: dict[str, Any]) -> None:
    assert bindings["logged"] == {"errors": ["INTERNAL_ERROR", "ERROR"], "warnings": ["WARNING"]}


def test_the_plugins_take_the_logger(bindings: dict[str, Any]) -> None:
    assert bindings["plugins"] is False  # the stub's null: the call itself went through


def test_shapes_are_like_tuples(bindings: dict[str, Any]) -> None:
    assert bindings["shape"] == [2, -1, 3]
    assert (bindings["shape_equals_tuple"], bindings["shape_differs_from_tuple"]) == (True, False)


def test_data_types_have_names(bindings: dict[str, Any]) -> None:
    assert bindings["data_type_names"] == ["FLOAT", "HALF"]


def test_the_table_covers_what_the_modules_use(bindings: dict[str, Any]) -> None:
    members = {name for owner in bindings["classes"].values() for name in owner}
    used = attributes_used(SOURCES)
    uncovered = {
        name: sorted(files)
        for name, files in used.items()
        if name in members - NAMES - {"__members__", "__init__", *dir(list)}
    }
    assert {"create_network", "precision", "get_tensor_name"} <= set(used)
    assert uncovered == {}


def test_nothing_else_is_asked_of_tensorrt() -> None:
    """A name that no release has: a slip of the pen, or missing in the table."""
    known = NAMES | names_defined(SOURCES)
    unknown = {
        name: sorted(files)
        for name, files in attributes_used(SOURCES).items()
        if name not in known and not is_plain(name)
    }
    assert unknown == {}


def test_the_table_has_no_double_and_no_stale_rows() -> None:
    words = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in SOURCES)))
    assert len(set(USES)) == len(USES)
    assert [use.name for use in USES if use.name.rpartition(".")[2] not in words] == []


MODULE: dict[str, Any] = {
    "functions": {"call": ["logger: capsule, namespace: str"]},
    "values": ["float32"],
    "classes": {
        "Engine": {
            "__init__": {
                "kind": "method",
                "signatures": ["self: trt.tensorrt.Engine, logger: trt.tensorrt.ILogger"],
            },
            "read_only": {"kind": "attribute", "writable": False},
            "run": {"kind": "method", "signatures": ["self: X, name: str, count: typing.SupportsInt = 1"]},
        },
        "Flag": {"FP16": {"kind": "value"}},
    },
}


@pytest.mark.parametrize(
    ("name", "how", "fault"),
    [
        ("Engine", "(logger: ILogger)", None),
        ("Engine", "()", "fits none"),
        ("Engine.run", "(name: str)", None),
        ("Engine.run", "(name: str, count: int)", None),
        ("Engine.run", "(count: int, name: str)", "fits none"),
        ("Engine.run", "(name: int)", "fits none"),
        ("Engine.run", "()", "fits none"),
        ("Engine.run", "(name, count, more)", "fits none"),
        ("Engine.run", "read", "not a attribute"),
        ("Engine.stop", "()", "no Engine.stop"),
        ("Engine.read_only", "read", None),
        ("Engine.read_only", "write", "cannot be set"),
        ("Engine.read_only", "()", "fits none"),
        ("Flag.FP16", "value", None),
        ("Flag.BF16", "value", "no Flag.BF16"),
        ("Gone.name", "read", "no class Gone"),
        ("Flag", "type", None),
        ("Gone", "type", "no class Gone"),
        ("call", "(logger, namespace: str)", None),
        ("call", "(logger)", "fits none"),
        ("float32", "value", None),
        ("float64", "value", "no constant float64"),
    ],
)
def test_a_fault_is_found(name: str, how: str, fault: str | None) -> None:
    found = find_fault(Use(name, "always", how), MODULE)
    assert found is None if fault is None else fault in (found or "")


def test_uses_are_found_through_every_way_a_value_takes(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "class A:\n"
        "    engine: Any\n"
        "    def __init__(self, trt: Any) -> None:\n"
        "        self.one, self.two = trt.made(), 2\n"
        "        self.one.by_field\n"
        "        self.two.not_this\n"
        "def make(trt: Any) -> Any:\n"
        "    return trt\n"
        "def use(a: A, rows: list[Any], text: str) -> str:\n"
        "    a.engine.by_annotation = 1\n"
        "    for row in rows:\n"
        "        row.by_loop\n"
        "    make(text).by_result\n"
        "    [item.by_comprehension for item in a.engine.items]\n"
        "    getattr(a.engine, 'by_question', None)\n"
        "    return text.nor_this\n"
    )
    other = tmp_path / "other.py"
    other.write_text(
        "def use(a: A, b: Artifact) -> None:\n    a.one.by_other_module\n    b.engine.not_a_record\n"
    )
    found = set(attributes_used([source, other]))
    assert found == {
        "made", "by_field", "by_annotation", "by_loop", "by_result", "by_comprehension", "items", "by_question",
        "by_other_module",
    }  # fmt: skip

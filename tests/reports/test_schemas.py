from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overflow_fixer.errors import ConfigError
from overflow_fixer.reports.schemas import find_violation, read_checked, read_schema

SCHEMAS = ("report.schema.json", "plan.schema.json", "zoo-report.schema.json")


def _walk(schema: Any, place: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield place, schema
        for key, value in schema.items():
            yield from _walk(value, f"{place}/{key}")
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from _walk(value, f"{place}/{index}")


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, found in _walk(schema):
        for group in ("properties", "patternProperties"):
            for name, field in found.get(group, {}).items():
                yield f"{place}/{name}", field


def _is_number(field: dict[str, Any]) -> bool:
    if "anyOf" in field:
        return any(map(_is_number, field["anyOf"]))
    return field.get("$ref") == "#/$defs/number" or "integer" in field.get("type", ())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_draft_2020_12(name: str) -> None:
    schema = read_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schemas_id_ends_with_its_version(name: str) -> None:
    schema = read_schema(name)
    assert schema["$id"].endswith(f":{schema['properties']['schema_version']['const']}")


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_object_is_closed_and_demands_its_fields(name: str) -> None:
    objects = [(place, s) for place, s in _walk(read_schema(name)) if s.get("type") == "object"]
    assert len(objects) > 3
    for place, found in objects:
        assert found["additionalProperties"] is False, place
        assert list(found.get("properties", {})) == found.get("required", []), place


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_is_described_and_every_number_has_a_unit(name: str) -> None:
    fields = list(_fields(read_schema(name)))
    assert sum(_is_number(field) for _, field in fields) > 2
    for place, field in fields:
        assert field.get("description"), place
        assert ("Unit: " in field["description"]) == _is_number(field), place


def test_both_schemas_share_one_idea_of_a_pin() -> None:
    report, plan = (read_schema(name)["$defs"] for name in SCHEMAS[:2])
    assert {name: report[name] for name in plan} == plan


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


def _refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_checked(path, "plan.schema.json", "Expected a plan.", "Expected one that is there.", ConfigError)
    message = str(caught.value)
    assert str(path) in message
    assert message.endswith("Expected a plan." if path.exists() else "Expected one that is there.")
    assert "\n" not in message
    return message


def test_a_missing_file(plan_file: Path) -> None:
    assert _refusal(plan_file) == f"{plan_file} is not there. Expected one that is there."
    plan_file.write_text("")
    assert "plan.json is not there" in _refusal(plan_file / "plan.json")


def test_a_folder(tmp_path: Path) -> None:
    assert "cannot be read" in _refusal(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"not json"])
def test_what_is_not_json(plan_file: Path, data: bytes) -> None:
    plan_file.write_bytes(data)
    assert "is not JSON" in _refusal(plan_file)


@pytest.mark.parametrize("text", ["[]", "null", "7", '"plan"', "{}"])
def test_json_of_another_kind(plan_file: Path, text: str) -> None:
    plan_file.write_text(text)
    assert "is not what it should be: the whole document: " in _refusal(plan_file)


def test_another_version_is_named_before_anything_else(plan_file: Path) -> None:
    plan_file.write_text('{"schema_version": "2.0", "nodes": []}')
    assert "its schema_version is '2.0', and this version reads '1.2'" in _refusal(plan_file)


def test_a_long_complaint_is_cut() -> None:
    violation = find_violation({"x" * 5000: 1}, read_schema("plan.schema.json"))
    assert violation is not None
    assert len(violation) < 300

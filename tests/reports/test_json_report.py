from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report_factories import (
    CONTROL,
    ENGINE_FACTORIES,
    LONG,
    make_crowded,
    make_engine_report,
    make_failed,
    make_hostile,
    make_lost,
    make_report,
    make_untouched,
)

from overflow_fixer.errors import ConfigError
from overflow_fixer.records import FixReport
from overflow_fixer.reports import print_document, render_html, render_json, render_text
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.html_report import fill_template
from overflow_fixer.reports.json_report import load_document
from overflow_fixer.reports.schemas import read_schema

FACTORIES: list[Callable[[Path], FixReport]] = [
    make_report,
    make_untouched,
    make_failed,
    make_lost,
    make_hostile,
    make_crowded,
    *ENGINE_FACTORIES,
    lambda folder: make_hostile(folder, CONTROL),
    lambda folder: make_hostile(folder, LONG),
    lambda folder: make_hostile(folder, "NaN"),
]
MAPS = {("versions",), ("durations_seconds",)}
Path_ = tuple[str | int, ...]


def _refuse_token(token: str) -> float:
    raise AssertionError(f"the bare token {token} is not JSON")


@pytest.fixture(scope="module")
def validator() -> Any:
    return jsonschema.Draft202012Validator(read_schema("report.schema.json"))


@pytest.mark.parametrize("make", FACTORIES)
def test_a_report_obeys_the_schema(validator: Any, tmp_path: Path, make: Callable[[Path], FixReport]) -> None:
    text = render_json(make(tmp_path))
    validator.validate(json.loads(text, parse_constant=_refuse_token))
    assert text.encode("utf-8").decode("utf-8") == text


@pytest.mark.parametrize("make", FACTORIES)
def test_a_report_read_back_tells_the_same(tmp_path: Path, make: Callable[[Path], FixReport]) -> None:
    report = make(tmp_path)
    path = tmp_path / "report.json"
    path.write_text(render_json(report), encoding="utf-8")
    document = load_document(path)
    assert document == build_document(report)
    assert print_document(document) == render_text(report)
    assert fill_template(document) == render_html(report)


def _paths(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """One path to every kind of place; of a list, its first entry stands for all."""
    yield path
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _paths(child, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))


def _at(document: Any, path: Path_) -> Any:
    for step in path:
        document = document[step]
    return document


def _is_refused(validator: Any, document: Any, path: Path_, change: Callable[[Any], None]) -> bool:
    place = _at(document, path)
    saved = copy.copy(place)
    change(place)
    is_refused = not validator.is_valid(document)
    place.clear()
    place.update(saved) if isinstance(saved, dict) else place.extend(saved)
    return is_refused


def _shorten(value: Any) -> Any:
    """Of each list its first entry, which stands for all: to check the others a hundred times takes most of the time."""
    if isinstance(value, dict):
        return {key: _shorten(child) for key, child in value.items()}
    return [_shorten(child) for child in value[:1]] if isinstance(value, list) else value


@pytest.fixture
def document(tmp_path: Path) -> Any:
    return json.loads(render_json(make_engine_report(tmp_path)))


@pytest.fixture
def short(validator: Any, document: Any) -> Any:
    """The document with one entry a list: as valid, and with the same paths."""
    found = _shorten(document)
    validator.validate(found)
    assert list(_paths(found)) == list(_paths(document))
    return found


def test_a_field_too_many_is_refused_anywhere(validator: Any, short: Any) -> None:
    objects = [path for path in _paths(short) if isinstance(_at(short, path), dict)]
    assert len(objects) > 20
    for path in objects:
        assert _is_refused(validator, short, path, lambda found: found.update(extra=[])), path


def test_a_field_too_few_is_refused_anywhere(validator: Any, short: Any) -> None:
    fields = [p for p in _paths(short) if p and isinstance(p[-1], str) and p[:-1] not in MAPS]
    assert len(fields) > 100
    for *parent, name in fields:
        assert _is_refused(validator, short, tuple(parent), lambda found: found.pop(name)), (parent, name)  # noqa: B023


def test_a_value_of_another_type_is_refused_anywhere(validator: Any, short: Any) -> None:
    for *parent, step in [path for path in _paths(short) if path]:
        for wrong in ({"n": []}, [[[]]], True):
            if isinstance(_at(short, (*parent, step)), bool) and wrong is True:
                continue
            change = lambda found: found.__setitem__(step, wrong)  # noqa: B023, E731
            assert _is_refused(validator, short, tuple(parent), change), (*parent, step, wrong)


@pytest.mark.parametrize("wrong", ["nan", "inf", "1.5", None])
def test_a_number_is_a_number_or_one_of_three_strings(validator: Any, document: Any, wrong: Any) -> None:
    document["ranges"]["threshold"] = wrong
    assert not validator.is_valid(document)


def test_a_negative_count_is_refused(validator: Any, document: Any) -> None:
    document["share"]["fp16_nodes"] = -1
    assert not validator.is_valid(document)


def test_another_file_is_refused_with_its_place(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "report.json"
    document["plan"]["pins"][1]["findings"][0]["value"] = "large"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"plan\.pins\[1\]\.findings\[0\]\.value: 'large'"):
        load_document(path)


def test_of_a_report_that_is_not_there_what_makes_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"report\.json is not there\. Expected the report that fix-fp16 MODEL and"
    ):
        load_document(tmp_path / "report.json")

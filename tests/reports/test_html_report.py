from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_factories import (
    CONTROL,
    ENGINE_FACTORIES,
    HOSTILE,
    LONG,
    make_crowded,
    make_engine_report,
    make_error,
    make_failed,
    make_hostile,
    make_lost,
    make_passing,
    make_report,
    make_untouched,
)

from overflow_fixer.records import FixReport, Verification
from overflow_fixer.reports import wording
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.html_report import fill_template, measure_bar, render_html

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
    lambda folder: make_hostile(folder, "'\" onload=alert(1) style='x"),
]
VOID = {"meta", "br", "hr", "img", "link", "input"}
ALLOWED = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "p",
    "strong",
    "h1",
    "h2",
    "h3",
    "dl",
    "dt",
    "dd",
}
ALLOWED |= {"div", "span", "i", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "style", "open", "aria-hidden"}
ATTRIBUTES |= {"colspan"}


class _Page(HTMLParser):
    """The tags, attributes and text of a page; fails on tags that do not nest."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.blocks: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []
        self.text = " ".join("\n".join(self.blocks).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.blocks.append(data)


@pytest.mark.parametrize("make", FACTORIES)
def test_a_page_is_well_formed_and_has_only_what_the_template_writes(
    tmp_path: Path, make: Callable[[Path], FixReport]
) -> None:
    source = render_html(make(tmp_path))
    page = _Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert page.tags <= ALLOWED
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    source.encode("utf-8")


def test_a_page_needs_no_network(tmp_path: Path) -> None:
    source = render_html(make_report(tmp_path))
    for word in ("http:", "https:", "url(", "@import", "src=", "href=", "<script", "<link"):
        assert word not in source
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in _Page(source).attributes


def test_a_name_cannot_become_markup(tmp_path: Path) -> None:
    source = render_html(make_hostile(tmp_path))
    assert "<script>" not in source
    assert HOSTILE in _Page(source).text


def test_random_data_is_said_before_anything_else(tmp_path: Path) -> None:
    page = _Page(render_html(make_report(tmp_path, synthetic=True)))
    body = page.text[page.text.index("FP16 report") + len("FP16 report") :]
    assert body.strip().startswith("RANDOM DATA: ")
    assert "RANDOM DATA" not in render_html(make_report(tmp_path))


def test_what_the_batches_prove_is_said_where_all_pass(tmp_path: Path) -> None:
    assert "Passing on 3 batches leaves room" in render_html(make_report(tmp_path))
    assert "leaves room" not in render_html(make_failed(tmp_path))


def test_light_and_dark(tmp_path: Path) -> None:
    source = render_html(make_report(tmp_path))
    assert "color-scheme: light dark" in source
    assert "@media (prefers-color-scheme: dark)" in source


def _replace_leaves(
    value: Any, change: Callable[[tuple[Any, ...], Any], Any], path: tuple[Any, ...] = ()
) -> Any:
    if isinstance(value, dict):
        return {key: _replace_leaves(child, change, (*path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [_replace_leaves(child, change, (*path, index)) for index, child in enumerate(value)]
    return change(path, value)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """Every list filled, no number that is a string."""
    (tmp_path / "plan.json").write_text("{}")
    right = replace(make_passing("logits", "boxes"), first_wrong=make_error("/conv3/out", 1.0))
    report = make_engine_report(
        tmp_path, naive=right, fixed=right, fp32_engine=right, warnings=("a",), synthetic=True
    )
    ranges = replace(report.ranges, not_observed={"sequence": "no tensor"})
    files = (tmp_path / "plan.json",)
    document = build_document(replace(report, ranges=ranges, files=files))
    document["ranges"]["file"] = "x"
    return document


def _spell(number: float) -> Iterator[str]:
    yield f"{number:,}"
    for say in (
        wording.say_number,
        wording.say_bits,
        wording.say_share,
        wording.say_bytes,
        wording.say_flops,
    ):
        yield say(number)


def test_every_text_of_the_document_is_on_the_page(document: dict[str, Any]) -> None:
    texts: dict[str, tuple[Any, ...]] = {}

    def mark(path: tuple[Any, ...], value: Any) -> Any:
        if not isinstance(value, str):
            return value
        marked = f"<text {len(texts)}>"
        texts[marked] = path
        return marked

    page = _Page(fill_template(_replace_leaves(document, mark)))
    missing = {path for text, path in texts.items() if text not in page.text}
    assert len(texts) > 80
    repeated = {path for path in missing if path[0] == "plan" and path[-1] == "node"}  # the pin's own name
    assert all(path[1] == "pins" and path[-3] == "findings" for path in repeated)
    told_in_words = {path for path in missing if path[-1] in ("traced_in", "observe", "provider", "kept_for")}
    assert missing - repeated - told_in_words == {("verdict", "status")}


def test_every_number_of_the_document_is_on_the_page(document: dict[str, Any]) -> None:
    numbers: dict[int, tuple[Any, ...]] = {}

    def mark(path: tuple[Any, ...], value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        marked = (10_007 + 13 * len(numbers)) * (10**7 if path[-1] in ("flops", "fp16_flops") else 1)
        numbers[marked] = path
        return marked

    text = _Page(fill_template(_replace_leaves(document, mark))).text
    missing = {path for number, path in numbers.items() if not any(said in text for said in _spell(number))}
    assert len(numbers) > 100
    assert missing == set()


def test_an_empty_verification_says_so(tmp_path: Path) -> None:
    assert "No output was compared." in render_html(make_report(tmp_path, fixed=Verification((), 0)))


@pytest.mark.parametrize(
    ("bits", "bar"),
    [
        (0.0, ("left", 0.0)),
        (8.0, ("left", 50.0)),
        (-4.0, ("over", 25.0)),
        (-112.0, ("over", 100.0)),
        ("NaN", ("over", 100.0)),
        ("-Infinity", ("over", 100.0)),
        ("Infinity", ("left", 100.0)),
    ],
)
def test_bars(bits: float | str, bar: tuple[str, float]) -> None:
    assert measure_bar(bits) == bar


def test_one_is_no_plural(document: dict[str, Any]) -> None:
    document["share"].update(fp16_nodes=1, float_nodes=1)
    document["backend"].update(fp16_node_count=1, cast_count=1)
    document["ranges"]["tensor_count"] = document["engine"]["layers"] = 1
    page = fill_template(document)
    told = (
        "1 of 1 node with",
        "1 node in FP16",
        "1 layer that only converts",
        "of 1 float tensor went",
        "of 1 layer of the",
    )
    assert [text for text in told if text not in page] == []

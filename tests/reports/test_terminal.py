from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import unescape
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from report_factories import (
    CONTROL,
    ENGINE_FACTORIES,
    HOSTILE,
    LONG,
    NAN,
    make_crowded,
    make_error,
    make_failed,
    make_hostile,
    make_lost,
    make_passing,
    make_report,
    make_untouched,
)
from rich.cells import cell_len
from rich.console import Console

from overflow_fixer.records import FixReport, OutputVerdict, Verification
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.html_report import render_html
from overflow_fixer.reports.terminal import closing_table, print_document, render_text

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
    lambda folder: make_hostile(folder, "模型/卷积" * 30),
    lambda folder: make_hostile(folder, ""),
]


def _say(report: FixReport, width: int = 80) -> str:
    return print_document(build_document(report), width)


def _words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [30, 80, 100])
@pytest.mark.parametrize("make", FACTORIES)
def test_it_fits_the_terminal(tmp_path: Path, make: Callable[[Path], FixReport], width: int) -> None:
    for line in _say(make(tmp_path), width).splitlines():
        assert cell_len(line) <= width
        assert line.isprintable()


@pytest.mark.parametrize("make", FACTORIES)
def test_no_number_is_cut_at_80_columns(tmp_path: Path, make: Callable[[Path], FixReport]) -> None:
    assert "…" not in _say(make(tmp_path), 80)


def test_the_sections_come_in_order(tmp_path: Path) -> None:
    text = render_text(make_report(tmp_path, synthetic=True, warnings=("mind the gap",)))
    heads = ["RANDOM DATA", "FIXED and verified", "Warning: mind the gap", "Over the threshold of 10000"]
    heads += ["Pinned to FP32: 3 nodes", "Clamped: 1 constant", "Runs in FP16", "Error against FP32"]
    heads += ["First tensor to go wrong", "Repair: 1 round, from 2 pins to 3", "Files in "]
    heads += ["FIXED and verified"]
    starts = [line for line in text.splitlines() if any(line.startswith(head) for head in heads)]
    assert [line[: len(head)] for line, head in zip(starts, heads, strict=True)] == heads


def test_clamps_are_told_where_there_are_any(tmp_path: Path) -> None:
    report = make_report(tmp_path)
    assert "Clamped: 1 constant" in render_text(report)
    text = render_text(replace(report, plan=replace(report.plan, clamps=())))
    assert "Clamped" not in text
    assert "\n\n\n" not in text


def test_random_data_is_said_on_the_first_line(tmp_path: Path) -> None:
    assert render_text(make_lost(tmp_path, synthetic=True)).startswith("RANDOM DATA: ")
    assert "RANDOM DATA" not in render_text(make_report(tmp_path))


def test_before_and_after_stand_side_by_side(tmp_path: Path) -> None:
    lines = [_words(line) for line in render_text(make_report(tmp_path)).splitlines()]
    at = lines.index("logits before 2990 10 n/a n/a WRONG")
    assert lines[at + 1] == "after 0 0 0.0123 55.5 ok"
    assert "96 of 100 float nodes (96.0 %)" in lines
    flops = "3.21 GFLOP of 3.3 GFLOP (97.3 %) in products (Conv, ConvTranspose, Gemm, MatMul); FLOPs of 2 nodes unknown"
    assert flops in " ".join(lines)


def test_what_the_batches_prove_is_said_where_all_pass(tmp_path: Path) -> None:
    assert "Passing on 3 batches leaves room" in _words(_say(make_report(tmp_path)))
    assert "leaves room" not in _words(_say(make_failed(tmp_path)))


def test_the_first_wrong_tensor_of_both_sides_is_named(tmp_path: Path) -> None:
    text = _words(render_text(make_failed(tmp_path)))
    assert "before: /conv3/out: 2990 NaN, 10 Inf, SNR n/a dB, worst in frames/0003.npz" in text
    assert "after: /head/Exp_output_0: 2990 NaN" in text


def test_where_nan_begins_is_told_if_that_is_behind_the_first_wrong_tensor(tmp_path: Path) -> None:
    small, masks = make_error("/small", 12.0), make_error("/mask", candidate_inf=7, reference_inf=7)
    lost = make_error("/exp", NAN, candidate_inf=8, reference_inf=7, worst_batch_snr_db=NAN)
    behind = replace(make_passing("logits"), first_wrong=small, trace=(small, masks, lost))
    told = "NaN or infinities begin in /exp: 0 NaN, 8 Inf, SNR n/a dB"
    report = make_report(tmp_path, naive=behind)
    assert told in _words(render_text(report))
    assert 'NaN or infinities begin in <span class="name">/exp</span>.' in render_html(report)
    for others in (
        replace(behind, first_wrong=lost),
        replace(behind, trace=(small, masks)),
    ):
        report = make_report(tmp_path, naive=others)
        assert "infinities begin" not in render_text(report) + render_html(report)


def test_the_first_tensor_that_cannot_be_computed_says_why(tmp_path: Path) -> None:
    lost = make_error("/emb", failure="Gather node. Name:'N' idx=9 is out of bounds")
    report = make_report(tmp_path, naive=replace(make_passing("logits"), first_wrong=lost))
    said = "Gather node. Name:'N' idx=9 is out of bounds"
    assert f"before: /emb: it cannot be computed: {said}" in _words(render_text(report))
    assert f"</span>, which cannot be computed on {lost.worst_batch}: {said}." in unescape(
        render_html(report)
    )


def test_a_failed_output_says_why_and_comes_first(tmp_path: Path) -> None:
    text = render_text(make_failed(tmp_path))
    assert text.startswith("NOT verified: 1 of 2 outputs wrong: logits: ")
    assert text.index("logits   before") < text.index("boxes    before")
    assert "  logits: 3000 of 3000 elements are NaN or Inf where FP32 is finite" in text.splitlines()


def test_zero_pins_are_said_to_be_zero(tmp_path: Path) -> None:
    text = render_text(make_untouched(tmp_path))
    assert text.startswith("FP16 needs no fix")
    assert "Pinned to FP32: 0 nodes\n" in text
    assert "Repair: no round was run\n" in text


def test_long_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    text = render_text(make_crowded(tmp_path))
    assert "Over the threshold of 10000, or not finite: 400 of 400 tensors" in text
    assert "  and 390 more tensors: see report.json" in text
    assert "Pinned to FP32: 400 nodes, by 50 causes" in text
    assert "  and 280 nodes more, by 35 causes: see plan.json" in text
    assert "  and 15 more outputs: see report.json" in text
    assert sum(line.startswith("/t") for line in text.splitlines()) == 10
    assert sum(line.startswith("/layer") for line in text.splitlines()) == 15
    assert "/t399 " in text
    assert "/t0 " not in text


def test_a_group_names_its_first_node_and_the_rest_by_operator(tmp_path: Path) -> None:
    text = _words(_say(make_report(tmp_path), 200))
    assert "range: /conv3/out reaches 81234.5, over the threshold of 10000 [frames/0002.npz]" in text
    assert "Conv, and 2 more (Relu, Conv)" in text


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    assert HOSTILE in render_text(make_hostile(tmp_path))


def test_a_long_name_keeps_both_ends(tmp_path: Path) -> None:
    lines = _say(make_hostile(tmp_path, LONG, warnings=())).splitlines()
    short = [line for line in lines if line.startswith("/encoder") and "_output_0" in line]
    assert short
    assert all("..." in line for line in short)


def test_plain_text_has_no_colours_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    text = render_text(make_report(tmp_path))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) > 40


def test_a_terminal_gets_colours(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(closing_table(make_report(tmp_path)))
    assert "\x1b[1;32mFIXED and verified" in capture.get()


def test_a_terminal_without_unicode_is_served(tmp_path: Path) -> None:
    raw = BytesIO()
    console = Console(file=TextIOWrapper(raw, encoding="ascii", write_through=True), width=80)
    console.print(closing_table(make_crowded(tmp_path)))
    console.print(closing_table(make_hostile(tmp_path, LONG)))
    assert b"Pinned to FP32" in raw.getvalue()


def test_fp32_that_is_itself_not_finite_is_remarked(tmp_path: Path) -> None:
    assert "in the original model, 1 output held NaN or Inf" in render_text(make_lost(tmp_path))
    assert "in the original model" not in render_text(make_report(tmp_path))


def test_an_output_that_is_not_of_floats_shows_its_agreement(tmp_path: Path) -> None:
    error = make_error("ids", float("nan"), is_float=False, worst_batch_agreement=0.995)
    fixed = Verification((OutputVerdict(error, True, ""),), 3)
    lines = render_text(make_report(tmp_path, fixed=fixed)).splitlines()
    assert any(_words(line).startswith("ids after") and "99.5 % equal" in line for line in lines)


def test_no_output_compared_is_said(tmp_path: Path) -> None:
    text = render_text(make_report(tmp_path, fixed=Verification((), 0)))
    assert "no output was compared" in text
    assert text.startswith("NOT verified")


def test_files_of_several_folders_keep_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(1500))
    report = replace(make_report(tmp_path), files=(tmp_path / "a.bin", tmp_path.parent / "b.bin"))
    lines = [_words(line) for line in _say(report, 400).splitlines()]
    assert f"{tmp_path / 'a.bin'} 1.5 kB" in lines
    assert f"{tmp_path.parent / 'b.bin'} not there" in lines


def test_no_files_written_is_said(tmp_path: Path) -> None:
    assert "Files: none" in render_text(make_report(tmp_path, files=()))


def test_passing_outputs_need_no_remark(tmp_path: Path) -> None:
    text = render_text(make_untouched(tmp_path, fixed=make_passing("logits")))
    assert "WRONG" not in text

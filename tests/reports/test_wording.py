from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_factories import CONTROL
from rich.cells import cell_len

from overflow_fixer.flops import COUNTERS
from overflow_fixer.reports import wording


@given(st.text(st.characters()), st.integers(0, 60))
def test_a_shortened_name_fits(text: str, width: int) -> None:
    assert cell_len(wording.shorten_middle(text, width)) <= width


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1), st.integers(6, 60))
def test_a_shortened_name_keeps_both_ends_and_uses_the_room(text: str, width: int) -> None:
    short = wording.shorten_middle(text, width)
    if len(text) <= width:
        assert short == text
    else:
        head, tail = (width - 2) // 2, (width - 3) // 2
        assert short == f"{text[:head]}...{text[-tail:]}"
        assert len(short) == width


@given(st.lists(st.text("ab 模", max_size=50), max_size=30).map(" ".join), st.integers(20, 200))
def test_a_shortened_sentence_fits_and_has_whole_words_but_for_long_ones(text: str, width: int) -> None:
    short = wording.shorten_sentence(text, width)
    assert cell_len(short) <= width
    assert short == text or set(short.split()) <= {wording.shorten_middle(w, 30) for w in text.split()} | {
        "..."
    }


def test_a_shortened_sentence_keeps_its_numbers() -> None:
    name = "/encoder/layers.11/attention/self/query/MatMul_output_0"
    reason = f"{name} reaches -13842.25 in batch_17.npz, over the threshold of 10000 (-0.5 bits of headroom)"
    short = wording.shorten_sentence(reason, 120)
    assert short == reason.replace(name, wording.shorten_middle(name, 30))
    assert wording.shorten_sentence("holds -3.4028e+38 " * 9, 60) == (
        "holds -3.4028e+38 holds ... holds -3.4028e+38 "
    )


def test_wide_characters_count_two_cells() -> None:
    short = wording.shorten_middle("模型" * 20, 21)
    assert cell_len(short) <= 21
    assert short.startswith("模型模型")
    assert short.endswith("模型")


@given(st.text(st.characters(exclude_categories=[])))
def test_what_is_made_visible_is_printable_and_encodable(text: str) -> None:
    seen = wording.make_visible(text)
    assert seen.isprintable()
    seen.encode("utf-8")


def test_a_control_character_is_shown_not_obeyed() -> None:
    assert wording.make_visible(CONTROL) == r"tensor\x1b[31m\nred\u202e"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (65504, "65504"),
        (81234.5, "81234.5"),
        (3.4028234663852886e38, "3.40282e+38"),
        (-0.0, "-0"),
        ("NaN", "n/a"),
        ("Infinity", "inf"),
        ("-Infinity", "-inf"),
    ],
)
def test_numbers(value: float | str, said: str) -> None:
    assert wording.say_number(value) == said


@pytest.mark.parametrize(
    ("bits", "said"),
    [(-2.25, "-2.2"), (0.0, "0"), (-4.4e-5, "-4e-05"), (0.06, "0.1"), ("NaN", "n/a"), ("-Infinity", "-inf")],
)
def test_headroom_just_under_the_limit_is_not_zero(bits: float | str, said: str) -> None:
    assert wording.say_bits(bits) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.5, "50.0 %"),
        (1.0, "100.0 %"),
        (0.99999, ">99.9 %"),
        (0.0, "0.0 %"),
        (1e-6, "<0.1 %"),
        ("NaN", "n/a"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share: float | str, said: str) -> None:
    assert wording.say_share(share) == said


@pytest.mark.parametrize(("count", "said"), [(0, "0"), (99_999, "99999"), (123_456, "123k"), (10**9, "1G")])
def test_counts(count: int, said: str) -> None:
    assert wording.say_count(count) == said


def test_amounts_have_units() -> None:
    assert wording.say_bytes(0) == "0 B"
    assert wording.say_bytes(123_456) == "123 kB"
    assert wording.say_bytes(None) == "not there"
    assert wording.say_flops(3_210_000_000) == "3.21 GFLOP"
    assert wording.say_flops(10**17) == "1e+05 TFLOP"


def test_times_and_their_ratios() -> None:
    assert wording.say_milliseconds(1.0154) == "1.015"
    assert wording.say_milliseconds("NaN") == "n/a"
    assert wording.say_seconds(182.34) == "182.3 s"
    assert wording.say_ratio(1.604) == "1.60x"
    assert wording.say_ratio("NaN") == "n/a"


def test_an_output_that_is_not_of_floats_is_said_by_its_agreement() -> None:
    error = {"is_float": False, "worst_batch_agreement": 0.995, "snr_db": "NaN", "element_count": 9}
    assert wording.say_match(error) == "99.5 % equal"
    assert wording.say_match({**error, "element_count": 0}) == "n/a"
    assert wording.say_match({**error, "worst_batch_agreement": "NaN"}) == "n/a equal"
    of_floats = {**error, "is_float": True, "snr_db": 31.26}
    assert wording.say_match({**of_floats, "worst_batch_snr_db": "NaN"}) == "31.3"
    assert wording.say_match({**of_floats, "worst_batch_snr_db": 30.14}) == "30.1"


def test_what_was_fused_is_told_with_its_error_and_what_was_left() -> None:
    fused = {"source": "a.onnx", "outputs": ["y", "z"], "left": [], "max_relative_error": 2.5e-7}
    told = (
        "2 LayerNorms of a.onnx became LayerNormalization; outputs differ by at most 2.5e-07 of their largest "
        "magnitude in FP32."
    )
    assert wording.say_fused(fused) == told
    left = [{"output": "w", "reason": "its axes are computed"}]
    assert (
        wording.say_fused({**fused, "left": left})
        == f"{told} 1 more stay as they are: w, its axes are computed."
    )


def test_flops_are_said_with_what_they_are_of() -> None:
    counted = ", ".join(sorted(COUNTERS))
    share = {"fp16_flops": 3, "flops": 6, "fp16_flops_share": 0.5, "unknown_flops_nodes": 0}
    assert wording.say_flops_share(share) == f"3 FLOP of 6 FLOP (50.0 %) in products ({counted})"
    none = {"fp16_flops": 0, "flops": 0, "fp16_flops_share": "NaN", "unknown_flops_nodes": 1}
    assert wording.say_flops_share(none) == (
        f"no FLOP in products ({counted}), which alone are counted; FLOPs of 1 node unknown"
    )

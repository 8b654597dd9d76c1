"""Every spelling of Softmax and LogSoftmax is one region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, save
from spellings import check_computes, place, softmax, spell

from overflow_fixer.patterns.softmax import find_softmax

SHIFTED = "ReduceMax x -> m\nSub x m -> d\nExp d -> e\nReduceSum e -> t\n"


def _log_softmax(x: np.ndarray) -> np.ndarray:
    return np.log(softmax(x))


SPELLINGS = {
    "shifted": ("Softmax", spell(SHIFTED + "Div e t -> y", softmax)),
    "plain": ("Softmax", spell("Exp x -> e\nReduceSum e -> t\nDiv e t -> y", softmax)),
    "reciprocal": ("Softmax", spell(SHIFTED + "Reciprocal t -> i\nMul i e -> y", softmax)),
    "casts": ("Softmax", spell(SHIFTED + "Cast t -> c\nDiv e c -> y", softmax)),
    "jax2tf": (
        "Softmax",
        spell(
            "~ReduceMax x -> m\nMax low m -> f\nReshape f kept -> k\nExpand k kept -> b\nSub x b -> d\nExp d -> e\n"
            "~ReduceSum e -> t\nReshape t kept -> u\nExpand u shape -> v\nDiv e v -> y",
            softmax,
        ),
    ),
    "stop_gradient": (
        "Softmax",
        spell(
            "ReduceMax x -> m\nIdentity m -> g\nSub x g -> d\nExp d -> e\nReduceSum e -> t\nDiv e t -> y",
            softmax,
        ),
    ),
    "tf2onnx": ("Softmax", spell(SHIFTED.replace("ReduceMax", "GlobalMaxPool") + "Div e t -> y", softmax)),
    "inverse behind the axis": (
        "Softmax",
        spell(
            "Exp x -> e\n~ReduceSum e -> t\nReciprocal t -> i\nUnsqueeze i last -> u\nMul e u -> y",
            softmax,
        ),
    ),
    "log of the sum, its axis put back": (
        "LogSoftmax",
        spell(
            SHIFTED.replace("ReduceSum", "~ReduceSum")
            + "Log t -> l\nReshape l kept -> u\nExpand u shape -> v\nSub d v -> y",
            _log_softmax,
        ),
    ),
    "log of the sum": ("LogSoftmax", spell(SHIFTED + "Log t -> l\nSub d l -> y", _log_softmax)),
    "log of Softmax": ("LogSoftmax", spell("Softmax x -> p\nLog p -> y", _log_softmax)),
    "log-sum-exp, written out": (
        "LogSoftmax",
        spell(SHIFTED + "Log t -> l\nAdd m l -> s\nSub x s -> y", _log_softmax),
    ),
    "log-sum-exp, the other way round": (
        "LogSoftmax",
        spell(SHIFTED + "Log t -> l\nAdd l m -> s\nSub x s -> y", _log_softmax),
    ),
    "ReduceLogSumExp": ("LogSoftmax", spell("ReduceLogSumExp x -> l\nSub x l -> y", _log_softmax)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_region_that_computes_it(name: str, tmp_path: Path) -> None:
    kind, spelling = SPELLINGS[name]
    graph = place(spelling, tmp_path)
    (region,) = find_softmax(graph)
    assert (region.kind, region.source, region.output, region.nodes) == (kind, "x", "y", spelling.labels)
    check_computes(graph, region, spelling.function)


def test_the_logarithm_of_one_that_is_written_out_is_one_with_it(tmp_path: Path) -> None:
    spelling = spell(SHIFTED + "Div e t -> p\nLog p -> y", _log_softmax)
    graph = place(spelling, tmp_path)
    whole, inner = find_softmax(graph)
    assert (whole.kind, whole.nodes) == ("LogSoftmax", spelling.labels)
    assert (inner.kind, inner.nodes) == ("Softmax", spelling.labels[:-1])
    check_computes(graph, whole, _log_softmax)


@pytest.mark.parametrize(
    "text",
    [
        "Exp x -> e\nReduceSum x -> t\nDiv e t -> y",
        "Exp x -> e\nReduceMean e -> t\nDiv e t -> y",
        "Exp x -> e\nReduceSum e -> t\nDiv t e -> y",
        "Exp x -> e\nReduceSum e -> t\nLog t -> l\nSub e l -> y",
        "Softmax x -> p\nExp p -> y",
        SHIFTED + "Log t -> l\nAdd t l -> s\nSub x s -> y",
        SHIFTED + "Log t -> l\nAdd m l -> s\nSub d s -> y",
        SHIFTED + "Log m -> l\nAdd m l -> s\nSub x s -> y",
        "Exp x -> e\nReduceSum e -> t\nLog t -> l\nReduceMax x -> m\nAdd m l -> s\nSub x s -> y",
    ],
)
def test_what_only_looks_like_one_is_none(text: str, tmp_path: Path) -> None:
    assert list(find_softmax(place(spell(text, softmax), tmp_path))) == []


def test_a_maximum_of_rows_that_meets_columns_is_no_part_of_it(tmp_path: Path) -> None:
    """Of a square: what is subtracted from a row is not its own maximum, so that no shift makes up for it."""
    nodes = [
        node("Sigmoid", "raw", "x"),
        node("ReduceMax", "x", "m", axes=[1], keepdims=0),
        node("Sub", "x m", "d"),
        node("Exp", "d", "e"),
        node("ReduceSum", "e last", "t", keepdims=1),
        node("Div", "e t", "y"),
    ]
    graph = save(make_model(nodes, {"raw": [4, 4]}, "y", {"last": ints(1)}, opset=13), tmp_path)
    (region,) = find_softmax(graph)
    assert region.source == "d"

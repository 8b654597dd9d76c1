"""Every spelling of RMSNorm is one region; the variance of a LayerNorm is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from spellings import EPSILON, GAMMA, check_computes, place, rms_norm, spell

from overflow_fixer.patterns.rms_norm import find_rms_norm

MEAN_SQUARE = "Pow x two -> q\nReduceMean q -> v\nAdd v eps -> s\nSqrt s -> r\n"

SPELLINGS = {
    "torch": spell(MEAN_SQUARE + "Div one r -> i\nMul x i -> n\nMul gamma n -> y", rms_norm),
    "reciprocal": spell(MEAN_SQUARE + "Reciprocal r -> i\nMul x i -> n\nMul n gamma -> y", rms_norm),
    "divided": spell(MEAN_SQUARE + "Div x r -> n\nMul n gamma -> y", rms_norm),
    "no scale": spell(MEAN_SQUARE + "Div x r -> y", lambda x: rms_norm(x) / GAMMA),
    "square by Mul, inverse by Pow": spell(
        "Mul x x -> q\nReduceMean q -> v\nAdd eps v -> s\nPow s minus_half -> i\nMul i x -> n\nMul n gamma -> y",
        rms_norm,
    ),
    "sum over n": spell(
        "Mul x x -> q\nReduceSum q -> v\nMul v share -> u\nAdd u eps -> s\nSqrt s -> r\nDiv x r -> n\nMul n gamma -> y",
        rms_norm,
    ),
    "jax2tf": spell(
        "Mul x x -> q\n~ReduceSum q -> t\nMul t share -> v\nReshape v kept -> k\nExpand k kept -> e\nAdd e eps -> s\n"
        "Sqrt s -> r\nReciprocal r -> i\nMul i gamma -> a\nMul x a -> y",
        rms_norm,
    ),
    "scale on the inverse": spell(
        MEAN_SQUARE + "Reciprocal r -> i\nMul i gamma -> a\nMul x a -> y", rms_norm
    ),
    "casts": spell(
        "Cast x -> h\n"
        + MEAN_SQUARE.replace("Pow x", "Pow h")
        + "Reciprocal r -> i\nMul h i -> n\nCast n -> c\nMul gamma c -> y",
        rms_norm,
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_region_that_computes_it(name: str, tmp_path: Path) -> None:
    spelling = SPELLINGS[name]
    graph = place(spelling, tmp_path)
    (region,) = find_rms_norm(graph)
    begin, nodes = ("h", spelling.labels[1:]) if name == "casts" else ("x", spelling.labels)
    assert (region.kind, region.source, region.output, region.nodes) == ("RMSNorm", begin, "y", nodes)
    check_computes(graph, region, spelling.function)


@pytest.mark.parametrize(
    "text",
    [
        MEAN_SQUARE + "Div raw r -> y",
        MEAN_SQUARE + "Mul x r -> y",
        MEAN_SQUARE + "Div two r -> i\nMul x i -> y",
        "Pow x two -> q\nReduceSum q -> v\nAdd v eps -> s\nSqrt s -> r\nDiv x r -> y",
        "ReduceMean x -> m\nSub x m -> d\n" + MEAN_SQUARE.replace("Pow x", "Pow d") + "Div d r -> y",
        "ReduceMean x -> m\nMul m m -> c\nMul x x -> q\nReduceMean q -> u\nSub u c -> v\nSqrt v -> r\nDiv x r -> y",
    ],
)
def test_what_only_looks_like_one_is_none(text: str, tmp_path: Path) -> None:
    assert list(find_rms_norm(place(spell(text, rms_norm), tmp_path))) == []


def test_the_epsilon_shows_in_what_is_computed() -> None:
    """Else a region without it would pass the comparison above."""
    small = rms_norm((GAMMA * 0 + EPSILON)[None])
    assert abs(small / GAMMA - 1).max() > 0.5

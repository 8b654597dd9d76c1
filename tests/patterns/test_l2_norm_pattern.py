"""Every spelling of a division by the L2 norm is one region, with what keeps the norm from zero."""

from __future__ import annotations

from pathlib import Path

import pytest
from spellings import GAMMA, check_computes, l2_normalize, place, spell

from overflow_fixer.patterns.l2_norm import find_l2_norm

SUM = "Mul x x -> q\nReduceSum q -> v\n"

SPELLINGS = {
    "torch": spell("ReduceL2 x -> r\nClip r tiny -> c\nExpand c shape -> e\nDiv x e -> y", l2_normalize),
    "unguarded": spell("ReduceL2 x -> r\nDiv x r -> y", l2_normalize),
    "maximum of the norm": spell("ReduceL2 x -> r\nMax r tiny -> c\nDiv x c -> y", l2_normalize),
    "TensorFlow": spell(SUM + "Max v tiny -> c\nSqrt c -> r\nReciprocal r -> i\nMul x i -> y", l2_normalize),
    "jax2tf": spell(
        "Mul x x -> q\n~ReduceSum q -> v\nSqrt v -> r\nReshape r kept -> k\nMax k tiny -> c\nExpand c shape -> e\n"
        "Div x e -> y",
        l2_normalize,
    ),
    "Keras": spell(SUM + "Sqrt v -> r\nReciprocal r -> i\nMin i high -> c\nMul x c -> y", l2_normalize),
    "root": spell(SUM + "Sqrt v -> r\nAdd r tiny -> c\nDiv x c -> y", l2_normalize),
    "sum of squares": spell(
        "ReduceSumSquare x -> v\nAdd v tiny -> s\nSqrt s -> r\nDiv x r -> n\nMul n gamma -> y",
        lambda x: l2_normalize(x) * GAMMA,
    ),
    "torch.norm": spell(
        "Abs x -> a\nPow a two -> q\nReduceSum q -> v\nPow v half -> r\nDiv x r -> y", l2_normalize
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_region_that_computes_it(name: str, tmp_path: Path) -> None:
    spelling = SPELLINGS[name]
    graph = place(spelling, tmp_path)
    (region,) = find_l2_norm(graph)
    expected = ("L2 normalisation", "x", "y", spelling.labels)
    assert (region.kind, region.source, region.output, region.nodes) == expected
    check_computes(graph, region, spelling.function)


@pytest.mark.parametrize(
    "text",
    [
        "ReduceL2 x -> r\nDiv raw r -> y",
        "ReduceL1 x -> r\nDiv x r -> y",
        "ReduceL2 x -> r\nMax r x -> c\nDiv x c -> y",
        SUM + "Div x v -> y",
        "Mul x x -> q\nReduceMean q -> v\nSqrt v -> r\nDiv x r -> y",
    ],
)
def test_what_only_looks_like_one_is_none(text: str, tmp_path: Path) -> None:
    assert list(find_l2_norm(place(spell(text, l2_normalize), tmp_path))) == []

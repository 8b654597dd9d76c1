import pytest

from overflow_fixer.plurals import agree, name_few, say_plural


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0, "node"), "0 nodes"),
        ((1, "node"), "1 node"),
        ((2, "node"), "2 nodes"),
        ((1, "batch", "batches"), "1 batch"),
        ((0, "batch", "batches"), "0 batches"),
    ],
)
def test_one_is_no_plural(given: tuple[int, str], said: str) -> None:
    assert say_plural(*given) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (6, "a, b, c and 3 more")],
)
def test_three_are_named(count: int, said: str) -> None:
    assert name_few("abcdef"[:count]) == said


def test_a_word_agrees_with_its_count() -> None:
    assert [agree(count, "layer") for count in range(3)] == ["layers", "layer", "layers"]
    assert [agree(count, "is", "are") for count in range(3)] == ["are", "is", "are"]

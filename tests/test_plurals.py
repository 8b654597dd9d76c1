import pytest

from overflow_fixer.plurals import say_plural


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

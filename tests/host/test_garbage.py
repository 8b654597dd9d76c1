"""The search for garbage is off meanwhile, and as it was before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from overflow_fixer.host.garbage import no_search_for_garbage


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_it_is_off_meanwhile_and_then_as_it_was(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    with no_search_for_garbage():
        assert not gc.isenabled()
        with no_search_for_garbage():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == was_enabled


def test_it_is_on_again_behind_an_error() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="told"), no_search_for_garbage():
        raise ValueError("told")
    assert gc.isenabled()

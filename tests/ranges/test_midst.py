"""What is begun before each run, and what is raised in the midst of one."""

from __future__ import annotations

import gc

import pytest

from overflow_fixer.ranges.midst import Midst
from overflow_fixer.records import Batch

BATCH = Batch("b", {})


class _Listener:
    def __init__(self) -> None:
        self.begun: list[Batch] = []

    def begin(self, batch: Batch) -> None:
        self.begun.append(batch)


def test_each_run_is_begun_with_its_batch() -> None:
    midst, listeners = Midst(), [_Listener(), _Listener()]
    for one in listeners:
        midst.before_each(one.begin)
    for batch in (BATCH, BATCH, Batch("c", {})):
        with midst.run(batch):
            assert [one.begun[-1] for one in listeners] == [batch] * 2
    assert [len(one.begun) for one in listeners] == [3, 3]


def test_who_is_gone_is_not_called() -> None:
    midst, listener = Midst(), _Listener()
    midst.before_each(listener.begin)
    begun = listener.begun
    del listener
    gc.collect()
    with midst.run(BATCH):
        pass
    assert begun == []


def test_what_is_raised_in_the_midst_ends_the_run_and_is_raised_behind_it() -> None:
    midst, error = Midst(), KeyboardInterrupt()

    def run() -> None:
        with midst.run(BATCH):
            midst.fail(error)
            assert midst.error is error
            assert midst.options.terminate
            raise ValueError("the run was ended")

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    assert raised.value is error
    assert midst.error is None
    assert not midst.options.terminate
    with midst.run(BATCH):
        assert midst.error is None

"""Signals taken by a thread as they come."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from overflow_fixer.cli.wake_ups import WakeUps

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process sends itself no SIGINT there")


@pytest.fixture
def ignored_interrupts() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("ignored_interrupts")
def test_what_came_is_taken_and_the_thread_gone_when_it_has_ended() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        time.sleep(0.1)
        taken.append(number)

    wake_ups, before = WakeUps(take), threading.active_count()
    assert wake_ups.begin()
    os.kill(os.getpid(), signal.SIGINT)
    wake_ups.end()
    assert (taken, threading.active_count()) == ([signal.SIGINT], before)


@pytest.mark.usefixtures("ignored_interrupts")
def test_of_two_the_inner_one_takes_and_gives_back() -> None:
    outer_took: list[int] = []
    inner_took: list[int] = []
    outer, inner = WakeUps(outer_took.append), WakeUps(inner_took.append)
    assert outer.begin()
    assert inner.begin()
    os.kill(os.getpid(), signal.SIGINT)
    inner.end()
    os.kill(os.getpid(), signal.SIGINT)
    outer.end()
    assert (inner_took, outer_took) == ([signal.SIGINT], [signal.SIGINT])


def test_it_begins_once_and_in_the_main_thread() -> None:
    wake_ups, answers = WakeUps(lambda number: None), []
    other = threading.Thread(target=lambda: answers.append(wake_ups.begin()))
    other.start()
    other.join()
    answers += [wake_ups.begin(), wake_ups.begin()]
    wake_ups.end()
    assert (answers, wake_ups.has_begun) == ([False, True, False], False)

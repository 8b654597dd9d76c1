"""Ctrl-C where no scan runs: what does not end within a second says that it will."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overflow_fixer.cli.late_answers import LATE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals as Linux has them")

SCRIPT = """
import os, signal, threading, time
from overflow_fixer.cli.console import show_progress
signal.signal(signal.SIGINT, {handler})
previous = signal.set_wakeup_fd(-1)
try:
    with show_progress({quiet}) as progress:
        progress("scan", 0, 1)
        progress("scan", 1, 1)
        progress("verify", 0, 2)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.{name})).start()
        if {is_busy}:  # as in ONNX Runtime, which a signal does not reach
            signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
        time.sleep(1.8)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT}})
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", end=" ")
print(signal.set_wakeup_fd(-1) == previous)
"""


def _run(
    name: str = "SIGINT",
    handler: str = "signal.default_int_handler",
    quiet: bool = False,
    is_busy: bool = True,
) -> tuple[str, bool]:
    script = SCRIPT.format(name=name, handler=handler, quiet=quiet, is_busy=is_busy)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    return done.stdout, LATE in done.stderr


def test_what_is_busy_says_that_it_will_stop_and_the_wake_ups_are_given_back() -> None:
    assert _run() == ("interrupted True\n", True)


def test_what_stops_at_once_or_is_quiet_says_nothing() -> None:
    assert _run(is_busy=False) == ("interrupted True\n", False)
    assert _run(quiet=True) == ("interrupted True\n", False)


def test_what_asks_nothing_to_stop_is_not_answered() -> None:
    assert _run(handler="signal.SIG_IGN") == ("True\n", False)
    assert _run("SIGUSR1", "signal.signal(signal.SIGUSR1, lambda *_: None)") == ("True\n", False)

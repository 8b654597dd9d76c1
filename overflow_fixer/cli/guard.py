"""A command run in a child process, so that its sudden end comes with a sentence and not in silence.

The kernel kills what takes more memory than there is. TensorRT 8.6 crashes the process while it parses
some models, and where a part of cuDNN is missing. What was running is told by the child in a page of
memory that both see.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import click

from overflow_fixer.errors import EXIT_STOPPED, BackendError, ModelError
from overflow_fixer.host.processes import die_with
from overflow_fixer.host.shortages import ROOM_FOR_A_BATCH

STOPPED = "stopped. Files already written are whole; run the command again to go on."
_REQUESTS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} if sys.platform == "linux" else ())
"""Signals by which somebody asks a process to end."""
OF_A_ZOO = "zoo"
"""The stage of a command that only deals out models, each to a process of its own."""
SAME_SECONDS = 0.5
"""Within these, a second signal is the first told again, as this guard, `timeout` and job managers do."""
_PATIENCE_SECONDS = 3.0
"""What a second Ctrl-C leaves the command to end by itself: a library that runs for minutes does not let Python hear of it."""
_FOR_COMPARISON = "naive FP16"
_LEAVE_OUT = "What crashed is built for comparison alone: --no-compare leaves it out. "
_PAGE_BYTES = 256
_STDERR = 2
_page: mmap.mmap | None = None


def run_guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit code, on Linux in a child that does not outlive this process.

    Forks before CUDA is touched, which does not survive a fork. A child that a signal killed gives one
    paragraph on stderr, and an exit code: the model's for a scan that was killed and where a file was cut short, 130 for a
    zoo and where it was asked to end, else the backend's.
    """
    global _page
    if sys.platform != "linux":
        return command()
    _page = mmap.mmap(-1, _PAGE_BYTES)
    sys.stdout.flush()
    parent, requests = os.getpid(), _Requests()
    # Python forgets what comes to a child before it has begun in it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    child = os.fork()
    if child == 0:
        die_with(parent, EXIT_STOPPED)
        _end_with(lambda: _run_in_child(command, requests, mask))
    requests.hand_to(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        status = os.waitpid(child, 0)[1]
    finally:
        requests.leave()
    return _tell_end(status)


def note_stage(stage: str) -> None:
    """Remember what is being done, for the sentence about a crash."""
    if _page is not None:
        text = stage.encode()[: _PAGE_BYTES - 1]
        _page[: len(text) + 1] = text + b"\0"


def _read_stage() -> str:
    """What the child is doing, as it noted it."""
    assert _page is not None
    return bytes(_page).split(b"\0")[0].decode(errors="replace") or "start"


def leave_bars() -> None:
    """On a terminal, show the cursor that a progress bar hides, and begin a line below it."""
    if os.isatty(_STDERR):
        with suppress(OSError):
            os.write(_STDERR, b"\x1b[?25h\n")


class _Requests:
    """Takes what asks this process to end, and hands it on; what comes before it is told to whom, as soon as it is.

    A second Ctrl-C that is not heeded ends the receiver; not that of a zoo, which waits for its models' scans.
    """

    def __init__(self) -> None:
        self._receiver = 0
        self._first_interrupt = math.inf
        self._early: list[int] = []
        self.previous = {number: signal.getsignal(number) for number in _REQUESTS}
        for number in _REQUESTS:
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._receiver:
            os.kill(self._receiver, number)
        else:
            self._early.append(number)
        if number == signal.SIGINT and self.previous[signal.SIGINT] is not signal.SIG_IGN:
            self._insist_on_a_second()

    def _insist_on_a_second(self) -> None:
        now = time.monotonic()
        is_second = now - self._first_interrupt > SAME_SECONDS
        if is_second and not any(signal.getitimer(signal.ITIMER_REAL)) and _read_stage() != OF_A_ZOO:
            signal.signal(signal.SIGALRM, self._end_receiver)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_SECONDS)
        self._first_interrupt = min(now, self._first_interrupt)

    def _end_receiver(self, number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._receiver, signal.SIGTERM)

    def hand_to(self, process: int) -> None:
        self._receiver = process
        for number in self._early:
            os.kill(process, number)

    def leave(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def _run_in_child(command: Callable[[], int], requests: _Requests, mask: set[int | signal.Signals]) -> int:
    """What came while the child began comes when it can be heeded."""
    if requests.previous[signal.SIGINT] is not signal.SIG_IGN:
        requests.previous[signal.SIGINT] = _take_interrupts_once()
    requests.leave()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return command()


def _end_with(command: Callable[[], int]) -> NoReturn:
    """Run the command and end the process on the spot: a fork that shuts down as usual can hang in its threads."""
    code = 1
    try:
        code = command()
    except SystemExit as stop:  # rich ends the process so where nobody reads what it prints
        code = stop.code if isinstance(stop.code, int) else code
    except KeyboardInterrupt:  # the command had not begun
        click.echo(f"fix-fp16: {STOPPED}", err=True)
        code = EXIT_STOPPED
    except BaseException:  # such as an error raised with --debug
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _take_interrupts_once() -> Callable[[int, FrameType | None], None]:
    """Of two interrupts within half a second heed one: Ctrl-C reaches this process, and the parent hands it on."""
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > SAME_SECONDS:
            last = time.monotonic()
            raise KeyboardInterrupt

    return interrupt


def _tell_end(status: int) -> int:
    """The exit code for a child's end; where a signal ended it, with a paragraph on stderr."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    stage = _read_stage()
    number = signal.Signals(os.WTERMSIG(status))
    leave_bars()
    click.echo(f"fix-fp16: {_explain(number, stage)}", err=True)
    is_killed = number == signal.SIGKILL
    if number in _REQUESTS or (is_killed and stage == OF_A_ZOO):
        return EXIT_STOPPED
    is_scan_killed = is_killed and stage.startswith("scan")
    is_of_model = is_scan_killed or number == signal.SIGBUS
    return ModelError.exit_code if is_of_model else BackendError.exit_code


def _explain(number: signal.Signals, stage: str) -> str:
    if number in _REQUESTS:
        return STOPPED
    if number == signal.SIGKILL and stage == OF_A_ZOO:
        return (
            "The zoo was killed (SIGKILL), most likely by the kernel, for want of memory, and the models at work with it. Expected "
            "room for all that run at once. Run the command again to go on, with fewer --workers, or memory_gib for what takes "
            "most; what had finished is kept."
        )
    if number == signal.SIGKILL:
        return (
            f"It was killed (SIGKILL) during: {stage}; most likely by the kernel, for want of memory. {ROOM_FOR_A_BATCH}. Files "
            "already written are whole; run the command again to go on."
        )
    if number == signal.SIGBUS:
        return (
            f"It crashed (SIGBUS) during: {stage}; most likely a file that is read as it runs, the model or its weights, was cut "
            "short by another program. Expected files that stay as they are until the command has ended. Files already written "
            "are whole; run the command again when nothing writes to the model."
        )
    return (
        f"A native library crashed ({number.name}) during: {stage}. Expected TensorRT to build or refuse, "
        "and ONNX Runtime to run. Some TensorRT versions crash on models that newer ones take, or where a library of theirs "
        "is missing: look at the lines above, try another TensorRT or another export of the model, or --backend onnx. "
        f"{_LEAVE_OUT if stage.startswith(_FOR_COMPARISON) else ''}Files already written are whole."
    )

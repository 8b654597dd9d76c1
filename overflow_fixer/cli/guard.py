"""A command run in a child process, so that a crash of TensorRT ends with a sentence and not in silence.

TensorRT 8.6 crashes the process while it parses some models, and where a part of cuDNN is missing. What
was running is told by the child in a page of memory that both see.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import click

from overflow_fixer.backends.tensorrt.capabilities import is_installed
from overflow_fixer.errors import BackendError

_PAGE_BYTES = 256
_page: mmap.mmap | None = None


def run_guarded(command: Callable[[], int]) -> int:
    """Run `command` and return its exit code, in a child where TensorRT is installed.

    Forks before CUDA is touched, which does not survive a fork. A child that a signal killed gives the
    backend's exit code and one paragraph on stderr.
    """
    global _page
    if os.name != "posix" or not is_installed():
        return command()
    _page = mmap.mmap(-1, _PAGE_BYTES)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _end_with(command)
    return _wait(child)


def note_stage(stage: str) -> None:
    """Remember what is being done, for the sentence about a crash."""
    if _page is not None:
        text = stage.encode()[: _PAGE_BYTES - 1]
        _page[: len(text) + 1] = text + b"\0"


def _end_with(command: Callable[[], int]) -> NoReturn:
    """Run the command and end the process on the spot: a fork that shuts down as usual can hang in its threads."""
    code = 1
    try:
        code = command()
    except BaseException:  # such as an error raised with --debug
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int:
    # Ctrl-C reaches the child as well, which ends by itself
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number)),
    }
    try:
        _, status = os.waitpid(child, 0)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    name = signal.Signals(os.WTERMSIG(status)).name
    click.echo(f"fix-fp16: {_explain(name)}", err=True)
    return BackendError.exit_code


def _explain(signal_name: str) -> str:
    assert _page is not None
    stage = bytes(_page).split(b"\0")[0].decode(errors="replace") or "start"
    return (
        f"A native library crashed or was killed ({signal_name}) during: {stage}. Expected TensorRT to build or refuse, "
        "and enough memory. Some TensorRT versions crash on models that newer ones take, or where a library of theirs "
        "is missing: look at the lines above, try another TensorRT or another export of the model, or --backend onnx. "
        "Files already written are whole."
    )

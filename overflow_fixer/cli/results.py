"""What a verb says on stdout: its result, once it is done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from overflow_fixer.errors import OutputError


def say(text: str) -> None:
    """Print text to the letter. Raises OutputError as on_stdout."""
    with on_stdout():
        click.echo(text)


@contextmanager
def on_stdout() -> Iterator[None]:
    """Raise OutputError where stdout cannot be written in the block; that nobody reads on is no error."""
    try:
        yield
    except BrokenPipeError:
        leave_stdout()
    except OSError as error:
        leave_stdout()
        raise OutputError(
            f"The result cannot be written to standard output: {error.strerror or error}. Expected a terminal, a pipe or a "
            "file with room. What the command wrote to its folder is whole; look there, or run it again."
        ) from error


def open_closed() -> None:
    """Give a process that was started without stdin, stdout or stderr somewhere to write: a file it opens would be that."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def leave_stdout() -> None:
    """What is still in buffers, and what follows, goes nowhere: Python would end with an error over it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

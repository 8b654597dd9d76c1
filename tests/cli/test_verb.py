"""Help that cannot be written is told as a result that cannot be is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")


@pytest.mark.parametrize("arguments", [["--help"], ["scan", "--help"], ["--version"]])
def test_help_that_cannot_be_written_is_an_error_of_output(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "overflow_fixer", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("fix-fp16: The result cannot be written to standard output: No space left")
    assert done.stderr.count("\n") == 1


def test_help_that_nobody_reads_is_none() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "overflow_fixer", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")

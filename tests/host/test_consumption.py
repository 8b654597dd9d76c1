"""What a process says that it took."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import time
from overflow_fixer.host.consumption import measure_self
before = measure_self()
held = bytearray(b"1" * 100_000_000)
del held
time.sleep(0.5)
after = measure_self()
print(after[0] - before[0], after[1] - before[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is what the process holds")
def test_seconds_since_the_start_and_memory_that_was_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    seconds, memory = map(float, done.stdout.split())
    assert 0.45 < seconds < 60
    assert memory > 90_000_000

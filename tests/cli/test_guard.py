"""A crash of a native library ends with a sentence and an exit code, not in silence.

Each case runs in a process of its own, since the guard forks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import overflow_fixer
from overflow_fixer.errors import BackendError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="without fork, commands run unguarded")

_ROOT = Path(overflow_fixer.__file__).parents[1]
_HEAD = """
import os, signal, sys
from overflow_fixer.cli import guard
guard.is_installed = lambda: {installed}
parent = os.getpid()
def command():
{body}
sys.exit(guard.run_guarded(command))
"""


def _run(body: str, installed: bool = True) -> subprocess.CompletedProcess[str]:
    return _run_script(_HEAD.format(installed=installed, body=textwrap.indent(textwrap.dedent(body), "    ")))


def _run_script(script: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("code", [0, 6])
def test_a_commands_exit_code_and_words_come_through(code: int) -> None:
    done = _run(f"print('out'); print('err', file=sys.stderr); return {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\n", "err\n")


def test_a_command_runs_in_a_child_where_tensorrt_is_installed() -> None:
    body = "print(os.getpid() == parent); return 0"
    assert _run(body).stdout == "False\n"
    assert _run(body, installed=False).stdout == "True\n"


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_crash_is_one_paragraph_that_names_the_stage(name: str) -> None:
    done = _run(f"guard.note_stage('scan'); guard.note_stage('build'); os.kill(os.getpid(), signal.{name})")
    assert done.returncode == BackendError.exit_code == 6
    assert done.stderr.startswith(
        f"fix-fp16: A native library crashed or was killed ({name}) during: build. Expected TensorRT to build or refuse"
    )
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_crash_before_any_stage_is_at_the_start() -> None:
    assert "(SIGSEGV) during: start. Expected" in _run("os.kill(os.getpid(), signal.SIGSEGV)").stderr


def test_a_longer_stage_leaves_nothing_behind_and_a_long_one_is_cut() -> None:
    body = "guard.note_stage('a long stage'); guard.note_stage('short'); os.kill(os.getpid(), signal.SIGSEGV)"
    assert "during: short. Expected" in _run(body).stderr
    body = "guard.note_stage('ü' * 500); os.kill(os.getpid(), signal.SIGSEGV)"
    assert f"during: {'ü' * 127}" in _run(body).stderr


def test_what_was_printed_before_comes_once() -> None:
    """What waits in a buffer when the guard forks is not printed by both."""
    done = _run_script(
        "print('before'); " + _HEAD.format(installed=True, body="    print('inside'); return 0")
    )
    assert done.stdout == "before\ninside\n"


def test_an_interrupt_is_left_to_the_child() -> None:
    """Ctrl-C reaches both: the child ends with its own code, and the parent waits for that."""
    body = """
    import time
    time.sleep(0.5)
    try:
        os.kill(parent, signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return 130
    return 0
    """
    done = _run(body)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_command_that_raises_prints_its_traceback_and_ends() -> None:
    """As with --debug. A fork that shut down as usual would hang, and run the caller's rest a second time."""
    script = _HEAD.format(installed=True, body="    print('out'); raise ValueError('a fault')")
    script += "\nexcept SystemExit as end:\n    print('the rest', os.getpid() == parent, end.code)\n"
    done = _run_script(script.replace("sys.exit(", "try:\n    sys.exit("))
    assert done.stdout == "out\nthe rest True 1\n"
    assert done.stderr.endswith("ValueError: a fault\n")


def test_an_error_of_the_real_command_ends_it_with_debug_too() -> None:
    """The whole command, with a TensorRT that is claimed to be there."""
    for debug, code in (([], 2), (["--debug"], 1)):
        script = f"""
import sys
from overflow_fixer.cli import guard, main
guard.is_installed = lambda: True
sys.argv = ["fix-fp16", "no_such_model.onnx", *{debug}]
main()
"""
        done = _run_script(script)
        assert done.returncode == code
        assert "No calibration data was named" in done.stderr
        assert ("Traceback" in done.stderr) == bool(debug)


def test_a_request_to_end_is_handed_to_the_child() -> None:
    """Else it would go on alone, on the GPU, when its parent is told to end."""
    done = _run("import time; time.sleep(0.5); os.kill(parent, signal.SIGTERM); time.sleep(50); return 0")
    assert done.returncode == BackendError.exit_code
    assert "was killed (SIGTERM) during: start. Expected" in done.stderr

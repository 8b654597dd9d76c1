"""A crash of a native library, or a kill for want of memory, ends with a sentence and an exit code, not in silence.

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
from overflow_fixer.cli.guard import STOPPED
from overflow_fixer.errors import EXIT_STOPPED, BackendError

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere commands run unguarded"),
]

_ROOT = Path(overflow_fixer.__file__).parents[1]
_HEAD = """
import os, signal, sys
from overflow_fixer.cli import guard
parent = os.getpid()
def command():
{body}
sys.exit(guard.run_guarded(command))
"""


def _run(body: str) -> subprocess.CompletedProcess[str]:
    return _run_script(_HEAD.format(body=textwrap.indent(textwrap.dedent(body), "    ")))


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


def test_a_command_runs_in_a_child_on_linux() -> None:
    body = "print(os.getpid() == parent); return 0"
    assert _run(body).stdout == "False\n"
    script = _HEAD.format(body="    " + body)
    elsewhere = script.replace("parent =", "sys.platform = 'elsewhere'; parent =")
    assert _run_script(elsewhere).stdout == "True\n"


def test_a_crash_is_one_paragraph_that_names_the_stage() -> None:
    done = _run("guard.note_stage('scan'); guard.note_stage('build'); os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == BackendError.exit_code == 6
    assert done.stderr.startswith(
        "fix-fp16: A native library crashed (SIGSEGV) during: build. Expected TensorRT to build or refuse"
    )
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_crash_of_what_is_built_for_comparison_names_the_way_around() -> None:
    done = _run("guard.note_stage('naive FP16: build (0 of 1 done)'); os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == 6
    assert "--no-compare leaves it out. Files" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("stage", ["fix: build (0 of 1 done)", "FP32 engine: build (0 of 1 done)"])
def test_a_crash_of_what_a_fix_may_need_names_no_way_to_leave_it_out(stage: str) -> None:
    done = _run(f"guard.note_stage({stage!r}); os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == 6
    assert "--no-compare" not in done.stderr


@pytest.mark.parametrize(("stage", "code"), [("scan (3 of 9 done)", 3), ("verify (0 of 9 done)", 6)])
def test_a_kill_is_told_as_want_of_memory(stage: str, code: int) -> None:
    done = _run(f"guard.note_stage({stage!r}); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == code
    assert done.stderr.startswith(
        f"fix-fp16: It was killed (SIGKILL) during: {stage}; most likely by the kernel"
    )
    assert "Use a smaller batch" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_that_is_cut_short_while_it_is_mapped_is_told_as_that(tmp_path: Path) -> None:
    """As by an export to the same path: the file is emptied, and a read of what was mapped is a SIGBUS."""
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1 << 16))
    done = _run(f"""
    import mmap
    guard.note_stage('scan (3 of 9 done)')
    with open({str(path)!r}, 'rb') as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate({str(path)!r}, 0)
    return mapped[1 << 15]
    """)
    assert done.returncode == 3
    assert done.stderr.startswith(
        "fix-fp16: It crashed (SIGBUS) during: scan (3 of 9 done); most likely a file"
    )
    assert "cut short" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_zoo_that_is_killed_says_how_to_go_on() -> None:
    done = _run("guard.note_stage(guard.OF_A_ZOO); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 130
    assert done.stderr.startswith("fix-fp16: The zoo was killed (SIGKILL), most likely by the kernel")
    assert "with fewer --workers" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_crash_before_any_stage_is_at_the_start() -> None:
    assert "(SIGSEGV) during: start. Expected" in _run("os.kill(os.getpid(), signal.SIGSEGV)").stderr


def test_a_longer_stage_leaves_nothing_behind_and_a_long_one_is_cut() -> None:
    body = "guard.note_stage('a long stage'); guard.note_stage('short'); os.kill(os.getpid(), signal.SIGSEGV)"
    assert "during: short. Expected" in _run(body).stderr
    body = "guard.note_stage('ü' * 500); os.kill(os.getpid(), signal.SIGSEGV)"
    assert f"during: {'ü' * 127}" in _run(body).stderr


def test_what_was_printed_before_comes_once() -> None:
    """What waits in a buffer when the guard forks is not printed by both."""
    done = _run_script("print('before'); " + _HEAD.format(body="    print('inside'); return 0"))
    assert done.stdout == "before\ninside\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_request_to_end_is_handed_to_the_child_which_ends_by_itself(name: str) -> None:
    body = f"""
    import time
    if signal.{name} != signal.SIGINT:
        signal.signal(signal.{name}, signal.default_int_handler)
    try:
        time.sleep(0.5)
        os.kill(parent, signal.{name})
        time.sleep(20)
    except KeyboardInterrupt:
        return 130
    return 0
    """
    done = _run(body)
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_at_a_terminal_comes_once() -> None:
    """The terminal tells both, and the guard hands it on; a second would break into the cleaning up."""
    body = """
    import time
    guard.SAME_SECONDS = 10.0  # a busy machine may take longer than half a second to hand it on
    try:
        print("ready", flush=True)
        time.sleep(20)
    except KeyboardInterrupt:
        time.sleep(0.8)
        print("cleaned up", flush=True)
        return 130
    return 0
    """
    script = _HEAD.format(body=textwrap.indent(textwrap.dedent(body), "    "))
    assert "cleaned up" in _press_ctrl_c(script, when="ready")


@pytest.mark.parametrize("moment", ["before the fork", "in the child", "in the guard"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_request_that_comes_while_the_child_begins_is_not_lost(name: str, moment: str) -> None:
    """Neither does it end the guard with a traceback, which would take the child along."""
    fork = f"""
fork = os.fork
def interrupted_fork():
    request = lambda: os.kill(os.getpid(), signal.{name})
    if {moment == "before the fork"}:
        request()
    child = fork()
    if {moment == "in the child"} and child == 0 or {moment == "in the guard"} and child != 0:
        request()
    return child
os.fork = interrupted_fork
sys.exit("""
    script = _HEAD.format(body="    import time\n    time.sleep(20)\n    return 0").replace("sys.exit(", fork)
    done = _run_script(script)
    assert (done.returncode, done.stderr) == (EXIT_STOPPED, f"fix-fp16: {STOPPED}\n")


def test_a_second_ctrl_c_interrupts_again() -> None:
    body = """
    import time
    for _ in range(2):
        try:
            time.sleep(0.7)
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    return 0
    """
    assert _run(body).stdout == "interrupted\n" * 2


_DEAF = """
    import time
    guard.note_stage({stage!r})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range({presses}):
        os.kill(parent, signal.SIGINT)
        time.sleep(0.7)
    time.sleep({rest})
    return 7
    """


@pytest.mark.parametrize(("presses", "rest"), [(2, 4), (8, 0)])
def test_a_second_ctrl_c_ends_what_does_not_heed_it(presses: int, rest: int) -> None:
    """As a batch of minutes in ONNX Runtime, or an engine's build; those that follow do not put it off."""
    done = _run(_DEAF.format(stage="verify", presses=presses, rest=rest))
    assert (done.returncode, done.stderr) == (EXIT_STOPPED, f"fix-fp16: {STOPPED}\n")


@pytest.mark.parametrize(
    ("stage", "presses", "begin"),
    [("verify", 1, ""), ("zoo", 2, ""), ("verify", 2, "signal.signal(signal.SIGINT, signal.SIG_IGN)")],
)
def test_a_first_one_waits_and_so_do_a_zoo_and_a_job_in_the_background(
    stage: str, presses: int, begin: str
) -> None:
    script = _HEAD.replace("parent =", f"{begin}\nparent =")
    body = textwrap.dedent(_DEAF.format(stage=stage, presses=presses, rest=4))
    assert _run_script(script.format(body=textwrap.indent(body, "    "))).returncode == 7


@pytest.mark.parametrize(
    ("name", "words"), [("SIGKILL", "It was killed"), ("SIGSEGV", "A native"), ("SIGTERM", "stopped.")]
)
def test_a_sudden_end_leaves_the_bar_and_gives_the_cursor_back(name: str, words: str) -> None:
    body = f"print('\\x1b[?25l 1/9', end='', flush=True); os.kill(os.getpid(), signal.{name})"
    said = _run_at_a_terminal(_HEAD.format(body="    " + body))
    assert said.startswith(f"\x1b[?25l 1/9\x1b[?25h\r\nfix-fp16: {words}")


def _press_ctrl_c(script: str, when: str) -> str:
    """What the script says at a terminal where Ctrl-C is pressed when it has said `when`."""
    return _run_at_a_terminal(script, when)


def _run_at_a_terminal(script: str, when: str = "") -> str:
    """What the script says at a terminal, where Ctrl-C is pressed when it has said `when`, if anything."""
    import fcntl
    import pty
    import termios

    screen, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    said = ""
    while when not in said:
        said += os.read(screen, 1000).decode()
    if when:
        os.write(screen, b"\x03")
    process.wait(30)
    said += os.read(screen, 1000).decode()
    os.close(screen)
    return said


def test_a_command_does_not_outlive_its_guard() -> None:
    """Else it would go on unseen, on the GPU, when its parent is killed."""
    script = _HEAD.format(
        body="    import time\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n    return 0"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) != process.pid
    process.kill()
    assert process.communicate(timeout=30) == ("", None)  # at its end nobody is left who could write


def test_a_command_that_raises_prints_its_traceback_and_ends() -> None:
    """As with --debug. A fork that shut down as usual would hang, and run the caller's rest a second time."""
    script = _HEAD.format(body="    print('out'); raise ValueError('a fault')")
    script += "\nexcept SystemExit as end:\n    print('the rest', os.getpid() == parent, end.code)\n"
    done = _run_script(script.replace("sys.exit(", "try:\n    sys.exit("))
    assert done.stdout == "out\nthe rest True 1\n"
    assert done.stderr.endswith("ValueError: a fault\n")


def test_an_error_of_the_real_command_ends_it_with_debug_too() -> None:
    """The whole command."""
    for debug in ([], ["--debug"]):
        script = f"""
import sys
from overflow_fixer.cli import main
sys.argv = ["fix-fp16", "no_such_model.onnx", *{debug}]
main()
"""
        done = _run_script(script)
        assert done.returncode == 3
        assert done.stderr.splitlines()[-1].startswith("fix-fp16: no_such_model.onnx cannot be read")
        assert ("Traceback" in done.stderr) == bool(debug)


def test_a_child_that_a_request_ends_is_told_as_stopped() -> None:
    done = _run("import time; time.sleep(0.5); os.kill(parent, signal.SIGTERM); time.sleep(50); return 0")
    assert (done.returncode, done.stderr) == (130, f"fix-fp16: {STOPPED}\n")


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    """As with `fix-fp16 ... | head`: nobody reads what is printed, and there is nothing to say of it."""
    sample = Path(__file__).parents[2] / "calib_data" / "conv_chain"
    command = [
        sys.executable,
        "-m",
        "overflow_fixer",
        str(sample / "model.onnx"),
        "--calib",
        str(sample / "data"),
    ]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.wait()
    assert (tmp_path / "out" / "report.json").is_file()

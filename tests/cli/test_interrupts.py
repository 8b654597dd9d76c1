"""Ctrl-C, SIGTERM and SIGHUP during a scan: after the batch at hand, or at once; the file is whole, and says how to go on."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from overflow_fixer.cli.console import show_progress
from overflow_fixer.ranges.store import load_recording

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="signals and terminals as Linux has them"),
]

HEAD = """
import hashlib, os, signal, sys, threading, time
from overflow_fixer.cli.console import show_progress
def busy():  # for minutes, in C, as ONNX Runtime is: no Python signal handler runs
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)
def send(*times):
    def run():
        start = time.monotonic()
        for at, number in times:
            time.sleep(max(0, at - (time.monotonic() - start)))
            os.kill(os.getpid(), number)
    threading.Thread(target=run, daemon=True).start()
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
before = [signal.getsignal(number) for number in (INT, TERM, HUP)]
def report(text):
    after = [signal.getsignal(number) for number in (INT, TERM, HUP)]
    print(text, after == before, flush=True)
"""


def _run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=60)


SCAN = """
begin = time.monotonic()
try:
    with show_progress({quiet}) as progress:
        progress("scan", 0, 3)
        send({signals})
        for done in (1, 2, 3):
            {batch}
            progress("scan", done, 3)
        progress("verify", 0, 1)
        {rest}
except KeyboardInterrupt as stop:
    report(f"{{type(stop).__name__}}: {{stop}}")
else:
    report("finished")
"""


@pytest.mark.parametrize(("name", "quiet"), [("INT", False), ("TERM", True), ("HUP", True)])
def test_the_first_stops_after_the_batch(name: str, quiet: bool) -> None:
    done = _run(
        SCAN.format(quiet=quiet, signals=f"(0.3, {name}), (0.31, {name})", batch="time.sleep(1)", rest="")
    )
    assert done.stdout == (
        "Stopped: stopped after 1 of 3 batches; ranges.h5 in the output folder holds them. Run the same command "
        "again to go on. True\n"
    )
    assert done.stderr == (
        "" if quiet else "stopping after the batch at hand; Ctrl-C once more stops at once\n"
    )


def test_it_is_answered_while_the_batch_still_runs() -> None:
    """And a second one ends the process although the main thread does not come back to Python."""
    start = time.monotonic()
    done = _run(SCAN.format(quiet=False, signals="(0.3, INT), (1.2, INT)", batch="busy()", rest=""))
    assert time.monotonic() - start < 30
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "stopping after the batch at hand; Ctrl-C once more stops at once"
    assert done.stderr.splitlines()[-1].startswith(
        "fix-fp16: stopped at once. ranges.h5 in the output folder is whole"
    )


def test_a_second_interrupts_python_at_once() -> None:
    done = _run(SCAN.format(quiet=True, signals="(0.3, INT), (1.2, INT)", batch="time.sleep(30)", rest=""))
    assert done.stdout.startswith("KeyboardInterrupt: stopped at once.")
    assert done.stdout.endswith(" True\n")


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_the_way_out_is_not_broken_into(name: str) -> None:
    """A second signal and the wake-up for it are two signals where they have different numbers, and both may be waiting."""
    batch = f"""
            try:
                time.sleep(30)
            except KeyboardInterrupt:
                os.kill(os.getpid(), {name})
                print("left in order", end="; ")
                raise
    """
    done = _run(SCAN.format(quiet=True, signals="(0.3, TERM), (1.2, TERM)", batch=batch.strip(), rest=""))
    assert done.stdout.startswith("left in order; KeyboardInterrupt: stopped at once.")


def test_after_the_scan_signals_do_what_they_did() -> None:
    rest = "send((0.2, INT)); time.sleep(30)"
    done = _run(SCAN.format(quiet=True, signals="", batch="pass", rest=rest))
    assert done.stdout == "KeyboardInterrupt:  True\n"
    assert _run(SCAN.format(quiet=True, signals="", batch="pass", rest="")).stdout == "finished True\n"


@pytest.mark.parametrize(("place", "name"), [(0, "INT"), (2, "HUP")])
def test_what_is_ignored_stays_ignored(place: int, name: str) -> None:
    """As nohup ignores SIGHUP, and a shell Ctrl-C for what it runs in the background."""
    body = SCAN.format(quiet=True, signals=f"(0.1, {name})", batch="time.sleep(0.3)", rest="")
    ignore = f"signal.signal({name}, signal.SIG_IGN); before[{place}] = signal.SIG_IGN"
    assert _run(ignore + body).stdout == "finished True\n"


def test_outside_the_main_thread_no_signal_is_touched() -> None:
    body = """
def scan():
    with show_progress(True) as progress:
        progress("scan", 0, 1)
        report("inside")
thread = threading.Thread(target=scan); thread.start(); thread.join()
"""
    assert _run(body).stdout == "inside True\n"


def test_no_thread_or_descriptor_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(3):
        with show_progress(quiet=True) as progress:
            progress("scan", 0, 2)
            assert count() == before + 4  # what waits for the batch, and what says that it is late
            progress("scan", 2, 2)
        for _ in range(50):  # the thread that watches closes its end by itself
            if count() == before:
                break
            time.sleep(0.1)
        assert count() == before


MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[64,64] x, int64 n) => (float[64,64] y) {
  c = Constant <value = bool {1}> ()
  y = Loop (n, c, x) <body = b (int64 i, bool go, float[64,64] s) => (bool on, float[64,64] t) {
    on = Identity (go) t = Tanh (s) }>
}"""
SLOW, FOREVER = 60_000, 10**9


class Terminal:
    """A scan of a quick batch, one of seconds and one without end, at a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        import fcntl
        import pty
        import termios

        self.screen, theirs = pty.openpty()
        command = [
            sys.executable,
            "-m",
            "overflow_fixer",
            "scan",
            "m.onnx",
            "--calib",
            "data",
            "--out",
            "out",
        ]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(theirs)
        self.said = ""

    def wait_for(self, text: str, seconds: float = 40) -> None:
        until = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < until, self.said
            if select.select([self.screen], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.screen, 10_000).decode()
                except OSError:  # the other end is closed
                    assert text in self.said, self.said

    def press_ctrl_c(self) -> None:
        os.write(self.screen, b"\x03")


@pytest.fixture
def scan_folder(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    x = np.full((64, 64), 2e4, np.float32)
    for i, n in enumerate((1, SLOW, FOREVER)):
        np.savez(tmp_path / "data" / f"{i}.npz", x=x, n=np.array(n))
    return tmp_path


def test_ctrl_c_at_a_terminal(scan_folder: Path) -> None:
    """Once: after the batch. Then the scan goes on, and twice: at once, in the middle of a batch."""
    terminal = Terminal(scan_folder)
    terminal.wait_for("1/3")
    terminal.wait_for("2 tensors over the threshold or not finite")
    terminal.press_ctrl_c()
    terminal.wait_for("stopping after the batch at hand")
    terminal.wait_for("stopped after 2 of 3 batches; ranges.h5 in the output folder holds them.")
    assert terminal.process.wait(20) == 130
    store = scan_folder / "out" / "ranges.h5"
    assert load_recording(store).batch_names == ("0.npz", "1.npz")

    terminal = Terminal(scan_folder)
    terminal.wait_for("2/3")
    terminal.press_ctrl_c()
    terminal.wait_for("stopping after the batch at hand")
    time.sleep(0.8)
    terminal.press_ctrl_c()
    terminal.wait_for("stopped at once.")
    assert terminal.process.wait(20) == 130
    assert terminal.said.rindex("\x1b[?25h") > terminal.said.rindex("\x1b[?25l")
    assert load_recording(store).batch_names == ("0.npz", "1.npz")


def test_a_scan_from_python_leaves_signals_alone(scan_folder: Path) -> None:
    """No handler is set, and a KeyboardInterrupt leaves what was done."""
    script = """
import os, signal
from pathlib import Path
from overflow_fixer import collect_ranges, load_graph, open_calibration
handlers = []
def look(done, total):
    handlers.append(signal.getsignal(signal.SIGINT))
    if done == 1:
        os.kill(os.getpid(), signal.SIGINT)
graph = load_graph(Path("m.onnx"))
try:
    collect_ranges(graph, open_calibration("data", graph.inputs), progress=look, store=Path("ranges.h5"))
except KeyboardInterrupt:
    print(set(handlers) == {signal.default_int_handler})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=scan_folder, timeout=60
    )
    assert done.stdout == "True\n"
    assert load_recording(scan_folder / "ranges.h5").batch_names == ("0.npz",)

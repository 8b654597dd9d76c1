"""The clock of ONNX Runtime's sessions, in a process of its own, since it stays for good."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import math
import threading
from pathlib import Path
from onnx import TensorProto, helper
from benchmarks.session_clock import SessionClock
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import open_session, run_session
import numpy as np

clock = SessionClock()
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
beside = threading.Thread(target=open_session, args=(model, Path()))
beside.start()
beside.join()
assert math.isnan(clock.first_opened) and clock.open_seconds == 0
session = open_session(model, Path())
assert clock.first_opened > 0 and clock.open_seconds > 0 and clock.run_seconds == 0
run_session(session, None, Batch("b", {"x": np.zeros(1, np.float32)}))
assert clock.run_seconds > 0
"""


def test_sessions_of_other_threads_take_no_time_of_their_own() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)

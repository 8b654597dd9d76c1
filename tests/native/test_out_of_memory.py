"""A native operator for whose output there is no memory ends the run with an error, and not the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overflow_fixer.native import LIBRARY

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is limited otherwise"),
]

_SCRIPT = """
import resource
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper
from overflow_fixer.native import DOMAIN, declare_operators
from overflow_fixer.sessions.session import open_session

node = helper.make_node({op!r}, {inputs}, ["a"] + [""] * {unread} + ["statistics"] * {tells}, domain=DOMAIN)
nodes = [node, helper.make_node("ReduceMax", ["a"], ["y"])]
length = helper.make_tensor("length", TensorProto.INT64, [1], [-1])
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
graph = helper.make_graph(nodes, "g", [x], [y], [length])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
declare_operators(model)
session = open_session(model, Path())
values = np.ones((64, 512, 512, 1), np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + values.nbytes // 2,) * 2)
try:
    session.run(None, {{"x": values}})
except Exception as error:
    print("allocate" in str(error))
"""


@pytest.mark.parametrize(
    ("op", "inputs", "unread", "tells"),
    [
        ("RoundToHalf", ["x"], 0, 0),
        ("Moments", ["x", "length"], 6, 1),
        ("Sums", ["x", "length"], 4, 1),
    ],
)
def test_the_run_ends_with_an_error(op: str, inputs: list[str], unread: int, tells: int) -> None:
    script = _SCRIPT.format(op=op, inputs=inputs, unread=unread, tells=tells)
    root = str(Path(LIBRARY).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-500:]

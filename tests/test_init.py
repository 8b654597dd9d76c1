"""What the package offers by name, and that a scan does not load what it does not need."""

import os
import subprocess
import sys

import pytest

import overflow_fixer


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fixx'"):
        overflow_fixer.fixx  # noqa: B018


def test_a_scan_loads_neither_reports_nor_images() -> None:
    code = """
import sys
from overflow_fixer import collect_ranges, load_graph, open_calibration
print([name for name in ("jinja2", "jsonschema", "PIL", "rich", "click", "onnx_graphsurgeon", "h5py") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_onnx_runtime_writes_nothing_of_its_own_where_the_home_folder_cannot_be_written() -> None:
    code = "import overflow_fixer.sessions.session, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    unset = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    for given, told in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "true"}, "true")):
        env = {**unset, "HOME": os.devnull, **given}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
        )
        assert (done.stdout.strip(), done.stderr) == (told, "")

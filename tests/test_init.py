"""What the package offers by name, and that a scan does not load what it does not need."""

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

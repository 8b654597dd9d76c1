"""One task, measured in this fresh process: imports, then the clock, then the peak of its memory.

`python -m benchmarks.measure TASK MODEL DATA RESULT LIMIT_GB` writes a Measurement as JSON to RESULT.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.scans import ONE_SHOT, SCANS, Numbers
from benchmarks.stages import STAGES

TASKS = SCANS | ONE_SHOT | STAGES
OUT_OF_MEMORY = "over the memory limit"
_OUT_OF_MEMORY_WORDS = ("bad_alloc", "bad allocation", "Failed to allocate memory")


@dataclass(frozen=True)
class Measurement:
    """`seconds` from the model's file to the last result, imports not in it. `peak_bytes` is the
    process's largest resident set and `imported_bytes` what it was before the clock started.
    `others_share` is the share of all cores' time that other programs took while the process lived.
    `failure` says in a few words why there are no numbers.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    imported_bytes: int = 0
    numbers: Numbers = field(default_factory=dict)
    others_share: float = 0.0
    failure: str = ""


def measure(task: str, model: Path, data: Path) -> Measurement:
    """Run a task once, here. Nothing escapes: what goes wrong is the measurement's `failure`."""
    batches = sorted(data.glob("*.npz"))
    try:
        run = TASKS[task]()
    except ModuleNotFoundError as error:
        return Measurement(failure=f"not installed ({error})")
    except ImportError as error:
        return Measurement(failure=f"does not import ({error})".replace("\n", " "))
    imported = peak_resident_bytes()
    start = time.perf_counter()
    try:
        numbers = run(model, batches)
    except Exception as error:
        return Measurement(failure=describe(error))
    return Measurement(time.perf_counter() - start, peak_resident_bytes(), imported, numbers)


def describe(error: Exception) -> str:
    """A few words on what ended a task."""
    text = str(error).strip() or "no message"
    if isinstance(error, MemoryError) or is_out_of_memory(text):
        return OUT_OF_MEMORY
    return f"failed: {type(error).__name__}: {text.splitlines()[0][:100]}"


def is_out_of_memory(text: str) -> bool:
    """Whether a message of C++ or of ONNX Runtime says that memory ran out."""
    return any(words in text for words in _OUT_OF_MEMORY_WORDS)


def peak_resident_bytes() -> int:
    """The largest resident set of this process since it began (VmHWM).

    getrusage would tell the parent's instead, where that was larger: Linux keeps it over fork and exec.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("limit_gb", type=float)
    options = parser.parse_args()
    limit = int(options.limit_gb * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    found = measure(options.task, options.model, options.data)
    options.result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

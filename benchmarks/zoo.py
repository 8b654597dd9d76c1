"""What a zoo costs besides its models' own work: `python -m benchmarks.zoo 10 40 160 [--workers 2]`.

For each number of small models: wall time against the sum of the models' processes' times over the workers, the zoo
process's own processor time (it looks after its models twenty times a second), the wall time of a second run that finds
everything finished, and the zoo process's own peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,SIZE] x) => (float[N,SIZE] y) <float big = {100.0}, float tiny = {0.0001}> {
    a = Mul (x, big) b = Mul (a, a) y = Mul (b, tiny)
}"""
_COMMAND = """
import resource, sys
from overflow_fixer.cli import run
code = run(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)
sys.exit(code)
"""


def make_zoo(folder: Path, count: int) -> None:
    """`count` models of a few kilobytes, each with its data beside it."""
    rng = np.random.default_rng(0)
    for number in range(count):
        size = 8 + number % 64
        onnx.save(onnx.parser.parse_model(_MODEL.replace("SIZE", str(size))), folder / f"m{number:05}.onnx")
        np.savez(folder / f"m{number:05}.npz", x=rng.uniform(1, 4, (4, size)).astype(np.float32))


def run_zoo(zoo: Path, out: Path, workers: int, *options: str) -> tuple[float, float, int]:
    """Seconds, those of the zoo process on a processor, and its peak memory in bytes."""
    command = [
        sys.executable,
        "-c",
        _COMMAND,
        "zoo",
        str(zoo),
        "--out",
        str(out),
        "--workers",
        str(workers),
        "-q",
        *options,
    ]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    memory, processor = done.stdout.split()
    return time.monotonic() - start, float(processor), int(memory)


def measure(count: int, workers: int) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        zoo, out = Path(folder) / "zoo", Path(folder) / "out"
        zoo.mkdir()
        make_zoo(zoo, count)
        seconds, processor, memory = run_zoo(zoo, out, workers)
        again, _, _ = run_zoo(zoo, out, workers)
        models = json.loads((out / "zoo-report.json").read_text())["models"]
        own = sum(model["seconds"] for model in models) / workers
    each = own * workers / count
    return (
        f"| {count} | {seconds:.1f} | {each:.2f} | {seconds / own:.3f} | {processor:.2f} | {again:.2f} | "
        f"{memory / 1e6:.0f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", type=int, nargs="+", help="numbers of models")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    print(
        "| models | wall (s) | a model's process (s) | wall / (processes / workers) | zoo's processor (s) | run again (s) | "
        "memory (MB) |"
    )
    print("|---|---|---|---|---|---|---|")
    for count in options.counts:
        print(measure(count, options.workers), flush=True)


if __name__ == "__main__":
    main()
